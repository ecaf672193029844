"""A graph predictor that learns one more platform: a head for each graph network, errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import nni_latency.graphs._graph_transfer as transfer
from nni_latency.errors import InvalidValueError, listed
from nni_latency.graphs._examples import Examples
from nni_latency.graphs._graph_measurements import Measurements, spreads_of
from nni_latency.graphs._operator_trees import OperatorTrees, has_enough, learn_trees, timed

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
    found = type(predictor)(**predictor.get_params())
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


#: How trees of the platform come from what was measured of it.
Way = Callable[[Examples], OperatorTrees]


def _learned(
    predictor: GraphPredictor, data: Measurements, number: int | None, watch: Callable[[int, int], None] | None
) -> tuple[list[Any], OperatorTrees | None, Array]:
    """Return the graph networks with a head for the platform, its trees, and errors on what is held out, as logarithms.

    These errors say how strongly heads are held to what they start from, and which trees help.
    """
    examples = data.examples
    folds = transfer.folds_of(len(examples.graphs), np.random.default_rng(predictor.random_state))
    starts = [transfer.nearest_head(member, examples) for member in predictor.members_]
    alone = transfer.held_out_errors(predictor.members_[0], examples, starts[0], folds)
    ways = _ways_to_trees(predictor, examples)
    by_way = {name: _held_out(way, examples, folds) for name, way in ways.items()}
    errors = {(strength, ""): off for strength, off in alone.items()}
    errors |= {(strength, name): (off + by) / 2 for strength, off in alone.items() for name, by in by_way.items()}
    strength, name = min(errors, key=lambda choice: float(np.abs(errors[choice]).mean()))
    members = []
    for done, (member, start) in enumerate(zip(predictor.members_, starts, strict=True), 1):
        head = transfer.learn_head(transfer.KnownNetworks(member, examples), start, strength)
        members.append(transfer.with_head(member, head, number))
        if watch is not None:
            watch(done, predictor.n_members)
    return members, ways[name](examples) if name else None, errors[strength, name]


def _ways_to_trees(predictor: GraphPredictor, examples: Examples) -> dict[str, Way]:
    """Return the ways to trees of the platform that its networks may be enough for, by name."""
    seed = predictor.random_state
    found: dict[str, Way] = {}
    if len(examples.graphs) < _FEWEST_FOR_TREES:
        return found
    nearest = _nearest_trees(predictor, examples)
    if nearest is not None:
        found["moved"] = lambda known: nearest.moved(known, 0)
        if len(timed(examples, 0)) >= _FEWEST_FOR_TREES:
            found["continued"] = lambda known: nearest.continued(known, 0, seed)
    if has_enough(examples, 0):
        found["own"] = lambda known: learn_trees(known, 0, seed)
    return found


def _nearest_trees(predictor: GraphPredictor, examples: Examples) -> OperatorTrees | None:
    """Return the trees whose times are the most nearly proportional to those measured, if there are any."""

    def apart(trees: OperatorTrees) -> float:
        off = trees.latencies(examples.graphs) / examples.latencies[:, 0]
        return float(np.abs(np.log(off / np.median(off))).mean())

    return min((trees for trees in predictor.trees_ if trees is not None), key=apart, default=None)


def _held_out(way: Way, examples: Examples, folds: Sequence[Sequence[int]]) -> Array:
    """Return the errors of trees on networks that they have not seen, as logarithms."""
    errors = np.zeros(len(examples.graphs))
    for held in folds:
        unknown = examples.only(held)
        errors[held] = np.log(way(examples.without(held)).latencies(unknown.graphs) / unknown.latencies[:, 0])
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
