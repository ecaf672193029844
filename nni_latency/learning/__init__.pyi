# SPDX-License-Identifier: Apache-2.0
from ._evolving import Evolution, current_versions, evolve, load_current, load_version
from ._learned_platform import LearnedPlatform, learn_machine
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
from ._own_predictor import BasePredictor, base_predictor, is_learned, older_platforms
from ._speed import DIFFERS, devices_here, measure_reference, speeds_now
from ._this_machine import (
    LEARNING_SHARE,
    MACHINE_PROTOCOL,
    MachineMeasurements,
    choose_networks,
    measure_machine,
)

__all__ = [
    "DIFFERS",
    "EVOLVING",
    "LEARNING_SHARE",
    "MACHINE_PROTOCOL",
    "BasePredictor",
    "Evolution",
    "GraphLesson",
    "KernelLesson",
    "LearnedPlatform",
    "Lesson",
    "MachineMeasurements",
    "base_predictor",
    "choose_networks",
    "current_versions",
    "devices_here",
    "evolve",
    "is_held_out",
    "is_learned",
    "is_named",
    "known_networks",
    "learn_machine",
    "lessons",
    "load_current",
    "load_version",
    "measure_machine",
    "measure_reference",
    "older_platforms",
    "speeds_now",
]
