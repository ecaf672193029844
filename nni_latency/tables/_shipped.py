# SPDX-License-Identifier: Apache-2.0
"""The tables that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from nni_latency.errors import UnknownNameError
from nni_latency.files import is_file

PACKAGE = "nni_latency.lut"

#: Suffix of the file of a table's validation.
VALIDATION = ".validation.json"

#: Remedy for the name of a table that does not exist.
LIST_SHIPPED = "List the tables that ship with: nni-latency show"


def shipped_tables() -> dict[str, Path]:
    """List the tables that ship with the package, from name (space and platform) to file.

    Examples
    --------
    >>> all(path.suffix == ".json" for path in shipped_tables().values())
    True
    """
    folder = Path(str(resources.files(PACKAGE)))
    return {path.stem: path for path in sorted(folder.glob("*.json")) if not path.name.endswith(VALIDATION)}


def validation_path(table: Path) -> Path:
    """Return the path of a table's validation, next to the table, whether or not it exists."""
    return table.with_name(f"{table.name.removesuffix('.json')}{VALIDATION}")


def shipped_table(name: str | Path) -> Path | None:
    """Return the file of a shipped table by its name, with or without ``.json``; None if there is none."""
    return shipped_tables().get(str(name).removesuffix(".json"))


def find_table(name: str | Path) -> Path:
    """Return the file of a table: the path itself, or that of a shipped table by its name.

    Raises
    ------
    UnknownNameError
        If neither a file nor a shipped table has that name.
    """
    path = Path(name)
    known = path if is_file(path) else shipped_table(name)
    if known is None:
        raise UnknownNameError(f"There is no file {str(name)!r}, and no shipped table of that name. {LIST_SHIPPED}")
    return known
