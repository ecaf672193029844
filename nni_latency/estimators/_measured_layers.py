"""Estimators that measure operators inside networks that run as they are: by module, and by graph."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nni_latency.errors import MeasurementError, MissingEntryError, UnknownNameError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._measuring import ANY_SHAPE, MeasuringEstimator, TracedNetwork, as_estimate
from nni_latency.measurement import ModuleWithInputs, NetworkVisits, cold_columns
from nni_latency.operators import By, OpSpec, TracedOperator, build_operator, given_shapes
from nni_latency.tables import CachedCost, NetworkRuns


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
        known = self._memo.operator(op.op_key, self._protocol)
        if known is None:
            self._memo.refresh()
            known = self._memo.operator(op.op_key, self._protocol) or self._measure_alone(op)
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
        known = self._memo.operator(key, self._protocol)
        return known is None or known.alone

    def _measure(self, networks: Sequence[TracedNetwork]) -> list[NetworkRuns]:
        """Run networks with marks, so that every operator is timed where it stands."""
        self._check_marks()
        builds = [partial(copy.deepcopy, ModuleWithInputs(network.model, network.inputs)) for network in networks]
        names = " or ".join(dict.fromkeys(network.name for network in networks))
        places = [(place,) for place in range(len(networks))]
        visits, reference = self._visit([builds], places, ANY_SHAPE, names, calls=True)
        return [
            self._runs_inside(network, visit, reference)
            for each in visits
            for network, visit in zip(networks, each, strict=True)
        ]

    def _check_marks(self) -> None:
        if not self._runtime.sees_calls:
            raise MeasurementError(
                f"The runtime {self._runtime.name!r} compiles whole networks and has no operators to time one by one. "
                "Measure with 'torch', or whole networks with the estimator 'network'."
            )

    def _runs_inside(self, network: TracedNetwork, visits: NetworkVisits, reference: float) -> NetworkRuns:
        operators = network.trace.operators
        strange = next((len(run) for run in visits.parts if len(run) != network.trace.n_calls), None)
        if strange is not None:
            raise MeasurementError(
                f"{network.name} made {strange} calls of torch functions when it ran and {network.trace.n_calls} when "
                "it was traced: its way depends on data, chance or device, so its operators cannot be told apart. "
                "Measure it as a whole, with the estimator 'network'."
            )
        if not operators:
            return self._runs(network, visits, reference)
        times = list(zip(*(self._by_operator(run, operators) for run in visits.parts), strict=True))
        return replace(
            self._runs(network, visits, reference),
            operators=tuple(item.op.op_key for item in operators),
            n_calls=tuple(end - begin for begin, end in _spans(operators, network.trace.n_calls)),
            parts=tuple(times),
        )

    def _by_operator(self, run: Sequence[float], operators: Sequence[TracedOperator]) -> list[float]:
        """Add up the calls that belong to each operator; one without any call takes no time that could be told."""
        least = self._runtime.clock.resolution
        return [max(math.fsum(run[begin:end]), least) for begin, end in _spans(operators, len(run))]

    def _measure_alone(self, op: OpSpec) -> CachedCost:
        self._check_marks()
        try:
            build_operator(op)
        except UnknownNameError as error:
            raise MissingEntryError(
                f"{error} Nobody has met it in a network yet: estimate or measure a network that has it first."
            ) from error
        with self._memo.measuring():
            known = self._memo.operator(op.op_key, self._protocol)
            if known is None:
                columns = cold_columns(partial(build_operator, op), given_shapes(op), op.dtype)
                visits, reference = self._visit(columns, [(0, 0, 0)], ANY_SHAPE, op.op_key, calls=False)
                self._memo.add(self._runs_alone(op, visit, reference) for (visit,) in visits)
                known = self._memo.operator(op.op_key, self._protocol)
        assert known is not None, op
        return known

    def _runs_alone(self, op: OpSpec, visits: NetworkVisits, reference: float) -> NetworkRuns:
        times = tuple(run[-1] for run in visits.parts)
        return NetworkRuns("", reference, (), (op.op_key,), (0,), (times,), protocol=self._protocol.as_dict())


class ModuleEstimator(_LayerMeasuring):
    """Layer-based by module: leaf modules, and functional calls between them, measured where they stand.

    A network is run only if it has operators that were never measured before, in any network and any process: then all
    of its operators are measured at once, in worker processes, by marks between their calls. They add up to the
    network as it runs without marks. Everything else is answered from the memo.

    Safe to use from several threads and processes: they wait for each other to measure, and share what was measured.

    Parameters
    ----------
    runtime : Runtime, optional
        What executes networks; torch eager on one thread of the CPU by default. It must see calls.
    protocol : Protocol, optional
        How networks are measured, and which statistic of the samples is the answer.
    memo : OperatorMemo, str, Path or None, default="default"
        Where measurements are kept: a memo, the path of one, "default" for the one of the platform in the user's
        cache (see `nni_latency.tables.default_memo_path`), or None for memory alone.

    Examples
    --------
    >>> import torch
    >>> from nni_latency.testing import FakeRuntime
    >>> estimator = ModuleEstimator(runtime=FakeRuntime(lambda op: 0.5), memo=None)
    >>> estimator.estimate(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.zeros(1, 3)).value
    1.0
    """

    by: By = "module"


class GraphEstimator(_LayerMeasuring):
    """Layer-based by graph: every call of a torch function that computes, inside modules too, measured where it stands.

    Where control flow depends on the data, it says so with a `TracingWarning` and goes by modules.

    Parameters
    ----------
    runtime, protocol, memo
        As for `ModuleEstimator`, with which it shares what both know.
    """

    by: By = "graph"


def _spans(operators: Sequence[TracedOperator], n_calls: int) -> Iterator[tuple[int, int]]:
    """Yield the calls of each operator, from its first to behind its last; the last operator has what follows it."""
    ends = [item.last_call + 1 for item in operators[:-1]] + [n_calls]
    yield from itertools.pairwise([0, *ends])
