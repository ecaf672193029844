# SPDX-License-Identifier: Apache-2.0
from ._announcement import Announcement, Traits
from ._bench import FarmBench, FarmBenches, JobRunner, LostError
from ._device import Device
from ._farm import Farm, FarmPlatform
from ._fitting import FitBackend
from ._job import Answer, BenchPlace, Job
from ._meter import FarmMeter
from ._references import reference_subjects
from ._registry import Registry, platform_key
from ._runtime import FarmRuntime
from ._scheduler import FarmPlugin, serve
from ._security import PORT, VARIABLES, FarmAddress, FarmSecurity
from ._worker import join, join_fits, owning

__all__ = [
    "PORT",
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
    "join",
    "join_fits",
    "owning",
    "platform_key",
    "reference_subjects",
    "serve",
]
