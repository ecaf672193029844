"""Predictors that learn from what a database gets to know: a new version answers only if it is no worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
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

#: Examples that are held out at least before versions are compared.
_FEWEST = 3


@dataclass(frozen=True)
class Evolution:
    """What became of an attempt to make a better predictor. Immutable.

    Parameters
    ----------
    name : str
        Of the predictor.
    reason : str
        What was done, or why nothing was, as a sentence.
    version : PredictorVersion, optional
        The new version; None if none was fitted.
    before : float, optional
        Error of the version before on the same examples, as a ratio.
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
    """Fit new versions of predictors where there is enough to learn, and let those answer that are no worse.

    One predictor learns networks, on all platforms. Where kernels were measured, predictors of kernels learn them, for
    each platform by itself. One network, and one kernel, in five, by its key, is never learned from. A new version and
    the one that answers are held to those of them that are known by now; every version is kept, with its errors. A
    version of another state of a platform, such as before a runtime was updated, is not compared.

    Parameters
    ----------
    store : DatabaseStore
        What is learned from, and where versions are kept.
    name : str
        Of the predictor of networks; those of kernels are called ``NAME:PLATFORM``. With such a name, of that alone.
    at_least : int, default=20
        Latencies that must have been added since the last version.
    make : callable
        Makes a predictor of networks that is not fitted.
    watch : callable, optional
        Told the name of the predictor that learns, how much is done, and how much there is.

    Returns
    -------
    list of Evolution
        One for each predictor: that of networks first.

    Raises
    ------
    UnknownNameError
        If the name has a platform of which no kernels were measured.
    OutputError
        If a version cannot be kept.
    """
    return [_evolve(store, lesson, at_least, watch) for lesson in lessons(store, name, make)]


def load_current(store: DatabaseStore, name: str = EVOLVING) -> Any | None:
    """Return the version of a predictor that answers; None if there is none."""
    found = next((item for item in predictor_versions(store.database, name) if item.is_current), None)
    return None if found is None else _load(store, found)


def current_versions(store: DatabaseStore, name: str = EVOLVING) -> list[PredictorVersion]:
    """Return the versions that answer, of the predictor of networks and of those of kernels."""
    return [item for item in predictor_versions(store.database) if item.is_current and is_named(item.name, name)]


def load_version(store: DatabaseStore, number: int) -> Any:
    """Return a version of a predictor: a `GraphPredictor`, or `KernelPredictors`.

    Raises
    ------
    UnknownNameError
        If there is no such version.
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
    new = len(learned) - (_learned_before(store, lesson.name) if current is not None else 0)
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
    """Return from how many latencies the version that answers has learned, or one that was refused after it."""
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
        metadata.version("nni_latency"),
        len(learned),
        len(held_out),
        count_stored(store.database)["records"],
        errors,
        is_better,
        remark,
    )
    version = add_predictor(store.database, version, file_of(lesson, predictor))
    reason = "It answers from now on." if is_better else f"It was not taken: {remark}"
    told = f"Version {version.number} has learned from {number_of(len(learned), 'latency', 'latencies')}. {reason}"
    return Evolution(lesson.name, told, version, before)
