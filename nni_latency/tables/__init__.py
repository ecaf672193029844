"""Lookup tables: what a space's candidates cost on one platform, and how such a table is built."""

from nni_latency.tables._builder import BuildProgress, build_table, journal_path
from nni_latency.tables._document import FORMAT, VERSION, table_schema
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable, TableLayer
from nni_latency.tables._plan import ArgumentValue, MeasurePlan, PlanCandidate, PlanLayer, SpaceReference
from nni_latency.tables._shipped import find_table, shipped_tables

__all__ = [
    "FORMAT",
    "VERSION",
    "ArgumentValue",
    "BuildProgress",
    "Entry",
    "LookupTable",
    "MeasurePlan",
    "PlanCandidate",
    "PlanLayer",
    "SpaceReference",
    "TableLayer",
    "build_table",
    "find_table",
    "journal_path",
    "shipped_tables",
    "table_schema",
]
