"""The tables of other projects: reading them into ours, and writing ours for them."""

from nni_latency.tables.formats._import import Imported, export_table, import_table
from nni_latency.tables.formats._matching import Matching, match_sheet
from nni_latency.tables.formats._names import foreign_name, own_name
from nni_latency.tables.formats._numbers import UNITS
from nni_latency.tables.formats._operator_key import OperatorKey, operator_key
from nni_latency.tables.formats._plain_pickle import read_plain_pickle
from nni_latency.tables.formats._plausibility import implausible
from nni_latency.tables.formats._registry import FORMATS, TableFormat, find_format, recognise_format
from nni_latency.tables.formats._sheet import Row, Sheet, Written

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
