"""A graph predictor that learns one more platform: a head for each graph network, errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nni_latency.graphs._graph_transfer as transfer
from nni_latency.errors import InvalidValueError, listed
from nni_latency.graphs._examples import Examples
from nni_latency.graphs._graph_measurements import Measurements, spreads_of
from nni_latency.graphs._learned_graphs import LearnedGraphs
from nni_latency.graphs._operator_trees import OperatorTrees, has_enough, learn_trees, timed
from nni_latency.regression import Rows, draw_folds, held_out

Array = NDArray[np.float64]

#: Parts that networks are divided into, to predict each by the others.
_FOLDS = 5

#: Networks that a platform is learned from at least, and from which it may take over trees: fewer do not tell whether
#: they help.
_FEWEST, _FEWEST_FOR_TREES = 5, 16


def add_platform(
    known: LearnedGraphs, data: Measurements, confidence: float, seed: int, watch: Callable[[int, int], None] | None
) -> LearnedGraphs:
    """Return what is known with one more platform, or one of its platforms anew; see `GraphPredictor.adapt`.

    Raises
    ------
    InvalidValueError
        If there are fewer than 5 networks, or they were measured on several platforms.
    """
    if len(data.platforms) > 1:
        names = listed(platform.id for platform in data.platforms)
        raise InvalidValueError(f"One platform is added at a time. Got networks measured on {names}.")
    if len(data.examples.graphs) < _FEWEST:
        raise InvalidValueError(
            f"A platform is learned from at least {_FEWEST} networks. Got {len(data.examples.graphs)}."
        )
    platform, latencies = data.platforms[0], data.examples.latencies[:, 0]
    ids = [item.id for item in known.platforms]
    place = ids.index(platform.id) if platform.id in ids else len(ids)
    members, trees, errors = _learned(known, data, place if place < len(ids) else None, seed, watch)
    spread = spreads_of(errors[:, None], data.family_of, confidence)[0] * (1 + 1 / math.sqrt(len(latencies)))
    return LearnedGraphs(
        platforms=_put(known.platforms, place, platform),
        members=members,
        trees=_put(known.trees, place, trees),
        epochs=known.epochs,
        spreads=np.array(_put(tuple(known.spreads), place, spread)),
        held_out=_with_rows(known.held_out, place, errors),
        latencies=_with_rows(known.latencies, place, latencies),
        unmeasured_spread=known.unmeasured_spread,
        counts=np.array(_put(tuple(known.counts), place, len(latencies))),
        families=tuple(sorted({*known.families, *data.families})),
        kinds=tuple(sorted({*known.kinds, *data.kinds})),
    )


#: How trees of the platform come from what was measured of it.
Way = Callable[[Examples], OperatorTrees]


def _learned(
    known: LearnedGraphs, data: Measurements, number: int | None, seed: int, watch: Callable[[int, int], None] | None
) -> tuple[list[Any], OperatorTrees | None, Array]:
    """Return the graph networks with a head for the platform, its trees, and errors on what is held out, as logarithms.

    These errors say how strongly heads are held to what they start from, and which trees help.
    """
    examples = data.examples
    folds = draw_folds(range(len(examples.graphs)), _FOLDS, seed)
    starts = [transfer.nearest_head(member, examples) for member in known.members]
    alone = transfer.held_out_errors(known.members[0], examples, starts[0], [fold.tolist() for fold in folds])
    ways = _ways_to_trees(known, examples, seed)
    by_way = {name: _held_out(way, examples, folds) for name, way in ways.items()}
    errors = {(strength, ""): off for strength, off in alone.items()}
    errors |= {(strength, name): (off + by) / 2 for strength, off in alone.items() for name, by in by_way.items()}
    strength, name = min(errors, key=lambda choice: float(np.abs(errors[choice]).mean()))
    members = []
    for done, (member, start) in enumerate(zip(known.members, starts, strict=True), 1):
        head = transfer.learn_head(transfer.KnownNetworks(member, examples), start, strength)
        members.append(transfer.with_head(member, head, number))
        if watch is not None:
            watch(done, len(known.members))
    return members, ways[name](examples) if name else None, errors[strength, name]


def _ways_to_trees(known: LearnedGraphs, examples: Examples, seed: int) -> dict[str, Way]:
    """Return the ways to trees of the platform that its networks may be enough for, by name."""
    found: dict[str, Way] = {}
    if len(examples.graphs) < _FEWEST_FOR_TREES:
        return found
    nearest = _nearest_trees(known, examples)
    if nearest is not None:
        found["moved"] = lambda some: nearest.moved(some, 0)
        if len(timed(examples, 0)) >= _FEWEST_FOR_TREES:
            found["continued"] = lambda some: nearest.continued(some, 0, seed)
    if has_enough(examples, 0):
        found["own"] = lambda some: learn_trees(some, 0, seed)
    return found


def _nearest_trees(known: LearnedGraphs, examples: Examples) -> OperatorTrees | None:
    """Return the trees whose times are the most nearly proportional to those measured, if there are any."""

    def apart(trees: OperatorTrees) -> float:
        off = trees.latencies(examples.graphs) / examples.latencies[:, 0]
        return float(np.abs(np.log(off / np.median(off))).mean())

    return min((trees for trees in known.trees if trees is not None), key=apart, default=None)


def _held_out(way: Way, examples: Examples, folds: Sequence[Rows]) -> Array:
    """Return the errors of trees on networks that they have not seen, as logarithms."""

    def fit(known: Rows) -> Callable[[Rows], Array]:
        trees = way(examples.only(known.tolist()))
        return lambda unknown: trees.latencies([examples.graphs[number] for number in unknown])

    return np.asarray(np.log(held_out(len(examples.graphs), folds, fit) / examples.latencies[:, 0]))


def _put(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    """Return items with another one at a place, or at the end."""
    return (*items[:place], item, *items[place + 1 :])


def _with_rows(known: Array, place: int, column: Array) -> Array:
    """Return numbers by network and platform with more networks, of one platform alone, which has no others then."""
    rows, columns = known.shape
    found = np.full((rows + len(column), max(columns, place + 1)), np.nan)
    found[:rows, :columns] = known
    found[:rows, place] = np.nan
    found[rows:, place] = column
    return found
