"""The file that a command writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nni_latency.cli._option import output_option
from nni_latency.cli._outputs import outputs


@dataclass(frozen=True)
class OutputOptions:
    """The file that a command writes."""

    out: Path | None = output_option("Output file.", "-o", "--out")

    @property
    def overwrite(self) -> bool:
        """Whether an existing file may be replaced."""
        return outputs().overwrite

    def path(self, default: str = "") -> Path:
        """Return the file, by default the one of that name; one that cannot be written is an error."""
        return self.out or outputs().claim(Path(default))
