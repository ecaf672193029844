"""Lookup tables: what a space's candidates cost on one platform, and how such a table is built."""

from nni_latency.tables._arithmetic import CONFLICTS, fold_calibration, merge_tables, scale_table, subset_table
from nni_latency.tables._builder import build_table, write_table
from nni_latency.tables._building import check_new, journal_path, samples_path
from nni_latency.tables._comparison import TableComparison, compare_tables
from nni_latency.tables._document import FORMAT, VERSION, table_schema
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable, TableLayer
from nni_latency.tables._memory_table import COUNTED_METRICS, as_throughput, count_table
from nni_latency.tables._network_runs import NetworkRuns
from nni_latency.tables._networks import NetworkMeasurements, NetworkTimes, measure_networks, remove_journal
from nni_latency.tables._operator_builder import build_operator_table, check_sees_calls
from nni_latency.tables._operator_document import operator_table_schema
from nni_latency.tables._operator_entries import OperatorEntry
from nni_latency.tables._operator_memo import CachedCost, MemoWarning, OperatorMemo, default_memo_path
from nni_latency.tables._operator_plan import OperatorPlan, PlannedNetwork, operator_times
from nni_latency.tables._operator_table import MeasuredNetwork, OperatorTable
from nni_latency.tables._plan import (
    OPERATORS,
    ArgumentValue,
    MeasurePlan,
    NetworkSource,
    PlanCandidate,
    PlanLayer,
    Selection,
    SpaceReference,
    network_plan,
)
from nni_latency.tables._reading import read_table
from nni_latency.tables._residency import Residency, fit_residency
from nni_latency.tables._rounds import BuildProgress
from nni_latency.tables._shipped import find_table, shipped_tables, validation_path
from nni_latency.tables._solving import Solution, solve_entries

__all__ = [
    "CONFLICTS",
    "COUNTED_METRICS",
    "FORMAT",
    "OPERATORS",
    "VERSION",
    "ArgumentValue",
    "BuildProgress",
    "CachedCost",
    "Entry",
    "LookupTable",
    "MeasurePlan",
    "MeasuredNetwork",
    "MemoWarning",
    "NetworkMeasurements",
    "NetworkRuns",
    "NetworkSource",
    "NetworkTimes",
    "OperatorEntry",
    "OperatorMemo",
    "OperatorPlan",
    "OperatorTable",
    "PlanCandidate",
    "PlanLayer",
    "PlannedNetwork",
    "Residency",
    "Selection",
    "Solution",
    "SpaceReference",
    "TableComparison",
    "TableLayer",
    "as_throughput",
    "build_operator_table",
    "build_table",
    "check_new",
    "check_sees_calls",
    "compare_tables",
    "count_table",
    "default_memo_path",
    "find_table",
    "fit_residency",
    "fold_calibration",
    "journal_path",
    "measure_networks",
    "merge_tables",
    "network_plan",
    "operator_table_schema",
    "operator_times",
    "read_table",
    "remove_journal",
    "samples_path",
    "scale_table",
    "shipped_tables",
    "solve_entries",
    "subset_table",
    "table_schema",
    "validation_path",
    "write_table",
]
