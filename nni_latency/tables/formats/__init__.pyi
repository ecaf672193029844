# SPDX-License-Identifier: Apache-2.0
from ._import import Imported, export_table, import_table
from ._matching import Matching, implausible
from ._ofa import OperatorKey, operator_key
from ._plain_pickle import read_plain_pickle
from ._registry import FORMATS, TableFormat
from ._sheet import Row, Sheet, Written
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
    "implausible",
    "import_table",
    "operator_key",
    "read_plain_pickle",
]
