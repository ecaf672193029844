"""Predictors that learn from what a database gets to know: a new version answers only if it is no worse."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from nni_latency.database import (
    DatabaseStore,
    PredictorVersion,
    add_predictor,
    count_stored,
    measured_graphs,
    predictor_content,
    predictor_versions,
)
from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.graphs import GraphPredictor, MeasuredNetwork

#: One network in so many is held out.
HELD_OUT = 5

#: Groups of networks that a predictor holds out in turn, to tell how unsure it is.
_GROUPS = 5

#: Networks that are held out at least before versions are compared.
_FEWEST = 3

#: The name of the predictor of a database, unless it has another.
EVOLVING = "evolving"


@dataclass(frozen=True)
class Evolution:
    """What became of an attempt to make a better predictor. Immutable.

    Parameters
    ----------
    reason : str
        What was done, or why nothing was, as a sentence.
    version : PredictorVersion, optional
        The new version; None if none was fitted.
    before : float, optional
        Error of the current version on the same networks, as a ratio.
    """

    reason: str
    version: PredictorVersion | None = None
    before: float | None = None


def known_networks(store: DatabaseStore) -> list[MeasuredNetwork]:
    """Return the networks that were measured alone and whose graphs are kept, as predictors learn from them.

    Parameters
    ----------
    store : DatabaseStore
        Where they are; what queries measure is kept with its graph.
    """
    return list(_known(store))


def is_held_out(name: str) -> bool:
    """Whether no version learns from a network: one in five, by its key, for ever.

    >>> sum(is_held_out(f"{number:032x}") for number in range(1000))
    195
    """
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT == 0


def evolve(
    store: DatabaseStore,
    *,
    name: str = EVOLVING,
    at_least: int = 20,
    make: Callable[[], GraphPredictor] = GraphPredictor,
    watch: Callable[[int, int], None] | None = None,
) -> Evolution:
    """Fit a new version of a predictor if there is enough to learn, and let it answer if it is no worse.

    One network in five, by its key, is never learned from. The new version and the current one are held to those of
    them that are known by now; every version is kept, with its errors.

    Parameters
    ----------
    store : DatabaseStore
        What is learned from, and where versions are kept.
    name : str
        Of the predictor.
    at_least : int, default=20
        Latencies that must have been added since the last version.
    make : callable
        Makes a predictor that is not fitted.
    watch : callable, optional
        As for `GraphPredictor.fit`.

    Raises
    ------
    OutputError
        If the version cannot be kept.
    """
    networks = known_networks(store)
    learned = [item for item in networks if not is_held_out(item.name)]
    held_out = [item for item in networks if is_held_out(item.name)]
    versions = predictor_versions(store.database, name)
    new = len(learned) - max((item.n_networks for item in versions), default=0)
    if new < at_least:
        return Evolution(f"{new} latencies are new, and {at_least} are needed for another version.")
    if len(held_out) < _FEWEST:
        return Evolution(f"{len(held_out)} networks are held out, and {_FEWEST} are needed to compare versions.")
    predictor = make()
    try:
        predictor.fit(learned, watch)
    except InvalidValueError as error:
        return Evolution(f"Nothing was fitted: {error}")
    return _compare(store, name, predictor, learned, held_out)


def load_current(store: DatabaseStore, name: str = EVOLVING) -> GraphPredictor | None:
    """Return the version of a predictor that answers; None if there is none."""
    found = next((item for item in predictor_versions(store.database, name) if item.is_current), None)
    return None if found is None else load_version(store, found.number)


def load_version(store: DatabaseStore, number: int) -> GraphPredictor:
    """Return a version of a predictor.

    Raises
    ------
    UnknownNameError
        If there is no such version.
    FileFormatError
        If its file is damaged.
    """
    content = predictor_content(store.database, number)
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        path = Path(folder) / "predictor.safetensors"
        path.write_bytes(content)
        return GraphPredictor.load(path)


def errors_on(predictor: GraphPredictor, networks: Sequence[MeasuredNetwork]) -> dict[str, float]:
    """Return the mean absolute percentage errors of a predictor, as ratios: by platform, and ``all``.

    A network on a platform that the predictor does not know counts as wholly wrong.
    """
    known = {platform.id for platform in predictor.platforms_}
    errors: dict[str, list[float]] = {}
    for item in networks:
        place = item.platform.id
        predicted = predictor.estimate(item.graph)[place].value if place in known else 0.0
        errors.setdefault(place, []).append(abs(predicted / item.latency - 1))
    everything = [error for found in errors.values() for error in found]
    return {name: float(np.mean(found)) for name, found in {**errors, "all": everything}.items() if found}


def _group(name: str) -> str:
    # Of another byte than whether it is held out, or those that are not would be in fewer groups.
    return f"group {hashlib.sha256(name.encode()).digest()[1] % _GROUPS}"


def _compare(
    store: DatabaseStore,
    name: str,
    predictor: GraphPredictor,
    learned: Sequence[MeasuredNetwork],
    held_out: Sequence[MeasuredNetwork],
) -> Evolution:
    errors = errors_on(predictor, held_out)
    current = load_current(store, name)
    before = None if current is None else errors_on(current, held_out)["all"]
    is_better = before is None or errors["all"] <= before
    if before is not None:
        errors["before"] = before
    remark = "" if is_better else f"It was off by {errors['all']:.1%}, and the version before by {before:.1%}."
    version = PredictorVersion(
        name,
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
    version = add_predictor(store.database, version, _content_of(predictor))
    reason = "It answers from now on." if is_better else f"It was not taken: {remark}"
    return Evolution(f"Version {version.number} has learned from {len(learned)} latencies. {reason}", version, before)


def _content_of(predictor: GraphPredictor) -> bytes:
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        return predictor.save(Path(folder) / "predictor.safetensors").read_bytes()


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
