from ._arithmetic import CONFLICTS, Conflict, fold_calibration, merge_tables, scale_table, subset_table
from ._builder import build_table, write_table
from ._building import METERED, Measured, Measuring, MeasuringOptions, StoreSource, as_store, check_new, new_file
from ._comparison import TableComparison, compare_tables
from ._document import table_schema
from ._energy import metered_table, network_powers
from ._entry import Entry
from ._header import CostDocument, CountedDocument, HeaderDocument, SpaceDocument, TableHeader, counts_content
from ._known_costs import CachedCost, KnownCosts
from ._layer_schedule import LayerSchedule, candidate_subjects
from ._lookup_table import LookupTable
from ._measured import MeasuredNetwork
from ._memory_table import as_throughput, count_table
from ._networks import NetworkMeasurements, NetworkTimes, measure_networks, reference_networks
from ._operator_builder import build_operator_table, check_operator_metric, check_sees_calls
from ._operator_document import operator_table_schema
from ._operator_energy import energy_of_operators
from ._operator_entries import OperatorEntry
from ._operator_plan import OperatorPlan, PlannedNetwork
from ._operator_samples import OperatorSamples
from ._operator_table import UNKNOWN, OperatorTable, named_operators
from ._plan import (
    HEAD_ONLY,
    OPERATORS,
    UNKNOWN_SPACE,
    ArgumentValue,
    MeasurePlan,
    NetworkSource,
    PlanCandidate,
    PlanLayer,
    Selection,
    SpaceReference,
    measure_plan_of,
    network_plan,
)
from ._rebuilding import rebuild_table
from ._residency import Residency, fit_residency
from ._shipped import find_table, shipped_table, shipped_tables, validation_path
from ._solved import BatchSchedule
from ._solving import Solution, solve_entries
from ._speed import Locations, locate
from ._table_layer import TableLayer
from ._weighing import WEIGHTED, weigh_tables

__all__ = [
    "CONFLICTS",
    "HEAD_ONLY",
    "METERED",
    "OPERATORS",
    "UNKNOWN",
    "UNKNOWN_SPACE",
    "WEIGHTED",
    "ArgumentValue",
    "BatchSchedule",
    "CachedCost",
    "Conflict",
    "CostDocument",
    "CountedDocument",
    "Entry",
    "HeaderDocument",
    "KnownCosts",
    "LayerSchedule",
    "Locations",
    "LookupTable",
    "MeasurePlan",
    "Measured",
    "MeasuredNetwork",
    "Measuring",
    "MeasuringOptions",
    "NetworkMeasurements",
    "NetworkSource",
    "NetworkTimes",
    "OperatorEntry",
    "OperatorPlan",
    "OperatorSamples",
    "OperatorTable",
    "PlanCandidate",
    "PlanLayer",
    "PlannedNetwork",
    "Residency",
    "Selection",
    "Solution",
    "SpaceDocument",
    "SpaceReference",
    "StoreSource",
    "TableComparison",
    "TableHeader",
    "TableLayer",
    "as_store",
    "as_throughput",
    "build_operator_table",
    "build_table",
    "candidate_subjects",
    "check_new",
    "check_operator_metric",
    "check_sees_calls",
    "compare_tables",
    "count_table",
    "counts_content",
    "energy_of_operators",
    "find_table",
    "fit_residency",
    "fold_calibration",
    "locate",
    "measure_networks",
    "measure_plan_of",
    "merge_tables",
    "metered_table",
    "named_operators",
    "network_plan",
    "network_powers",
    "new_file",
    "operator_table_schema",
    "rebuild_table",
    "reference_networks",
    "scale_table",
    "shipped_table",
    "shipped_tables",
    "solve_entries",
    "subset_table",
    "table_schema",
    "validation_path",
    "weigh_tables",
    "write_table",
]
