"""A graph predictor that learns one more platform: a head for each graph network, errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

import nni_latency.graphs._graph_transfer as transfer
from nni_latency.errors import InvalidValueError, listed
from nni_latency.graphs._graph_learning import Examples
from nni_latency.graphs._graph_measurements import Measurements, spreads_of
from nni_latency.graphs._operator_trees import OperatorTrees, learn_trees

if TYPE_CHECKING:
    from nni_latency.graphs._graph_predictor import GraphPredictor

Array = NDArray[np.float64]

#: Networks that a platform is learned from at least, and from which it may take over trees: fewer do not tell whether
#: they help.
_FEWEST, _FEWEST_FOR_TREES = 5, 16


def add_platform(
    predictor: GraphPredictor, data: Measurements, watch: Callable[[int, int], None] | None
) -> GraphPredictor:
    """Return a predictor that knows one more platform, or one of its platforms anew; see `GraphPredictor.adapt`.

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
    ids = [item.id for item in predictor.platforms_]
    place = ids.index(platform.id) if platform.id in ids else len(ids)
    found: GraphPredictor = clone(predictor)
    found.members_, trees, errors = _learned(predictor, data, place if place < len(ids) else None, watch)
    found.trees_ = _put(predictor.trees_, place, trees)
    spread = spreads_of(errors[:, None], data.family_of, predictor.confidence)[0]
    found.platforms_ = _put(predictor.platforms_, place, platform)
    found.spreads_ = np.array(_put(tuple(predictor.spreads_), place, spread * (1 + 1 / math.sqrt(len(latencies)))))
    found.counts_ = np.array(_put(tuple(predictor.counts_), place, len(latencies)))
    found.held_out_ = _with_rows(predictor.held_out_, place, errors)
    found.latencies_ = _with_rows(predictor.latencies_, place, latencies)
    found.unmeasured_spread_, found.epochs_ = predictor.unmeasured_spread_, predictor.epochs_
    found.families_ = tuple(sorted({*predictor.families_, *data.families}))
    found.kinds_ = tuple(sorted({*predictor.kinds_, *data.kinds}))
    return found


def _learned(
    predictor: GraphPredictor, data: Measurements, number: int | None, watch: Callable[[int, int], None] | None
) -> tuple[list[Any], OperatorTrees | None, Array]:
    """Return the graph networks with a head for the platform, its trees, and errors on what is held out, as logarithms.

    These errors say how strongly heads are held to what they start from, and whether trees of another platform help.
    """
    graphs, latencies = data.examples.graphs, data.examples.latencies[:, 0]
    folds = transfer.folds_of(len(latencies), np.random.default_rng(predictor.random_state))
    own = learn_trees(data.examples, 0, predictor.random_state)
    nearest = _nearest_trees(predictor, data.examples) if own is None and len(graphs) >= _FEWEST_FOR_TREES else None
    members = []
    for done, member in enumerate(predictor.members_, 1):
        known = transfer.KnownNetworks(member, graphs)
        start = transfer.nearest_head(member, graphs, latencies)
        if done == 1:
            alone = transfer.held_out_errors(known, latencies, start, folds)
            ways = {(strength, False): off for strength, off in alone.items()}
            if nearest is not None:
                moved = _moved_errors(nearest, data.examples, folds)
                ways |= {(strength, True): (off + moved) / 2 for strength, off in alone.items()}
            strength, takes_trees = min(ways, key=lambda way: float(np.abs(ways[way]).mean()))
        members.append(transfer.with_head(member, transfer.learn_head(known, latencies, start, strength), number))
        if watch is not None:
            watch(done, predictor.n_members)
    trees = nearest.moved(data.examples, 0) if nearest is not None and takes_trees else own
    return members, trees, ways[strength, takes_trees]


def _nearest_trees(predictor: GraphPredictor, examples: Examples) -> OperatorTrees | None:
    """Return the trees whose times are the most nearly proportional to those measured, if there are any."""

    def apart(trees: OperatorTrees) -> float:
        off = trees.latencies(examples.graphs) / examples.latencies[:, 0]
        return float(np.abs(np.log(off / np.median(off))).mean())

    return min((trees for trees in predictor.trees_ if trees is not None), key=apart, default=None)


def _moved_errors(trees: OperatorTrees, examples: Examples, folds: Sequence[Sequence[int]]) -> Array:
    """Return the errors of trees of another platform on networks that their rates were not fitted to, as logarithms."""
    errors = np.zeros(len(examples.graphs))
    for held in folds:
        unknown = examples.only(held)
        moved = trees.moved(examples.without(held), 0)
        errors[held] = np.log(moved.latencies(unknown.graphs) / unknown.latencies[:, 0])
    return errors


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
