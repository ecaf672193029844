"""What the estimators that measure on demand share: runtime, protocol and store."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.estimators._base import Estimate, Estimator
from nni_latency.measurement import (
    CampaignHeader,
    NetworkCalls,
    NetworkSchedule,
    Protocol,
    Schedule,
    Subject,
)
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import By, OnnxBuild, Trace, TracingWarning, onnx_inputs, read_onnx, trace
from nni_latency.platforms import Platform
from nni_latency.tables import CachedCost, KnownCosts, Measuring, StoreSource, as_store

#: How estimators measure without being told: three processes, at most eight visits of three runs each.
ON_DEMAND = Protocol(n_warmup=1, n_run=3, rounds=24, time_budget=20.0)


#: How long to wait for another process that measures the same [s].
_LONGEST_WAIT = 3600.0


@dataclass(frozen=True)
class TracedNetwork:
    """A network that is asked about: a module, or an ONNX file."""

    model: Any
    inputs: Any
    by: By
    trace: Trace

    @property
    def name(self) -> str:
        """Name of its class, or its file."""
        return str(self.model) if self._is_file else type(self.model).__name__

    @property
    def _is_file(self) -> bool:
        return isinstance(self.model, (str, Path))

    @cached_property
    def graph(self) -> Trace:
        """Its operators by single calls."""
        if self.by == "graph" or self._is_file:
            return self.trace
        with warnings.catch_warnings():
            # Tracing it by modules has given the same warning.
            warnings.simplefilter("ignore", TracingWarning)
            return trace(self.model, self.inputs, by="graph")

    @cached_property
    def modules(self) -> Trace:
        """Its operators by modules."""
        return self.trace if self.by == "module" or self._is_file else trace(self.model, self.inputs, by="module")

    @property
    def digest(self) -> str:
        """What tells it from others."""
        return self.graph.digest

    @cached_property
    def subject(self) -> Subject:
        """What a bench loads."""
        calls = NetworkCalls.of(self.modules, self.graph)
        specification = {"name": self.name, **calls.content()}
        if self._is_file:
            build = OnnxBuild(str(self.model), None, list(self.inputs.args))
            return Subject(self.digest, build, self.inputs, digest=self.digest, specification=specification)
        return Subject.of_module(self.model, self.inputs, self.digest, digest=self.digest, specification=specification)


class MeasuringEstimator(Estimator):
    """Measures on demand: base of `ModuleEstimator`, `GraphEstimator` and `MeasuredNetworkEstimator`."""

    metric = "latency"
    #: How networks are traced.
    by: By = "graph"

    def __init__(
        self, *, runtime: Runtime | None = None, protocol: Protocol | None = None, store: StoreSource = None
    ) -> None:
        self.runtime = runtime
        self.protocol = protocol
        self.store = store

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
    def _known(self) -> KnownCosts:
        return KnownCosts(as_store(self.store), self.platform)

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
            If another process measures the same networks.
        """
        self._learn([self._trace(model, inputs) for model, inputs in networks])

    def _learn(self, networks: Sequence[TracedNetwork]) -> None:
        self._known.refresh()
        if not self._unknown(networks):
            return
        with self._known.measuring():
            # Another thread or process may have measured the same meanwhile.
            unknown = self._unknown(networks)
            if unknown:
                self._check_runtime()
                self._measure(unknown)

    def _measure(self, networks: Sequence[TracedNetwork]) -> None:
        """Measure networks in one campaign; every one of them must run."""
        n_calls = {item.digest: item.trace.n_calls for item in networks} if self._sees_operators else {}
        schedule = NetworkSchedule(
            [item.subject for item in networks],
            self._protocol,
            isolated=self._runtime.benches().isolated,
            calls=self._sees_operators,
            n_calls=n_calls,
            kind="on-demand",
        )
        try:
            self._run(schedule, sorted(item.digest for item in networks))
        except MeasurementError:
            if not schedule.failures:
                raise
        for network in networks:
            if network.digest in schedule.failures:
                raise MeasurementError(
                    f"{network.name} cannot be measured on {self.platform.id}: {schedule.failures[network.digest]}."
                )

    def _run(self, schedule: Schedule, what: list[str]) -> None:
        store = self._known.store
        content = {"subjects": what, "calls": schedule.calls}
        asked = CampaignHeader(schedule.kind, content, self.platform, self._protocol).identity
        # What failed before is tried again: unlike in a table, nothing else can take its place.
        failed = any(
            item.failures
            for item in store.campaigns(kind=schedule.kind, platform=self.platform)
            if item.header.identity == asked
        )
        measuring = Measuring(self._runtime, self._protocol, store, fresh=failed, wait=_LONGEST_WAIT)
        measuring.run(schedule, content)

    @property
    def _sees_operators(self) -> bool:
        """Whether operators are timed inside the networks."""
        return False

    def _check_runtime(self) -> None:
        """Raise `MeasurementError` if the runtime cannot measure what is asked for."""

    def _trace(self, model: Any, inputs: Any) -> TracedNetwork:
        if isinstance(model, (str, Path)):
            taken = onnx_inputs(model, example_inputs=inputs)
            return TracedNetwork(model, taken, self.by, read_onnx(model, example_inputs=list(taken.args)))
        if inputs is None:
            raise InvalidValueError(
                f"{type(self).__name__} needs 'example_inputs': costs depend on the shapes. Got None."
            )
        return TracedNetwork(model, inputs, self.by, trace(model, inputs, self.by))

    @abstractmethod
    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        """Return the networks that have to be measured, each once."""


def as_estimate(known: CachedCost, missing: tuple[str, ...] = ()) -> Estimate:
    """Return what is known as the answer of an estimator."""
    return Estimate(known.value, known.low, known.high, missing)
