from ._caches import cache_sizes
from ._conditions import CONDITIONS, Conditions, read_conditions
from ._devices import list_devices, resolve_device
from ._facts import FACTS, Fact, affinity, collect_facts
from ._nvml import gpu_handle
from ._platform import PRECISIONS, RUNTIME_FACT, Platform, check_same_platform, current_platform, ids_named
from ._remarks import Remark, remarks_on
from ._speeds import measure_speeds
from ._threads import torch_threads

__all__ = [
    "CONDITIONS",
    "FACTS",
    "PRECISIONS",
    "RUNTIME_FACT",
    "Conditions",
    "Fact",
    "Platform",
    "Remark",
    "affinity",
    "cache_sizes",
    "check_same_platform",
    "collect_facts",
    "current_platform",
    "gpu_handle",
    "ids_named",
    "list_devices",
    "measure_speeds",
    "read_conditions",
    "remarks_on",
    "resolve_device",
    "torch_threads",
]
