# SPDX-License-Identifier: Apache-2.0
"""Which networks of a space to measure, so that they hold most of what any of its networks computes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.estimators import nominal_time
from nni_latency.operators import Trace, freeze_inputs, trace_both
from nni_latency.spaces._finding import reference_of
from nni_latency.spaces._networks import example_inputs_of, network_of
from nni_latency.spaces._samples import Sample, draw_samples
from nni_latency.spaces._space_key import cached, space_key
from nni_latency.tables import OperatorPlan, PlannedNetwork, sample_text

#: Networks that are measured unless another number is asked for.
N_NETWORKS = 30

#: How many are drawn for each that is measured.
_DRAWN = 1.5

#: Out of this many networks one is among the lightest that were drawn.
_LIGHT = 10

_Progress = Callable[[float], None]


def operator_plan(
    space: Any,
    *,
    n_networks: int = N_NETWORKS,
    batch_size: int = 1,
    input_size: int | None = None,
    seed: int = 0,
    on_progress: _Progress = lambda _share: None,
) -> OperatorPlan:
    """Choose the networks of a space that a table of its operators is measured with.

    Random networks are drawn and traced. Half of those that are measured are the first ones drawn, so that networks of
    all sizes are among them, and a tenth the lightest. The others are chosen, one after another, by how much they add
    to what is covered: an operator counts by the time that it may take in the networks drawn, and for less the more
    often it is covered already, so that common operators are met in several networks.

    Parameters
    ----------
    space : ModelSpace
        Any space.
    n_networks : int, default=30
        How many networks are measured. A small space may have fewer.
    batch_size : int, default=1
        Images.
    input_size : int, optional
        Input image size [pixel]; see `example_inputs_of`.
    seed : int, default=0
        Seed of what is drawn.
    on_progress : callable, optional
        Called with the share of the work that is done, in [0, 1].

    Returns
    -------
    OperatorPlan

    Raises
    ------
    InvalidValueError
        If `n_networks` is not positive, the space has no valid sample, or none of its networks can be traced.
    """
    if n_networks < 1:
        raise InvalidValueError(f"The number of networks must be >= 1. Got {n_networks}.")
    inputs = example_inputs_of(space, batch_size, input_size)
    samples = draw_samples(space, math.ceil(_DRAWN * n_networks), seed)
    drawn = _trace_all(space, samples, inputs, on_progress)
    chosen = _choose([_weights(network.trace) for network in drawn], n_networks)
    networks = tuple(drawn[place] for place in chosen)
    left = [network.trace for place, network in enumerate(drawn) if place not in chosen]
    return OperatorPlan(reference_of(space), tuple(inputs.shape), networks, _coverage(networks, left))


def _trace_all(
    space: Any, samples: Sequence[Sample], inputs: torch.Tensor, on_progress: _Progress
) -> list[PlannedNetwork]:
    """Trace every network that can be built, by modules and by graph; it is an error if none can."""
    drawn: list[PlannedNetwork] = []
    reason: Exception | None = None
    key = space_key(space, freeze_inputs(inputs))
    for index, sample in enumerate(samples):
        build = network_of(space, sample)
        try:
            traces = cached("traces", key and f"{key} {sample_text(sample)}", partial(_trace, build, inputs))
            drawn.append(PlannedNetwork(sample, build, *traces))
        except Exception as error:  # user code may raise anything
            reason = error
        on_progress((index + 1) / len(samples))
    if drawn:
        return drawn
    if isinstance(reason, LatencyError):
        raise reason
    assert reason is not None, "samples are drawn, or an error is raised"
    raise InvalidValueError(f"No network of {type(space).__name__} can be built: {reason_of(reason)}") from reason


def _trace(build: Callable[[], Any], inputs: torch.Tensor) -> tuple[Trace, Trace]:
    return trace_both(build(), inputs)


def _weights(traced: Trace) -> dict[str, float]:
    """Return the nominal time of every operator in a network, over all its places."""
    found: dict[str, float] = {}
    for item in traced.operators:
        found[item.op.op_key] = found.get(item.op.op_key, 0.0) + nominal_time(item.op)
    return found


def _choose(networks: Sequence[Mapping[str, float]], count: int) -> list[int]:
    """Choose half of the networks as they were drawn, in that order, then the lightest ones, and the others greedily.

    Those that add most are large. Small ones, which find their data in the cache, have to be among them as well.
    """
    totals: dict[str, float] = {}
    for weights in networks:
        for key, weight in weights.items():
            totals[key] = totals.get(key, 0.0) + weight
    chosen = list(range(min(len(networks), -(-count // 2))))
    left = sorted(range(len(chosen), len(networks)), key=lambda place: sum(networks[place].values()))
    n_light = min(len(left), count // _LIGHT)
    chosen, left = chosen + left[:n_light], left[n_light:]
    seen = Counter(key for place in chosen for key in networks[place])
    while left and len(chosen) < count:
        gains = {place: sum(totals[key] / (1 + seen[key]) ** 2 for key in networks[place]) for place in left}
        best = max(left, key=lambda place: gains[place])
        left.remove(best)
        chosen.append(best)
        seen.update(networks[best].keys())
    return chosen


def _coverage(networks: Sequence[PlannedNetwork], others: Sequence[Trace]) -> float:
    """Return the share of operators of other networks that are covered; 1 where there are no others."""
    known = {key for network in networks for key in network.op_keys}
    keys = [item.op.op_key for other in others for item in other.operators]
    return sum(key in known for key in keys) / len(keys) if keys else 1.0
