# SPDX-License-Identifier: Apache-2.0
from ._import import Imported, export_table, import_table
from ._matching import Matching, implausible, match_sheet
from ._ofa import OperatorKey, operator_key
from ._plain_pickle import read_plain_pickle
from ._registry import FORMATS, TableFormat, find_format, recognise_format
from ._sheet import Row, Sheet, Written, foreign_name, own_name
from ._text import UNITS

__all__ = [
    "FORMATS",
    "UNITS",
    "Imported",
    "Matching",
    "OperatorKey",
    "Row",
    "Sheet",
    "TableFormat",
    "Written",
    "export_table",
    "find_format",
    "foreign_name",
    "implausible",
    "import_table",
    "match_sheet",
    "operator_key",
    "own_name",
    "read_plain_pickle",
    "recognise_format",
]
