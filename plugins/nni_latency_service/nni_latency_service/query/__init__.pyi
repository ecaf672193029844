# SPDX-License-Identifier: Apache-2.0
from ._answer import Answer, Measure
from ._as_file import as_file
from ._client import LatencyClient, ServiceError
from ._machines import AllMachines, LocalMachines, Machines, RemoteMachines
from ._query import QUERY_PROTOCOL, LatencyQuery, platforms_of
from ._question import Question
from ._remote_estimator import RemoteEstimator

__all__ = [
    "QUERY_PROTOCOL",
    "AllMachines",
    "Answer",
    "LatencyClient",
    "LatencyQuery",
    "LocalMachines",
    "Machines",
    "Measure",
    "Question",
    "RemoteEstimator",
    "RemoteMachines",
    "ServiceError",
    "as_file",
    "platforms_of",
]
