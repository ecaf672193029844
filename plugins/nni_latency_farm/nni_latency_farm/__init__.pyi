# SPDX-License-Identifier: Apache-2.0
from ._announcement import Announcement, Traits
from ._bench import FarmBench, FarmBenches, JobRunner, LostError
from ._device import Device
from ._farm import Farm, FarmPlatform
from ._fitting import FITS, FitBackend
from ._job import SLICE, Answer, BenchPlace, Job
from ._meter import FarmMeter
from ._references import reference_subjects
from ._registry import TOLERANCE, Registry, platform_key
from ._runtime import FarmRuntime
from ._scheduler import FarmPlugin, serve
from ._security import PORT, VARIABLES, FarmAddress, FarmSecurity, is_local
from ._worker import CHECK_EVERY, join, join_fits, owning

__all__ = [
    "CHECK_EVERY",
    "FITS",
    "PORT",
    "SLICE",
    "TOLERANCE",
    "VARIABLES",
    "Announcement",
    "Answer",
    "BenchPlace",
    "Device",
    "Farm",
    "FarmAddress",
    "FarmBench",
    "FarmBenches",
    "FarmMeter",
    "FarmPlatform",
    "FarmPlugin",
    "FarmRuntime",
    "FarmSecurity",
    "FitBackend",
    "Job",
    "JobRunner",
    "LostError",
    "Registry",
    "Traits",
    "is_local",
    "join",
    "join_fits",
    "owning",
    "platform_key",
    "reference_subjects",
    "serve",
]
