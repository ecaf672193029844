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

__all__ = [
    "EVOLVING",
    "Evolution",
    "GraphLesson",
    "KernelLesson",
    "Lesson",
    "current_versions",
    "evolve",
    "is_held_out",
    "is_named",
    "known_networks",
    "lessons",
    "load_current",
    "load_version",
]
