"""Where a cost was taken: the device and everything else that decides what a number means."""

from nni_latency.platforms._conditions import CONDITIONS, Conditions, read_conditions
from nni_latency.platforms._devices import list_devices, resolve_device
from nni_latency.platforms._facts import FACTS, Fact, collect_facts
from nni_latency.platforms._platform import PRECISIONS, Platform, check_same_platform, current_platform
from nni_latency.platforms._remarks import Remark, remarks_on

__all__ = [
    "CONDITIONS",
    "FACTS",
    "PRECISIONS",
    "Conditions",
    "Fact",
    "Platform",
    "Remark",
    "check_same_platform",
    "collect_facts",
    "current_platform",
    "list_devices",
    "read_conditions",
    "remarks_on",
    "resolve_device",
]
