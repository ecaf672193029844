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

from nni_latency.operators import Trace, neighbours_of, parse_op_keys

#: Least share of an operator's time that is left after the overhead of its marks is subtracted.
_LEAST_LEFT = 0.1


@dataclass(frozen=True)
class CallMap:
    """Mapping of the calls of torch functions in a run to the operators of a network. Immutable.

    Parameters
    ----------
    operators : tuple of str
        Keys of the operators, in order.
    ends : tuple of int
        Number of calls until each operator ends. Calls after the last operator count as part of it, views and
        properties as part of the operator that follows, so that the operators add up to the run.
    after : tuple of tuple of int or None, default=None
        Index of the operator behind each tensor that an operator reads; None if it was not recorded.
    """

    operators: tuple[str, ...]
    ends: tuple[int, ...]
    after: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, trace: Trace) -> CallMap:
        """Build the mapping of a trace."""
        ends = [item.last_call + 1 for item in trace.operators]
        return cls(
            tuple(item.op.op_key for item in trace.operators),
            (*ends[:-1], trace.n_calls) if ends else (),
            tuple(item.reads for item in trace.operators),
        )

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> CallMap:
        """Read the mapping from the plain values of `content`."""
        after = content.get("after")
        return cls(
            tuple(map(str, content["operators"])),
            tuple(map(int, content["ends"])),
            None if after is None else tuple(tuple(map(int, places)) for places in after),
        )

    def content(self) -> dict[str, Any]:
        """Return plain values for a store."""
        after = {} if self.after is None else {"after": list(map(list, self.after))}
        return {"operators": list(self.operators), "ends": list(self.ends), **after}

    @cached_property
    def neighbours(self) -> list[tuple[str, ...]] | None:
        """Neighbours of every operator, see `nni_latency.operators.neighbours_of`; None if they were not recorded."""
        if self.after is None:
            return None
        kinds = {key: parse_op_keys(key)[0] for key in set(self.operators)}
        return neighbours_of([kinds[key] for key in self.operators], self.after)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Number of calls until each operator ends, (n_operators + 1,); begins with 0."""
        return np.array([0, *self.ends])

    def times(self, call_times: ArrayLike) -> NDArray[np.float64]:
        """Add up the times of calls, (n_runs, n_calls) [s], by operator: (n_runs, n_operators) [s]."""
        times = np.asarray(call_times, dtype=np.float64)
        sums = np.concatenate([np.zeros((len(times), 1)), np.cumsum(times, axis=1)], axis=1)
        return np.diff(sums[:, self.bounds], axis=1)


@dataclass(frozen=True)
class NetworkCalls:
    """Operators of a network by modules, and by single calls, which resolve leaf modules of several calls."""

    modules: CallMap
    graph: CallMap

    @classmethod
    def of(cls, modules: Trace, graph: Trace) -> NetworkCalls:
        """Build the mappings of two traces of the same forward pass."""
        return cls(CallMap.of(modules), CallMap.of(graph))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> NetworkCalls:
        """Read the mappings from the plain values of `content`."""
        return cls(CallMap.read(content["modules"]), CallMap.read(content["graph"]))

    def content(self) -> dict[str, Any]:
        """Return plain values for a store."""
        return {"modules": self.modules.content(), "graph": self.graph.content()}

    @property
    def n_calls(self) -> int:
        """Number of calls of torch functions in one run."""
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
        """Return the cost of each of `operators` in a run without marks [s].

        The overhead of the marks is the difference between the medians of marked and unmarked runs, spread evenly over
        the calls. Lower quartiles of parts add up to less than that of the whole; a common factor corrects this.

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
