"""`likeliest_sample`: what a differentiable search stands for, within a range of costs."""

from __future__ import annotations

from typing import Any

import torch

from nni_latency.errors import MismatchError
from nni_latency.estimators import likeliest_within
from nni_latency.nas._penalty import architecture_logits
from nni_latency.nas._profiler import LatencyProfiler


def likeliest_sample(
    profiler: LatencyProfiler,
    max: float,  # noqa: A002
    min: float = 0.0,  # noqa: A002
) -> dict[str, Any]:
    """Return the most probable network of a supernet that has been searched, of all that cost at most `max`.

    What DARTS and GumbelDARTS export takes the most probable choice of every label, and Proxyless draws at random:
    neither asks what it costs. A penalty makes the mean network cheap, and this finds the one that keeps the limit, by
    exact search (see `likeliest_within`).

    Parameters
    ----------
    profiler : LatencyProfiler
        Made with the very space object that was searched.
    max : float
        Highest cost, in the SI unit of the metric.
    min : float, default=0.0
        Lowest cost wanted; given up where no network lies between.

    Returns
    -------
    dict
        The sample, ``{label: choice}``; a space of the same class freezes it.

    Raises
    ------
    MismatchError
        If the profiler's space is not a supernet with architecture parameters.
    UnreachableTargetError
        If no network is that cheap.

    Examples
    --------
    >>> experiment.run()                                                                       # doctest: +SKIP
    >>> best = likeliest_sample(profiler, max=0.002)                                           # doctest: +SKIP
    """
    logits = architecture_logits(profiler.space)
    lacking = [label for label in profiler.cost.costs if label not in logits]
    if lacking:
        raise MismatchError(
            f"The space of the profiler has no architecture parameters for {', '.join(lacking[:5])}: it is not the one "
            "that was searched, or not by a differentiable strategy."
        )
    with torch.no_grad():
        scores = [torch.log_softmax(logits[label]().double(), -1).tolist() for label in profiler.cost.costs]
    return likeliest_within(profiler.cost, scores, max, floor=min)
