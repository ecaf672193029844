"""`Lesson`: what a database teaches one predictor: examples, and how it is fitted, judged, kept and read."""

from __future__ import annotations

import hashlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

import nni_latency.loading as loading
from nni_latency.database import DatabaseStore, latest_platforms, measured_graphs
from nni_latency.datasets import GraphDocument
from nni_latency.errors import LatencyError, UnknownNameError
from nni_latency.graphs import GraphPredictor, MeasuredNetwork
from nni_latency.kernels import (
    KernelPredictors,
    KernelRecords,
    KernelSchedule,
    MeasuredKernel,
    learn_kernels,
    read_kernels,
)
from nni_latency.platforms import Platform

#: One example in so many is held out.
HELD_OUT = 5

#: Groups of networks that a predictor holds out in turn, to tell how unsure it is.
_GROUPS = 5

#: The name of the predictor of a database, unless it has another.
EVOLVING = "evolving"

#: Stands in the name of a predictor of kernels between that of the predictor of networks and the platform.
_OF = ":"

#: Told how much is done, and how much there is.
Watch = Callable[[int, int], None]

Example = TypeVar("Example")
Learned = TypeVar("Learned")


class Lesson(ABC, Generic[Example, Learned]):
    """What a database teaches one predictor, and how it is fitted, judged, kept and read.

    Attributes
    ----------
    name : str
        Of the predictor.
    thing : str
        What one example is, for messages.
    examples : sequence
        Everything there is to learn from, with a latency each.
    """

    name: str
    thing: str
    examples: Sequence[Example]

    @abstractmethod
    def key(self, example: Example) -> str:
        """Return what tells an example from others, the same in every database."""

    @abstractmethod
    def fit(self, examples: Sequence[Example], watch: Watch) -> Learned:
        """Learn from examples; raises `InvalidValueError` if they are too few."""

    @abstractmethod
    def errors(self, predictor: Learned, examples: Sequence[Example]) -> dict[str, float]:
        """Return mean absolute percentage errors, as ratios: by part, and ``all``."""

    @abstractmethod
    def save(self, predictor: Learned, path: Path) -> Path:
        """Write a predictor to its file."""

    @abstractmethod
    def load(self, path: Path) -> Learned:
        """Read a predictor from its file."""

    def is_about(self, predictor: Learned) -> bool:
        """Whether a predictor is of the platform of the examples, as that is now."""
        return True


@dataclass(frozen=True)
class GraphLesson(Lesson[MeasuredNetwork, GraphPredictor]):
    """What a predictor of networks learns: those measured alone whose graphs are kept, of all platforms."""

    name: str = EVOLVING
    examples: Sequence[MeasuredNetwork] = ()
    make: Callable[[], GraphPredictor] = GraphPredictor
    thing: str = field(default="network", init=False)

    def key(self, example: MeasuredNetwork) -> str:
        """Return the key of its graph."""
        return example.name

    def fit(self, examples: Sequence[MeasuredNetwork], watch: Watch) -> GraphPredictor:
        """Fit a new predictor."""
        return self.make().fit(examples, watch)

    def errors(self, predictor: GraphPredictor, examples: Sequence[MeasuredNetwork]) -> dict[str, float]:
        """Return errors by platform; a network on a platform that it does not know counts as wholly wrong."""
        known = {platform.id for platform in predictor.platforms_}
        pairs = []
        for item in examples:
            place = item.platform.id
            predicted = predictor.estimate_platforms(item.graph)[place].value if place in known else 0.0
            pairs.append((place, predicted / item.latency))
        return _means(pairs)

    def save(self, predictor: GraphPredictor, path: Path) -> Path:
        """Write it."""
        return predictor.save(path)

    def load(self, path: Path) -> GraphPredictor:
        """Read it."""
        return GraphPredictor.load(path)


@dataclass(frozen=True)
class KernelLesson(Lesson[MeasuredKernel, KernelPredictors]):
    """What predictors of kernels learn: the kernels of all campaigns of one platform."""

    name: str
    examples: Sequence[MeasuredKernel] = ()
    records: KernelRecords | None = None
    thing: str = field(default="kernel", init=False)

    def key(self, example: MeasuredKernel) -> str:
        """Return the key of the kernel."""
        return example.kernel.key

    def fit(self, examples: Sequence[MeasuredKernel], watch: Watch) -> KernelPredictors:
        """Fit new predictors."""
        assert self.records is not None
        return learn_kernels(self.records, examples, watch)

    def errors(self, predictor: KernelPredictors, examples: Sequence[MeasuredKernel]) -> dict[str, float]:
        """Return errors by group; a kernel of a group that it does not know counts as wholly wrong."""
        assert self.records is not None
        pairs = []
        for item in examples:
            group = self.records.types[item.kernel.kind].group
            predicted = predictor.estimate_kernel(item.kernel).value if item.kernel.kind in predictor.kinds else 0.0
            pairs.append((group, predicted / item.value))
        return _means(pairs)

    def save(self, predictor: KernelPredictors, path: Path) -> Path:
        """Write it."""
        return predictor.save(path)

    def load(self, path: Path) -> KernelPredictors:
        """Read it."""
        return loading.load_kernel_predictors(path)

    def is_about(self, predictor: KernelPredictors) -> bool:
        """Whether the kernels of a predictor may be mixed with these."""
        return self.records is None or not self.records.platform.differences(predictor.platform)


def lessons(
    store: DatabaseStore, name: str = EVOLVING, make: Callable[[], GraphPredictor] = GraphPredictor
) -> Iterator[Lesson[Any, Any]]:
    """Yield what a database teaches: a predictor of networks, and predictors of kernels for every platform.

    Parameters
    ----------
    store : DatabaseStore
        What is learned from.
    name : str
        Of the predictor of networks; those of kernels are called ``NAME:PLATFORM``. With such a name, of these alone.
    make : callable
        Makes a predictor of networks that is not fitted.

    Raises
    ------
    UnknownNameError
        If the name has a platform of which no kernels were measured.
    """
    family, _, wanted = name.partition(_OF)
    if not wanted:
        yield GraphLesson(family, known_networks(store), make)
    platforms = {platform.id: platform for platform in latest_platforms(store.database, KernelSchedule.kind)}
    if wanted and wanted not in platforms:
        raise UnknownNameError.of("platform with kernels", wanted, list(platforms))
    for place, platform in platforms.items():
        if wanted in ("", place):
            records = _kernels_of(store, platform)
            yield KernelLesson(f"{family}{_OF}{place}", records.kernels if records is not None else (), records)


def is_named(version: str, name: str) -> bool:
    """Whether a predictor is the one that is named, or that of kernels which belongs to it."""
    return version == name or version.startswith(f"{name}{_OF}")


def known_networks(store: DatabaseStore) -> list[MeasuredNetwork]:
    """Return the networks that were measured alone and whose graphs are kept, as predictors learn from them.

    Parameters
    ----------
    store : DatabaseStore
        Where they are; what queries measure is kept with its graph.
    """
    return list(_known(store))


def is_held_out(key: str) -> bool:
    """Whether no version learns from an example: one in five, by its key, for ever.

    >>> sum(is_held_out(f"{number:032x}") for number in range(1000))
    195
    """
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT == 0


def lesson_named(name: str) -> Lesson[Any, Any]:
    """Return a lesson without examples, which knows how the files of a predictor are read."""
    if _OF in name:
        return KernelLesson(name)
    return GraphLesson(name)


def file_of(lesson: Lesson[Example, Learned], predictor: Learned) -> bytes:
    """Return a predictor as the content of its file."""
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        return lesson.save(predictor, Path(folder) / "predictor").read_bytes()


def predictor_of(lesson: Lesson[Example, Learned], content: bytes) -> Learned:
    """Return a predictor from the content of its file."""
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        path = Path(folder) / "predictor"
        path.write_bytes(content)
        return lesson.load(path)


def _kernels_of(store: DatabaseStore, platform: Platform) -> KernelRecords | None:
    campaigns = store.campaigns(kind=KernelSchedule.kind, platform=platform)
    return read_kernels(campaigns, loading.load_kernel_types())


def _means(pairs: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the mean distance of ratios from 1, by part, and of all."""
    errors: dict[str, list[float]] = {}
    for part, ratio in pairs:
        errors.setdefault(part, []).append(abs(ratio - 1))
    everything = [error for found in errors.values() for error in found]
    return {name: float(np.mean(found)) for name, found in {**errors, "all": everything}.items() if found}


def _group(name: str) -> str:
    # Of another byte than whether it is held out, or those that are not would be in fewer groups.
    return f"group {hashlib.sha256(name.encode()).digest()[1] % _GROUPS}"


def _known(store: DatabaseStore) -> Iterator[MeasuredNetwork]:
    for digest, platform, content in measured_graphs(store.database):
        known = store.known(digest, platform)
        if known is None:
            continue
        try:
            graph = GraphDocument.model_validate_json(content).to_graph()
            # Families are what a predictor holds out together; here a network belongs to one of five by its key.
            yield MeasuredNetwork(digest, graph, known.value, known.platform, _group(digest))
        except (ValueError, LookupError, LatencyError):
            # A graph that was edited by hand is nothing to learn from.
            continue
