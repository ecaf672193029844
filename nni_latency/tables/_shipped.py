"""The tables that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from nni_latency.errors import UnknownNameError
from nni_latency.files import is_file

PACKAGE = "nni_latency.lut"

#: How the file of a table's validation ends.
VALIDATION = ".validation.json"


def shipped_tables() -> dict[str, Path]:
    """List the tables that ship with the package: name, which is space and platform, to file.

    Examples
    --------
    >>> all(path.suffix == ".json" for path in shipped_tables().values())
    True
    """
    folder = Path(str(resources.files(PACKAGE)))
    return {path.stem: path for path in sorted(folder.glob("*.json")) if not path.name.endswith(VALIDATION)}


def validation_path(table: Path) -> Path:
    """Return where the validation of a table lies, if it has one: beside it."""
    return table.with_name(f"{table.name.removesuffix('.json')}{VALIDATION}")


def shipped_table(name: str | Path) -> Path | None:
    """Return the file of a shipped table by its name, with or without ``.json``; None where there is none."""
    return shipped_tables().get(str(name).removesuffix(".json"))


def find_table(name: str | Path) -> Path:
    """Return the file of a table: the path itself, or that of a shipped table by its name.

    Raises
    ------
    UnknownNameError
        If there is neither such a file nor such a table.
    """
    path = Path(name)
    known = path if is_file(path) else shipped_table(name)
    if known is None:
        raise UnknownNameError(
            f"There is no file {str(name)!r}, and no shipped table of that name. {_listing(shipped_tables())}"
        )
    return known


def _listing(shipped: dict[str, Path]) -> str:
    return f"Shipped are: {', '.join(shipped) or 'none'}."
