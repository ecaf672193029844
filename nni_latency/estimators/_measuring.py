# SPDX-License-Identifier: Apache-2.0
"""Estimators that measure on demand: whole networks, and operators inside unmodified networks."""

from __future__ import annotations

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

#: Default protocol of estimators: three processes, at most eight visits of three runs each.
ON_DEMAND = Protocol(n_warmup=1, n_run=3, rounds=24, time_budget=20.0)

#: How long to wait for another process that measures the same network [s].
_LONGEST_WAIT = 3600.0


@dataclass(frozen=True)
class TracedNetwork:
    """A network to estimate: a module or an ONNX file."""

    model: Any
    inputs: Any
    by: By
    trace: Trace

    @property
    def name(self) -> str:
        """Name of the class or the file."""
        return str(self.model) if self._is_file else type(self.model).__name__

    @property
    def _is_file(self) -> bool:
        return isinstance(self.model, (str, Path))

    @cached_property
    def graph(self) -> Trace:
        """Trace by single calls."""
        if self.by == "graph" or self._is_file:
            return self.trace
        with warnings.catch_warnings():
            # Tracing by modules already issued this warning.
            warnings.simplefilter("ignore", TracingWarning)
            return trace(self.model, self.inputs, by="graph")

    @cached_property
    def modules(self) -> Trace:
        """Trace by modules."""
        return self.trace if self.by == "module" or self._is_file else trace(self.model, self.inputs, by="module")

    @property
    def digest(self) -> str:
        """Identifier of the network."""
        return self.graph.digest

    @cached_property
    def subject(self) -> Subject:
        """Subject for a bench."""
        calls = NetworkCalls.of(self.modules, self.graph)
        specification = {"name": self.name, **calls.content()}
        if self._is_file:
            build = OnnxBuild(str(self.model), None, list(self.inputs.args))
            return Subject(self.digest, build, self.inputs, digest=self.digest, specification=specification)
        return Subject.of_module(self.model, self.inputs, self.digest, digest=self.digest, specification=specification)


class MeasuringEstimator(Estimator):
    """Base class of estimators that measure on demand."""

    metric = "latency"
    #: Granularity of the trace.
    by: By = "graph"
    #: Networks that this estimator has measured; the others were known.
    n_measured = 0

    def __init__(
        self, *, runtime: Runtime | None = None, protocol: Protocol | None = None, store: StoreSource = None
    ) -> None:
        self.runtime = runtime
        self.protocol = protocol
        self.store = store

    @property
    def platform(self) -> Platform:  # type: ignore[override]
        """Platform of the measurements."""
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
        """Measure all unknown networks in turns in one campaign; nothing if all are known.

        Parameters
        ----------
        networks : iterable of (nn.Module, example inputs)
            Networks as for `estimate`.

        Raises
        ------
        InvalidValueError
            If a network and its inputs do not match.
        MeasurementError
            If a network cannot be run, or deviates from its trace.
        BusyError
            If another process measures the same networks.
        """
        self._learn([self._trace(model, inputs) for model, inputs in networks])

    def _learn(self, networks: Sequence[TracedNetwork]) -> None:
        self._known.refresh()
        if not self._unknown(networks):
            return
        with self._known.measuring():
            # Another thread or process may have measured the same network in the meantime.
            unknown = self._unknown(networks)
            if unknown:
                self._check_runtime()
                self._measure(unknown)
                self.n_measured += len(unknown)

    def _measure(self, networks: Sequence[TracedNetwork]) -> None:
        """Measure networks in one campaign; raise if any of them fails."""
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
        """Run a schedule; `names` maps keys to names in messages."""
        store = self._known.store
        content = {"subjects": sorted(names), "calls": schedule.calls}
        asked = CampaignHeader(schedule.kind, content, self.platform, self._protocol).identity
        # Retry earlier failures: unlike in a table, there is no substitute.
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
        """Whether operators are timed inside networks."""
        return False

    def _check_runtime(self) -> None:
        """Raise `MeasurementError` if the runtime does not support the measurement."""

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
        """Return the networks to measure, without duplicates."""


class _LayerMeasuring(MeasuringEstimator, LayerEstimator):
    """Base class of layer-based measuring estimators."""

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network: measure it if it has unmeasured operators, then sum its operators.

        Parameters
        ----------
        model, example_inputs
            As for `nni_latency.operators.trace`. A copy of the model is run on these inputs.

        Raises
        ------
        InvalidValueError
            If the model and the inputs do not match.
        MeasurementError
            If the network cannot be run, or deviates from its trace.
        """
        network = self._trace(model, example_inputs)
        self._learn([network])
        return self.total(self._estimate_ops([item.op for item in network.trace.operators]))

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate one operator; it is measured alone if it was never seen in a network.

        Parameters
        ----------
        op : OpSpec
            The operator.

        Returns
        -------
        Estimate
            The interval covers most of its occurrences. A measurement of the operator alone, which ignores the effect
            of the surrounding network on the caches, is noted in `missing`.

        Raises
        ------
        MissingEntryError
            If the operator was never seen and cannot be built from its key.
        """
        known = self._known.operator(op.op_key, self._protocol)
        if known is None:
            self._known.refresh()
            known = self._known.operator(op.op_key, self._protocol) or self._measure_alone(op)
        return Estimate.of(known, (f"measured alone: {op.op_key}",) if known.alone else ())

    def has_met(self, op: OpSpec) -> bool:
        """Whether the operator was measured inside a network, so that `estimate_op` measures nothing."""
        return not self._is_new(op.op_key)

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Sum the costs of operators and their intervals, since slowdowns affect all operators."""
        return Estimate.comonotone_sum(parts)

    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        found: dict[str, TracedNetwork] = {}
        met: set[str] = set()
        for network in networks:
            new = {item.op.op_key for item in network.trace.operators} - met
            if any(self._is_new(key) for key in new):
                # Later networks need not be measured for the operators of this one.
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
                f"{error} It was not measured in a network yet. Estimate or measure a network that contains it first."
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
    """Layer-based by module: measures leaf modules, and functional calls between them, inside networks.

    A network is run only if it has operators that were never measured before, in any network and any process: then all
    of its operators are measured in one run, in worker processes, by marks between their calls. They add up to the
    latency of the network without marks. Everything else is read from the store.

    Safe for several threads and processes, which wait for each other's measurements and share the results.

    Parameters
    ----------
    runtime : Runtime, optional
        Runtime that executes networks; by default torch eager on one CPU thread. It must support timing of calls.
    protocol : Protocol, optional
        Measurement protocol, including the statistic of the samples.
    store : Store, str or None, default=None
        Store of the measurements: a store, the URL or file of a database, "memory" for this process only, or None for
        the user's default database (see `nni_latency.database.open_store`).

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
    """Layer-based by graph: measures every computing call of a torch function, including those inside modules.

    For data-dependent control flow, it issues a `TracingWarning` and traces by modules.

    Parameters
    ----------
    runtime, protocol, store
        As for `ModuleEstimator`, with which it shares measurements.
    """

    by: By = "graph"


class MeasuredNetworkEstimator(MeasuringEstimator, NetworkEstimator):
    """Network-based: measures the latency of the whole network once and caches it.

    Networks are identified by their ordered operators and connections, not by their weights.

    Parameters
    ----------
    runtime, protocol, store
        As for `ModuleEstimator`. Runtimes that compile whole networks are supported.
    """

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network: measure it unless its latency is stored.

        Raises
        ------
        InvalidValueError
            If the model and the inputs do not match.
        MeasurementError
            If the network cannot be run.
        """
        network = self._trace(model, example_inputs)
        self._learn([network])
        known = self._known.network(network.digest, self._protocol)
        assert known is not None, network
        return Estimate.of(known)

    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        found = {network.digest: network for network in networks}
        return [network for digest, network in found.items() if self._known.network(digest, self._protocol) is None]
