# SPDX-License-Identifier: Apache-2.0
from ._connections import connection_of, load_connection, load_remote
from ._estimators import (
    EstimatorSource,
    file_of,
    list_estimators,
    load_energy,
    load_estimator,
    load_fallback,
    load_kernel_predictors,
    load_kernel_types,
    load_kernels,
    load_table,
    load_weighted,
    needed,
)
from ._runtimes import OWN_TOOL, find_runtime, load_meter, load_runtime, load_tool, make_runtime, split_runtime

__all__ = [
    "OWN_TOOL",
    "EstimatorSource",
    "connection_of",
    "file_of",
    "find_runtime",
    "list_estimators",
    "load_connection",
    "load_energy",
    "load_estimator",
    "load_fallback",
    "load_kernel_predictors",
    "load_kernel_types",
    "load_kernels",
    "load_meter",
    "load_remote",
    "load_runtime",
    "load_table",
    "load_tool",
    "load_weighted",
    "make_runtime",
    "needed",
    "split_runtime",
]
