"""`LatencyFilter`: what may be tried, by its cost, for multi-trial and for one-shot strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.nas._nni import Profiler, RangeProfilerFilter
from nni_latency.nas._space_cost import warn_of_loose_limit
from nni_latency.units import format_metric, with_article


class LatencyFilter(RangeProfilerFilter):
    """Let through only what costs at least `min` and at most `max`.

    It is a `RangeProfilerFilter` of NNI that also takes models. NNI's middleware `Filter` hands over the model that was
    submitted, its one-shot strategies hand over the sample, and NNI's own filter knows samples alone: inside a `Filter`
    it raises a TypeError at the first model. A range that no network of the space reaches is refused here, before a
    strategy tries a thousand networks and ends without a result.

    Parameters
    ----------
    profiler : Profiler
        A `LatencyProfiler`, or any other profiler of NNI.
    max : float, optional
        Highest cost, in the SI unit of the profiler's metric.
    min : float, optional
        Lowest cost. One of the two must be given.

    Raises
    ------
    InvalidValueError
        If neither is given, one is no finite number, or `min` is above `max`.
    UnreachableTargetError
        If no network of the space costs that much, or that little.

    Examples
    --------
    >>> from nni.nas.strategy import Random                                                    # doctest: +SKIP
    >>> from nni.nas.strategy.middleware import Chain, Filter                                  # doctest: +SKIP
    >>> strategy = Chain(Random(), Filter(LatencyFilter(profiler, max=0.012)))                 # doctest: +SKIP
    """

    def __init__(self, profiler: Profiler, max: float | None = None, min: float | None = None) -> None:  # noqa: A002
        if max is None and min is None:
            raise InvalidValueError("LatencyFilter needs a highest cost 'max', a lowest 'min', or both. Got neither.")
        for name, bound in (("max", max), ("min", min)):
            if bound is not None and not (_is_number(bound) and math.isfinite(bound)):
                raise InvalidValueError(f"The {name!r} of LatencyFilter must be a finite number. Got {bound!r}.")
        if max is not None and min is not None and min > max:
            raise InvalidValueError(f"The 'min' of LatencyFilter must be at most 'max'. Got {min!r} and {max!r}.")
        super().__init__(profiler, min=min, max=max)
        _check_range(profiler, min, max)

    def __call__(self, candidate: Any) -> bool:
        """Tell whether a sample, or a model that was frozen with one, may pass.

        Raises
        ------
        InvalidValueError
            If it is neither.
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        """
        return bool(self.filter(sample_of(candidate)))


def sample_of(candidate: Any) -> Mapping[str, Any]:
    """Return the sample of what a strategy hands over: the sample itself, or a model that was frozen with it.

    Raises
    ------
    InvalidValueError
        If it is neither, or the model has not been frozen.
    """
    if isinstance(candidate, Mapping):
        return candidate
    sample = getattr(candidate, "sample", None)
    if not isinstance(sample, Mapping):
        raise InvalidValueError(
            "A candidate must be a sample, or a model that a strategy froze with one (model formats 'raw' and "
            f"'simplified'). Got {type(candidate).__name__}."
        )
    return sample


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_range(profiler: Any, low: float | None, high: float | None) -> None:
    """Raise `UnreachableTargetError` if nothing is between the bounds, and warn if everything is, where it is known."""
    cost: Any = getattr(profiler, "cost", None)
    if cost is None or not hasattr(cost, "range"):
        return
    cheapest, costliest = cost.range
    if (high is not None and high < cheapest) or (low is not None and low > costliest):
        asked = " and ".join(
            f"{words} {format_metric(bound, cost.metric)}"
            for words, bound in (("at least", low), ("at most", high))
            if bound is not None
        )
        raise UnreachableTargetError(
            f"No network of the space has {with_article(cost.metric)} of {asked}. Reachable is "
            f"{format_metric(cheapest, cost.metric)} to {format_metric(costliest, cost.metric)}."
        )
    if low is None or low <= cheapest:
        warn_of_loose_limit(cost, high)
