"""Reading a table of either kind: the file says which."""

from __future__ import annotations

from pathlib import Path

from nni_latency.documents import format_of
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operator_document import OPERATOR_TABLE
from nni_latency.tables._operator_table import OperatorTable


def read_table(path: str | Path) -> LookupTable | OperatorTable:
    """Read a table of layers and candidates, or one of operators.

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    # What says nothing of the kind is left to the reader of lookup tables, which tells what is wrong with it.
    return OperatorTable.load(path) if format_of(path) == OPERATOR_TABLE.name else LookupTable.load(path)
