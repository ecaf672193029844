# SPDX-License-Identifier: Apache-2.0
from ._app import make_app
from ._jobs import Job, JobQueue
from ._keys import ApiKey, ApiKeys, Role
from ._limits import RateLimiter, ServiceLimits
from ._running import check_binding, serve
from ._service import LatencyService

__all__ = [
    "ApiKey",
    "ApiKeys",
    "Job",
    "JobQueue",
    "LatencyService",
    "RateLimiter",
    "Role",
    "ServiceLimits",
    "check_binding",
    "make_app",
    "serve",
]
