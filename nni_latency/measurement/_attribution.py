# SPDX-License-Identifier: Apache-2.0
"""Attribution of a run's time to the operators of the network: for tables and for estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.operators import Trace

#: A mark takes time itself; what it takes off an operator leaves this share of it at least.
_LEAST_LEFT = 0.1


@dataclass(frozen=True)
class CallMap:
    """Which calls of torch functions belong to which operator of a network. Immutable.

    Parameters
    ----------
    operators : tuple of str
        Keys of the operators, in order.
    ends : tuple of int
        Behind which call each of them ends. What follows the last operator belongs to it, and a view or a property to
        the operator that follows, so that the operators of a run add up to the run.
    """

    operators: tuple[str, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace) -> CallMap:
        """Take it from a trace."""
        ends = [item.last_call + 1 for item in trace.operators]
        return cls(tuple(item.op.op_key for item in trace.operators), (*ends[:-1], trace.n_calls) if ends else ())

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> CallMap:
        """Make it of plain values."""
        return cls(tuple(map(str, content["operators"])), tuple(map(int, content["ends"])))

    def content(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"operators": list(self.operators), "ends": list(self.ends)}

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Behind which call every operator ends, of shape (n_operators + 1,), beginning with 0."""
        return np.array([0, *self.ends])

    def times(self, call_times: ArrayLike) -> NDArray[np.float64]:
        """Add up the times of calls, (n_runs, n_calls) [s], by operator: (n_runs, n_operators) [s]."""
        times = np.asarray(call_times, dtype=np.float64)
        sums = np.concatenate([np.zeros((len(times), 1)), np.cumsum(times, axis=1)], axis=1)
        return np.diff(sums[:, self.bounds], axis=1)


@dataclass(frozen=True)
class NetworkCalls:
    """A network's operators by modules, and by single calls: what leaf modules of several calls are made of."""

    modules: CallMap
    graph: CallMap

    @classmethod
    def of(cls, modules: Trace, graph: Trace) -> NetworkCalls:
        """Take them from two traces of the same forward pass."""
        return cls(CallMap.of(modules), CallMap.of(graph))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> NetworkCalls:
        """Make them of plain values."""
        return cls(CallMap.read(content["modules"]), CallMap.read(content["graph"]))

    def content(self) -> dict[str, Any]:
        """Return them as plain values."""
        return {"modules": self.modules.content(), "graph": self.graph.content()}

    @property
    def n_calls(self) -> int:
        """Calls of torch functions in one run."""
        return max((0, *self.modules.ends[-1:], *self.graph.ends[-1:]))

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Keys of the operators by modules, then of those that only calls show."""
        return (*self.modules.operators, *(self.graph.operators[place] for place in self._inner))

    @cached_property
    def _inner(self) -> list[int]:
        known = set(self.modules.operators)
        return [place for place, key in enumerate(self.graph.operators) if key not in known]

    def attribute(
        self, call_times: ArrayLike, wholes: ArrayLike, whole: float, statistic: float
    ) -> NDArray[np.float64]:
        """Return what each of `operators` costs as the network runs without marks [s].

        What the marks cost is the difference of the marked and the unmarked runs in the median, spread evenly over the
        calls. Lower quartiles of parts add up to less than that of the whole, which one factor makes good.

        Parameters
        ----------
        call_times : array-like of shape (n_marked_runs, n_calls)
            Time of every call [s].
        wholes : array-like of shape (n_runs,)
            Time of every run without marks [s].
        whole : float
            Cost of the network [s], to which its operators by modules add up.
        statistic : float
            Quantile of the times, in (0, 1).
        """
        calls = np.asarray(call_times, dtype=np.float64)
        excess = float(np.median(calls.sum(1)) - np.median(np.asarray(wholes, dtype=np.float64)))
        mark = max(0.0, excess) / max(1, calls.shape[1])
        modules, graph = (_without_marks(item, calls, mark, statistic) for item in (self.modules, self.graph))
        costs: NDArray[np.float64] = whole / math.fsum(modules) * np.concatenate([modules, graph[self._inner]])
        return costs


def _without_marks(item: CallMap, calls: NDArray[np.float64], mark: float, statistic: float) -> NDArray[np.float64]:
    taken = np.quantile(item.times(calls), statistic, axis=0)
    return np.maximum(taken - mark * np.diff(item.bounds), np.maximum(_LEAST_LEFT * taken, 1e-12))
