from ._answer import Answer, Measure
from ._as_file import as_file
from ._client import KEY_VARIABLE, LatencyClient, ServiceError
from ._evolving import Evolution, current_versions, evolve, load_current, load_version
from ._lessons import (
    EVOLVING,
    GraphLesson,
    KernelLesson,
    Lesson,
    is_held_out,
    is_named,
    known_networks,
    lessons,
)
from ._machines import AllMachines, FarmMachines, LocalMachines, Machines
from ._query import QUERY_PROTOCOL, LatencyQuery
from ._question import Question
from ._remote_estimator import RemoteEstimator

__all__ = [
    "EVOLVING",
    "KEY_VARIABLE",
    "QUERY_PROTOCOL",
    "AllMachines",
    "Answer",
    "Evolution",
    "FarmMachines",
    "GraphLesson",
    "KernelLesson",
    "LatencyClient",
    "LatencyQuery",
    "Lesson",
    "LocalMachines",
    "Machines",
    "Measure",
    "Question",
    "RemoteEstimator",
    "ServiceError",
    "as_file",
    "current_versions",
    "evolve",
    "is_held_out",
    "is_named",
    "known_networks",
    "lessons",
    "load_current",
    "load_version",
]
