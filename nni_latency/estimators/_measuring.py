"""Estimators that measure on demand: whole networks, and operators inside networks that run as they are."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError, MissingEntryError, UnknownNameError
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, NetworkEstimator
from nni_latency.measurement import (
    CampaignHeader,
    NetworkCalls,
    NetworkSchedule,
    Protocol,
    Subject,
    cold_chain,
)
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import (
    By,
    OnnxBuild,
    OpSpec,
    Trace,
    TracingWarning,
    build_operator,
    given_shapes,
    onnx_inputs,
    read_onnx,
    trace,
)
from nni_latency.platforms import Platform
from nni_latency.tables import CachedCost, KnownCosts, Measuring, StoreSource, as_store

#: How estimators measure by default: three processes, at most eight visits of three runs each.
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
        self._run(schedule, {item.digest: item.name for item in networks})

    def _run(self, schedule: NetworkSchedule, names: Mapping[str, str]) -> None:
        """Measure what a schedule holds; `names` says by key what it is called in messages."""
        store = self._known.store
        content = {"subjects": sorted(names), "calls": schedule.calls}
        asked = CampaignHeader(schedule.kind, content, self.platform, self._protocol).identity
        # What failed before is tried again: unlike in a table, nothing else can take its place.
        failed = any(
            item.failures
            for item in store.campaigns(kind=schedule.kind, platform=self.platform)
            if item.header.identity == asked
        )
        measuring = Measuring(self._runtime, self._protocol, store, fresh=failed, wait=_LONGEST_WAIT)
        try:
            measuring.run(schedule, content)
        except MeasurementError:
            if not schedule.failures:
                raise
        for key, reason in schedule.failures.items():
            if key in names:
                raise MeasurementError(f"{names[key]} cannot be measured on {self.platform.id}: {reason}.")

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


class _LayerMeasuring(MeasuringEstimator, LayerEstimator):
    """What the layer-based ones share."""

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network: measure it if it has operators that nobody has measured, then add up its operators.

        Parameters
        ----------
        model, example_inputs
            As for `nni_latency.operators.trace`. A copy of the model is run, on these inputs.

        Raises
        ------
        InvalidValueError
            If model and inputs do not fit each other.
        MeasurementError
            If the network cannot be run, or does not run as it was traced.
        """
        network = self._trace(model, example_inputs)
        self._learn([network])
        return self.total(self._estimate_ops([item.op for item in network.trace.operators]))

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate one operator, which is measured alone if it was never met in a network.

        Parameters
        ----------
        op : OpSpec
            The operator.

        Returns
        -------
        Estimate
            Its interval holds most of the places where it was met. Where it was measured alone, which leaves out what
            the network around it does to the caches, `missing` says so.

        Raises
        ------
        MissingEntryError
            If it was never met, and cannot be built from its key.
        """
        known = self._known.operator(op.op_key, self._protocol)
        if known is None:
            self._known.refresh()
            known = self._known.operator(op.op_key, self._protocol) or self._measure_alone(op)
        return as_estimate(known, (f"measured alone: {op.op_key}",) if known.alone else ())

    def has_met(self, op: OpSpec) -> bool:
        """Whether the operator was measured inside a network, so that `estimate_op` measures nothing."""
        return not self._is_new(op.op_key)

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Add up the costs of operators, and their intervals: what slows down one of them slows down the others too."""
        items = list(parts)
        value, low, high = (math.fsum(getattr(item, name) for item in items) for name in ("value", "low", "high"))
        return Estimate(value, low, high, tuple(name for item in items for name in item.missing))

    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        found: dict[str, TracedNetwork] = {}
        met: set[str] = set()
        for network in networks:
            new = {item.op.op_key for item in network.trace.operators} - met
            if any(self._is_new(key) for key in new):
                # Later networks need not be measured for what this one has.
                met |= new
                found[network.digest] = network
        return list(found.values())

    def _is_new(self, key: str) -> bool:
        known = self._known.operator(key, self._protocol)
        return known is None or known.alone

    @property
    def _sees_operators(self) -> bool:
        return True

    def _check_runtime(self) -> None:
        if not self._runtime.sees_calls:
            raise self._runtime.sees_no_calls("Measure with 'torch', or whole networks with the estimator 'network'.")

    def _measure_alone(self, op: OpSpec) -> CachedCost:
        self._check_runtime()
        try:
            build_operator(op)
        except UnknownNameError as error:
            raise MissingEntryError(
                f"{error} Nobody has met it in a network yet: estimate or measure a network that has it first."
            ) from error
        with self._known.measuring():
            if self._known.operator(op.op_key, self._protocol) is None:
                chain = cold_chain(op.op_key, partial(build_operator, op), given_shapes(op), op.dtype)
                schedule = NetworkSchedule([chain], self._protocol, isolated=self._runtime.portable, kind="alone")
                self._run(schedule, {op.op_key: op.op_key})
        known = self._known.operator(op.op_key, self._protocol)
        assert known is not None, op
        return known


class ModuleEstimator(_LayerMeasuring):
    """Layer-based by module: leaf modules, and functional calls between them, measured where they stand.

    A network is run only if it has operators that were never measured before, in any network and any process: then all
    of its operators are measured at once, in worker processes, by marks between their calls. They add up to the
    network as it runs without marks. Everything else is answered from the store.

    Safe to use from several threads and processes: they wait for each other to measure, and share what was measured.

    Parameters
    ----------
    runtime : Runtime, optional
        What executes networks; torch eager on one thread of the CPU by default. It must see calls.
    protocol : Protocol, optional
        How networks are measured, and which statistic of the samples is the answer.
    store : Store, str or None, default=None
        Where measurements are kept: a store, the URL or file of a database, "memory" for this process alone, or None
        for the user's own database (see `nni_latency.database.open_store`).

    Examples
    --------
    >>> import torch
    >>> from nni_latency.testing import FakeRuntime
    >>> estimator = ModuleEstimator(runtime=FakeRuntime(lambda op: 0.5), store="memory")
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> round(estimator.estimate(network, torch.zeros(1, 3)).value, 6)
    1.0
    """

    by: By = "module"


class GraphEstimator(_LayerMeasuring):
    """Layer-based by graph: every call of a torch function that computes, inside modules too, measured where it stands.

    Where control flow depends on the data, it says so with a `TracingWarning` and goes by modules.

    Parameters
    ----------
    runtime, protocol, store
        As for `ModuleEstimator`, with which it shares what both know.
    """

    by: By = "graph"


class MeasuredNetworkEstimator(MeasuringEstimator, NetworkEstimator):
    """Network-based: the true latency of the whole, measured once and remembered.

    A network is known by its operators in their order and how they are connected, not by its weights.

    Parameters
    ----------
    runtime, protocol, store
        As for `ModuleEstimator`. Runtimes that compile whole networks will do.
    """

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network: measure it, unless that was done before.

        Raises
        ------
        InvalidValueError
            If model and inputs do not fit each other.
        MeasurementError
            If the network cannot be run.
        """
        network = self._trace(model, example_inputs)
        self._learn([network])
        known = self._known.network(network.digest, self._protocol)
        assert known is not None, network
        return as_estimate(known)

    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        found = {network.digest: network for network in networks}
        return [network for digest, network in found.items() if self._known.network(digest, self._protocol) is None]
