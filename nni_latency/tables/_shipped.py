"""The tables that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from nni_latency.errors import UnknownNameError

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


def find_table(name: str | Path) -> Path:
    """Return the file of a table: the path itself, or that of a shipped table by its name.

    Raises
    ------
    UnknownNameError
        If there is neither such a file nor such a table.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_tables()
    known = shipped.get(str(name).removesuffix(".json"))
    if known is None:
        raise UnknownNameError(
            f"There is no file {str(name)!r}, and no shipped table of that name. {_listing(shipped)}"
        )
    return known


def _listing(shipped: dict[str, Path]) -> str:
    return f"Shipped are: {', '.join(shipped) or 'none'}."
