# SPDX-License-Identifier: Apache-2.0
"""Retraining of predictors on new measurements: a new version is activated only if it is at least as good."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nni_latency.database import (
    DatabaseStore,
    PredictorVersion,
    add_predictor,
    count_stored,
    predictor_content,
    predictor_versions,
)
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import GraphPredictor
from nni_latency.learning._lessons import (
    EVOLVING,
    Example,
    Learned,
    Lesson,
    file_of,
    is_held_out,
    is_named,
    lesson_named,
    lessons,
    predictor_of,
)
from nni_latency.units import format_percent, number_of
from nni_latency.version import __version__

#: Minimum number of held-out examples to compare versions.
_FEWEST = 3


@dataclass(frozen=True)
class Evolution:
    """Outcome of an attempt to improve a predictor. Immutable.

    Parameters
    ----------
    name : str
        Name of the predictor.
    reason : str
        Action taken, or the reason for none, as a sentence.
    version : PredictorVersion, optional
        The new version; None if no version was fitted.
    before : float, optional
        Error of the previous version on the same examples, as a ratio.
    """

    name: str
    reason: str
    version: PredictorVersion | None = None
    before: float | None = None


def evolve(
    store: DatabaseStore,
    *,
    name: str = EVOLVING,
    at_least: int = 20,
    make: Callable[[], GraphPredictor] = GraphPredictor,
    watch: Callable[[str, int, int], None] = lambda _name, _done, _total: None,
) -> list[Evolution]:
    """Fit new versions of predictors if there is enough new data, and activate those that are at least as good.

    One predictor is fitted to networks of all platforms. Kernel predictors are fitted separately for each platform with
    measured kernels. One in five networks and kernels, chosen by key, is always held out. A new version and the active
    one are evaluated on the held-out examples measured so far; every version is stored with its errors. A version for
    another state of a platform, such as before an update of a runtime, is not compared.

    Parameters
    ----------
    store : DatabaseStore
        Store of the measurements and the versions.
    name : str
        Name of the network predictor; kernel predictors are named ``NAME:PLATFORM``. With such a name, only that one.
    at_least : int, default=20
        Minimum number of new latencies since the last version.
    make : callable
        Creates an unfitted network predictor.
    watch : callable, optional
        Called with the name of the predictor, the finished work, and the total.

    Returns
    -------
    list of Evolution
        One item per predictor, the network predictor first.

    Raises
    ------
    UnknownNameError
        If the name contains a platform without measured kernels.
    OutputError
        If a version cannot be stored.
    """
    return [_evolve(store, lesson, at_least, watch) for lesson in lessons(store, name, make)]


def load_current(store: DatabaseStore, name: str = EVOLVING) -> Any | None:
    """Return the active version of a predictor; None if there is none."""
    found = next((item for item in predictor_versions(store.database, name) if item.is_current), None)
    return None if found is None else _load(store, found)


def current_versions(store: DatabaseStore) -> list[PredictorVersion]:
    """Return the active versions of the network predictor and the kernel predictors."""
    return [item for item in predictor_versions(store.database) if item.is_current and is_named(item.name, EVOLVING)]


def load_version(store: DatabaseStore, number: int) -> Any:
    """Return a version of a predictor: a `GraphPredictor` or `KernelPredictors`.

    Raises
    ------
    UnknownNameError
        If the version does not exist.
    FileFormatError
        If its file is damaged.
    """
    found = next((item for item in predictor_versions(store.database) if item.number == number), None)
    if found is None:
        raise UnknownNameError(f"The database has no version {number} of a predictor.")
    return _load(store, found)


def _load(store: DatabaseStore, version: PredictorVersion) -> Any:
    return predictor_of(lesson_named(version.name), predictor_content(store.database, version.number))


def _evolve(
    store: DatabaseStore,
    lesson: Lesson[Example, Learned],
    at_least: int,
    watch: Callable[[str, int, int], None],
) -> Evolution:
    learned = [item for item in lesson.examples if not is_held_out(lesson.key(item))]
    held_out = [item for item in lesson.examples if is_held_out(lesson.key(item))]
    current = load_current(store, lesson.name)
    if current is not None and not lesson.is_about(current):
        current = None
    before = _learned_before(store, lesson.name) if current is not None else 0
    # There may be fewer than before: campaigns are pruned, and subjects fail.
    new = max(0, len(learned) - before)
    if new < at_least:
        return Evolution(
            lesson.name,
            f"The database has {number_of(new, 'new latency', 'new latencies')}, and another version needs {at_least}.",
        )
    if len(held_out) < _FEWEST:
        few = f"{number_of(len(held_out), lesson.thing)} held out, and {_FEWEST} are needed to compare versions."
        return Evolution(lesson.name, few)
    try:
        predictor = lesson.fit(learned, lambda done, total: watch(lesson.name, done, total))
    except InvalidValueError as error:
        return Evolution(lesson.name, f"Nothing was fitted: {error}")
    return _compare(store, lesson, predictor, current, learned, held_out)


def _learned_before(store: DatabaseStore, name: str) -> int:
    """Return the number of training latencies of the active version, or of a later rejected one."""
    versions = predictor_versions(store.database, name)
    first = next((place for place, item in enumerate(versions) if item.is_current), 0)
    return max((item.n_networks for item in versions[first:]), default=0)


def _compare(
    store: DatabaseStore,
    lesson: Lesson[Example, Learned],
    predictor: Learned,
    current: Learned | None,
    learned: Sequence[Example],
    held_out: Sequence[Example],
) -> Evolution:
    errors = lesson.errors(predictor, held_out)
    before = None if current is None else lesson.errors(current, held_out)["all"]
    is_better = before is None or errors["all"] <= before
    if before is not None:
        errors["before"] = before
    remark = (
        ""
        if before is None or is_better
        else f"It was off by {format_percent(errors['all'])}, and the version before by {format_percent(before)}."
    )
    version = PredictorVersion(
        lesson.name,
        0,
        time.time(),
        __version__,
        len(learned),
        len(held_out),
        count_stored(store.database)["records"],
        errors,
        is_better,
        remark,
    )
    version = add_predictor(store.database, version, file_of(lesson, predictor))
    reason = "It answers from now on." if is_better else f"It was not taken: {remark}"
    outcome = f"Version {version.number} has learned from {number_of(len(learned), 'latency', 'latencies')}. {reason}"
    return Evolution(lesson.name, outcome, version, before)
