# SPDX-License-Identifier: Apache-2.0
from ._conditions import CONDITIONS, Conditions, ancestors, gpu_handle, read_conditions
from ._facts import FACTS, Fact, affinity, cache_sizes, collect_facts
from ._platform import (
    OTHER_DEVICES,
    PRECISIONS,
    RUNTIME_FACT,
    Platform,
    check_same_platform,
    device_slug,
    ids_named,
    list_devices,
    measure_speeds,
    resolve_device,
    torch_threads,
)
from ._remarks import Remark, remarks_on

__all__ = [
    "CONDITIONS",
    "FACTS",
    "OTHER_DEVICES",
    "PRECISIONS",
    "RUNTIME_FACT",
    "Conditions",
    "Fact",
    "Platform",
    "Remark",
    "affinity",
    "ancestors",
    "cache_sizes",
    "check_same_platform",
    "collect_facts",
    "device_slug",
    "gpu_handle",
    "ids_named",
    "list_devices",
    "measure_speeds",
    "read_conditions",
    "remarks_on",
    "resolve_device",
    "torch_threads",
]
