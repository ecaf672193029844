# SPDX-License-Identifier: Apache-2.0
from ._base import Arrays, CompiledNetwork, ProfileCost, ProfiledNetwork, ProfiledNode, ProfiledRun, Runtime
from ._exported import SETTLING_RUNS, Chained, ExportedRuntime, Native, Parallel, Prepared, each_array
from ._placed import Here, MakePlace, Place, Placed, PlacedNetwork, PlacedProfiledNetwork
from ._profiled import KERNEL_SECONDS, MOST_KERNEL_RUNS, ProfiledRuntime
from ._session import choose_processors, pinned
from ._torch import CudaClock, TorchEager, TorchScript, Unpacking, settle
from ._torch_compile import TorchCompile

__all__ = [
    "KERNEL_SECONDS",
    "MOST_KERNEL_RUNS",
    "SETTLING_RUNS",
    "Arrays",
    "Chained",
    "CompiledNetwork",
    "CudaClock",
    "ExportedRuntime",
    "Here",
    "MakePlace",
    "Native",
    "Parallel",
    "Place",
    "Placed",
    "PlacedNetwork",
    "PlacedProfiledNetwork",
    "Prepared",
    "ProfileCost",
    "ProfiledNetwork",
    "ProfiledNode",
    "ProfiledRun",
    "ProfiledRuntime",
    "Runtime",
    "TorchCompile",
    "TorchEager",
    "TorchScript",
    "Unpacking",
    "choose_processors",
    "each_array",
    "pinned",
    "settle",
]
