"""Reading a table of either kind: the file's 'format' says which."""

from __future__ import annotations

import json
from pathlib import Path

from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operator_document import FORMAT
from nni_latency.tables._operator_table import OperatorTable


def read_table(path: str | Path) -> LookupTable | OperatorTable:
    """Read a table of layers and candidates, or one of operators.

    Raises
    ------
    TableFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # The reader of lookup tables says what is wrong with it.
        return LookupTable.load(path)
    is_operators = isinstance(content, dict) and content.get("format") == FORMAT
    return OperatorTable.load(path) if is_operators else LookupTable.load(path)
