# SPDX-License-Identifier: Apache-2.0
"""`Lesson`: training task of a predictor: examples, fitting, evaluation, saving and loading."""

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

#: One in this many examples is held out.
HELD_OUT = 5

#: Groups of networks that a predictor holds out in turn to estimate its uncertainty.
_GROUPS = 5

#: Default name of the predictor of a database.
EVOLVING = "evolving"

#: Separator of network predictor and platform in the name of a kernel predictor.
_OF = ":"

#: Callback with the finished work and the total.
Watch = Callable[[int, int], None]

Example = TypeVar("Example")
Learned = TypeVar("Learned")


class Lesson(ABC, Generic[Example, Learned]):
    """Training task of a predictor: examples, fitting, evaluation, saving and loading.

    Attributes
    ----------
    name : str
        Of the predictor.
    thing : str
        Noun for one example, for messages.
    examples : sequence
        All training examples, each with a latency.
    """

    name: str
    thing: str
    examples: Sequence[Example]

    @abstractmethod
    def key(self, example: Example) -> str:
        """Return the identifier of an example, identical in every database."""

    @abstractmethod
    def fit(self, examples: Sequence[Example], watch: Watch) -> Learned:
        """Fit a predictor to examples; raises `InvalidValueError` if there are too few."""

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
        """Whether a predictor belongs to the current state of the platform of the examples."""
        return True


@dataclass(frozen=True)
class GraphLesson(Lesson[MeasuredNetwork, GraphPredictor]):
    """Training of a network predictor: separately measured networks with stored graphs, of all platforms."""

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
        """Return errors by platform; a network on an unknown platform counts as an error of 1."""
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
    """Training of kernel predictors: the kernels of all campaigns of one platform."""

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
        """Return errors by group; a kernel of an unknown group counts as an error of 1."""
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
        """Whether the kernels of a predictor are compatible with the examples."""
        return self.records is None or not self.records.platform.differences(predictor.platform)


def lessons(
    store: DatabaseStore, name: str = EVOLVING, make: Callable[[], GraphPredictor] = GraphPredictor
) -> Iterator[Lesson[Any, Any]]:
    """Yield the training tasks of a database: for networks, and for the kernels of every platform.

    Parameters
    ----------
    store : DatabaseStore
        Store of the measurements.
    name : str
        Name of the network predictor; kernel predictors are named ``NAME:PLATFORM``. With such a name, only that one.
    make : callable
        Creates an unfitted network predictor.

    Raises
    ------
    UnknownNameError
        If the name contains a platform without measured kernels.
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
    """Whether a predictor has a name, or is a kernel predictor of that name."""
    return version == name or version.startswith(f"{name}{_OF}")


def known_networks(store: DatabaseStore) -> list[MeasuredNetwork]:
    """Return the separately measured networks with stored graphs, as training data.

    Parameters
    ----------
    store : DatabaseStore
        Store of the networks; queries store measurements with graphs.
    """
    return list(_known(store))


def is_held_out(key: str) -> bool:
    """Whether an example is always held out: one in five, by its key.

    >>> sum(is_held_out(f"{number:032x}") for number in range(1000))
    195
    """
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT == 0


def lesson_named(name: str) -> Lesson[Any, Any]:
    """Return a lesson without examples, for loading the files of a predictor."""
    if _OF in name:
        return KernelLesson(name)
    return GraphLesson(name)


def file_of(lesson: Lesson[Example, Learned], predictor: Learned) -> bytes:
    """Return the content of the file of a predictor."""
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
    """Return the mean absolute difference of ratios from 1, by part and in total."""
    errors: dict[str, list[float]] = {}
    for part, ratio in pairs:
        errors.setdefault(part, []).append(abs(ratio - 1))
    everything = [error for found in errors.values() for error in found]
    return {name: float(np.mean(found)) for name, found in {**errors, "all": everything}.items() if found}


def _group(name: str) -> str:
    # Uses another byte than `is_held_out`, which would leave fewer groups for the training examples.
    return f"group {hashlib.sha256(name.encode()).digest()[1] % _GROUPS}"


def _known(store: DatabaseStore) -> Iterator[MeasuredNetwork]:
    for digest, platform, content in measured_graphs(store.database):
        known = store.known(digest, platform)
        if known is None:
            continue
        try:
            graph = GraphDocument.model_validate_json(content).to_graph()
            # A predictor holds out whole families; here, a network is assigned to one of five by its key.
            yield MeasuredNetwork(digest, graph, known.value, known.platform, _group(digest))
        except (ValueError, LookupError, LatencyError):
            # Skip graphs edited by hand.
            continue
