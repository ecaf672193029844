"""What the estimators share that measure what nobody has measured before: runtime, protocol and memo."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.estimators._base import Estimate, Estimator
from nni_latency.measurement import (
    CandidateError,
    NetworkVisits,
    Protocol,
    quantile,
    visit_networks,
)
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import (
    By,
    Trace,
    TracingWarning,
    trace,
)
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables import CachedCost, NetworkRuns, OperatorMemo, default_memo_path

#: How estimators measure without being told: three processes, at most eight visits of three runs each.
ON_DEMAND = Protocol(n_warmup=1, n_run=3, rounds=24, time_budget=20.0)

#: Where measurements are kept: a memo, the path of one, "default" for the user's cache, None for memory alone.
MemoSource = OperatorMemo | str | os.PathLike[str] | None

#: Shape of what a bench gives to a network that brings its own inputs.
ANY_SHAPE = (1,)


@dataclass(frozen=True)
class TracedNetwork:
    """A network that is asked about."""

    model: Any
    inputs: Any
    by: By
    trace: Trace

    @property
    def name(self) -> str:
        """Name of its class."""
        return type(self.model).__name__

    @cached_property
    def digest(self) -> str:
        """What tells it from others: its operators in order, and whence each takes its inputs."""
        found = self.trace if self.by == "graph" else self._graph
        lines = [f"{item.op.op_key}<{','.join(map(str, item.sources))}" for item in found.operators]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]

    @property
    def _graph(self) -> Trace:
        with warnings.catch_warnings():
            # Whoever traced it before has said so.
            warnings.simplefilter("ignore", TracingWarning)
            return trace(self.model, self.inputs, by="graph")


class MeasuringEstimator(Estimator):
    """What measures on demand: base of `ModuleEstimator`, `GraphEstimator` and `MeasuredNetworkEstimator`."""

    metric = "latency"
    #: How networks are traced.
    by: By = "graph"

    def __init__(
        self, *, runtime: Runtime | None = None, protocol: Protocol | None = None, memo: MemoSource = "default"
    ) -> None:
        self.runtime = runtime
        self.protocol = protocol
        self.memo = memo

    def __repr__(self) -> str:
        return f"{type(self).__name__}(latency on {self.platform.id})"

    @property
    def platform(self) -> Platform:  # type: ignore[override]
        """Where it measures."""
        return self._runtime.platform

    @cached_property
    def _runtime(self) -> Runtime:
        return TorchEager() if self.runtime is None else self.runtime

    @cached_property
    def _protocol(self) -> Protocol:
        return replace(self.protocol or ON_DEMAND, threads=self.platform.threads)

    @cached_property
    def _memo(self) -> OperatorMemo:
        if isinstance(self.memo, OperatorMemo):
            check_same_platform(self.memo.platform, self.platform, f"Measuring for {self.memo!r}")
            return self.memo
        if self.memo is not None and not isinstance(self.memo, (str, os.PathLike)):
            raise InvalidValueError(
                "The 'memo' must be an OperatorMemo, the path of one, 'default', or None for memory alone. "
                f"Got {type(self.memo).__name__}."
            )
        return OperatorMemo(default_memo_path(self.platform) if self.memo == "default" else self.memo, self.platform)

    def measure(self, networks: Iterable[tuple[Any, Any]]) -> None:
        """Measure all that is not known of networks, in turns, in one go; nothing where everything is known.

        Parameters
        ----------
        networks : iterable of (nn.Module, example inputs)
            As `estimate` takes them, any number.

        Raises
        ------
        InvalidValueError
            If a network and its inputs do not fit each other.
        MeasurementError
            If a network cannot be run, or does not run as it was traced.
        BusyError
            If another process measures for the same memo, for more than an hour.
        """
        self._learn([self._trace(model, inputs) for model, inputs in networks])

    def _learn(self, networks: Sequence[TracedNetwork]) -> None:
        self._memo.refresh()
        if not self._unknown(networks):
            return
        with self._memo.measuring():
            # Whoever held the lock before may have measured the same.
            unknown = self._unknown(networks)
            if unknown:
                self._memo.add(self._measure(unknown))

    def _trace(self, model: Any, inputs: Any) -> TracedNetwork:
        if inputs is None:
            raise InvalidValueError(
                f"{type(self).__name__} needs 'example_inputs': costs depend on the shapes. Got None."
            )
        return TracedNetwork(model, inputs, self.by, trace(model, inputs, self.by))

    @abstractmethod
    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        """Return the networks that have to be measured, each once."""

    @abstractmethod
    def _measure(self, networks: Sequence[TracedNetwork]) -> list[NetworkRuns]:
        """Measure them."""

    def _visit(
        self, columns: list[Any], networks: Sequence[tuple[int, ...]], shape: Sequence[int], names: str, *, calls: bool
    ) -> tuple[list[list[NetworkVisits]], float]:
        """Measure networks; return what was measured by process and network, and the reference operator's time [s]."""
        try:
            visits = visit_networks(columns, networks, shape, self._runtime, self._protocol, calls=calls)
        except CandidateError as error:
            raise MeasurementError(f"{names} cannot be run on {self.platform.id}: {error}.") from error
        references = [seconds for each in visits for visit in each for seconds in visit.references]
        return visits, quantile(references, 0.5)

    def _runs(self, network: TracedNetwork, visits: NetworkVisits, reference: float) -> NetworkRuns:
        """Make a record of what one process measured of a network from the outside."""
        return NetworkRuns(network.digest, reference, visits.whole, protocol=self._protocol.as_dict())


def as_estimate(known: CachedCost, missing: tuple[str, ...] = ()) -> Estimate:
    """Return what a memo knows as the answer of an estimator."""
    return Estimate(known.value, known.low, known.high, missing)
