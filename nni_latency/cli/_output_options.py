"""The file that a command writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

import nni_latency.tables as tables
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._option import output_option
from nni_latency.cli._outputs import outputs
from nni_latency.units import format_percent


@dataclass(frozen=True)
class OutputOptions:
    """The file that a command writes."""

    out: Path | None = output_option("Output file.")

    @property
    def overwrite(self) -> bool:
        """Whether an existing file may be replaced."""
        return outputs().overwrite

    def path(self, default: str = "") -> Path:
        """Return the file, by default the one of that name; one that cannot be written is an error."""
        return self.out or outputs().claim(Path(default))


def write_result(table: tables.LookupTable | tables.OperatorTable, out: Path, *, known: tuple[str, ...] = ()) -> None:
    """Write a table made from others; print its remarks that were not `known` before."""
    table.save(out)
    print_lines(remarks(), (remark for remark in table.remarks if remark not in known))
    results().print(f"Wrote {escape(str(out))}, coverage {format_percent(table.coverage)}")
