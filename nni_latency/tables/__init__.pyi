# SPDX-License-Identifier: Apache-2.0
from ._arithmetic import (
    CONFLICTS,
    Conflict,
    as_throughput,
    fold_calibration,
    merge_tables,
    scale_table,
    subset_table,
    weigh_tables,
)
from ._builder import build_table, rebuild_table, write_table
from ._building import METERED, Measured, Measuring, MeasuringOptions, StoreSource, as_store, new_file
from ._comparison import TableComparison, compare_tables
from ._counted import count_table
from ._entries import UNKNOWN, Entry, MeasuredNetwork, TableLayer, named_operators, sample_text
from ._header import CostDocument, CountedDocument, HeaderDocument, SpaceDocument, TableHeader, counts_content
from ._known_costs import CachedCost, KnownCosts
from ._layer_schedule import LayerSchedule, candidate_subjects
from ._lookup_table import LookupTable, table_schema
from ._machine import Locations, Residency, fit_residency, locate
from ._neighbours import cost_beside
from ._networks import NetworkMeasurements, NetworkTimes, measure_networks, reference_networks
from ._operator_energy import energy_of_operators
from ._operator_samples import OperatorSamples, Place
from ._operators import check_operators, operator_entries
from ._pairs import LayerPair, weighed_pairs
from ._plan import (
    HEAD_ONLY,
    OPERATORS,
    UNKNOWN_SPACE,
    ArgumentValue,
    MeasurePlan,
    NetworkSource,
    OperatorPlan,
    PlanCandidate,
    PlanLayer,
    PlannedNetwork,
    Selection,
    SpaceReference,
    measure_plan_of,
)
from ._shipped import LIST_SHIPPED, find_table, shipped_table, shipped_tables, validation_path
from ._solved import BatchSchedule
from ._solving import Solution, solve_entries

__all__ = [
    "CONFLICTS",
    "HEAD_ONLY",
    "LIST_SHIPPED",
    "METERED",
    "OPERATORS",
    "UNKNOWN",
    "UNKNOWN_SPACE",
    "ArgumentValue",
    "BatchSchedule",
    "CachedCost",
    "Conflict",
    "CostDocument",
    "CountedDocument",
    "Entry",
    "HeaderDocument",
    "KnownCosts",
    "LayerPair",
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
    "OperatorPlan",
    "OperatorSamples",
    "Place",
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
    "build_table",
    "candidate_subjects",
    "check_operators",
    "compare_tables",
    "cost_beside",
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
    "named_operators",
    "new_file",
    "operator_entries",
    "rebuild_table",
    "reference_networks",
    "sample_text",
    "scale_table",
    "shipped_table",
    "shipped_tables",
    "solve_entries",
    "subset_table",
    "table_schema",
    "validation_path",
    "weigh_tables",
    "weighed_pairs",
    "write_table",
]
