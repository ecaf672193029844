from ._announcement import Announcement, Traits, WorkerState
from ._bench import FarmBench, FarmBenches, JobRunner, LostError
from ._device import Device
from ._farm import Farm, FarmPlatform
from ._job import SLICE, Answer, BenchPlace, Job
from ._references import reference_subjects
from ._registry import TOLERANCE, Registry, platform_key
from ._runtime import FarmRuntime
from ._scheduler import FarmPlugin, serve
from ._security import PORT, FarmAddress, FarmSecurity, is_local
from ._worker import CHECK_EVERY, join

__all__ = [
    "CHECK_EVERY",
    "PORT",
    "SLICE",
    "TOLERANCE",
    "Announcement",
    "Answer",
    "BenchPlace",
    "Device",
    "Farm",
    "FarmAddress",
    "FarmBench",
    "FarmBenches",
    "FarmPlatform",
    "FarmPlugin",
    "FarmRuntime",
    "FarmSecurity",
    "Job",
    "JobRunner",
    "LostError",
    "Registry",
    "Traits",
    "WorkerState",
    "is_local",
    "join",
    "platform_key",
    "reference_subjects",
    "serve",
]
