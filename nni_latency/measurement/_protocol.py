"""`Protocol`: how a measurement is taken, as one frozen record that every result carries."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError


@dataclass(frozen=True)
class Protocol:
    """How a measurement is taken. Immutable.

    The first four names are those of the latency estimators of nnabla-nas.

    Parameters
    ----------
    n_warmup : int, default=1
        Untimed runs before the timed ones, each time a network is visited.
    n_run : int, default=1
        Timed runs each time a network is visited: so many with a mark between the layers, and as many without.
    outlier : float, default=0.05
        Share of the samples dropped at each end before anything is computed of them, in [0, 0.5).
    max_measure_execution_time : float, default=10.0
        Longest time spent on the timed runs of one visit [s]; at least one is always taken.
    rounds : int, default=1000
        Most rounds over all candidates; the time budget usually ends the work earlier.
    threads : int, default=1
        Threads that compute one network.
    time_budget : float, default=50.0
        Most time spent measuring a table [s]; a round that has begun is finished.
    half_width : float, default=0.02
        How narrow the interval of an entry has to become, as half its width over its value. When all are, measuring
        ends before the budget is spent; 0 spends the whole budget.
    processes : int, default=3
        Worker processes that share the rounds, one after another. Where a process places weights and activations in
        memory makes a layer a few per cent faster or slower for as long as it lives. There are fewer where the budget
        leaves less than five seconds to each.
    timeout : float, default=120.0
        Longest time that a candidate may take to load or a network to be visited [s]; what takes longer hangs, and is
        recorded as failed.
    statistic : float, default=0.25
        The quantile of the kept samples that becomes the value. The lower quartile throws off the
        interference of other processes, which only ever adds time.
    confidence : float, default=0.95
        Level of the interval from `low` to `high`.
    seed : int, default=0
        Seed of the order of the networks in the rounds.

    Raises
    ------
    InvalidValueError
        If a value is outside its range.

    Examples
    --------
    >>> Protocol(time_budget=20).time_budget
    20.0
    """

    n_warmup: int = 1
    n_run: int = 1
    outlier: float = 0.05
    max_measure_execution_time: float = 10.0
    rounds: int = 1000
    threads: int = 1
    time_budget: float = 50.0
    half_width: float = 0.02
    processes: int = 3
    timeout: float = 120.0
    statistic: float = 0.25
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in {"n_warmup": 0, "n_run": 1, "rounds": 1, "threads": 1, "processes": 1, "seed": 0}.items():
            self._check_int(name, low)
        self._check_float("outlier", 0.0, 0.5, open_left=False)
        self._check_float("statistic", 0.0, 1.0)
        self._check_float("confidence", 0.0, 1.0)
        self._check_float("time_budget", 0.0, math.inf)
        self._check_float("half_width", 0.0, 1.0, open_left=False)
        self._check_float("timeout", 0.0, math.inf)
        self._check_float("max_measure_execution_time", 0.0, math.inf)

    def _check_int(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InvalidValueError(f"The {name!r} of a Protocol must be an int >= {low}. Got {value!r}.")

    def _check_float(self, name: str, low: float, high: float, *, open_left: bool = True) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low < value if open_left else low <= value) or not value < high:
            bracket = "(" if open_left else "["
            raise InvalidValueError(
                f"The {name!r} of a Protocol must be a number in {bracket}{low:g}, {high:g}). Got {value!r}."
            )
        object.__setattr__(self, name, float(value))

    def check_threads(self, threads: int) -> None:
        """Raise `MismatchError` if a runtime computes with another number of threads."""
        if threads != self.threads:
            raise MismatchError(
                f"The 'threads' must agree: the runtime has {threads}, the protocol says {self.threads}."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)

    def differences(self, other: Protocol, *, ignore: tuple[str, ...] = ()) -> list[str]:
        """Say in words which fields differ; those in `ignore` are passed over."""
        return [
            f"{field.name}: {getattr(self, field.name)} against {getattr(other, field.name)}"
            for field in fields(self)
            if field.name not in ignore and getattr(self, field.name) != getattr(other, field.name)
        ]
