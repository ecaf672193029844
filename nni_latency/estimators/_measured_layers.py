"""Estimators that measure operators inside networks that run as they are: by module, and by graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from nni_latency.errors import MeasurementError, MissingEntryError, UnknownNameError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._measuring import MeasuringEstimator, TracedNetwork, as_estimate
from nni_latency.measurement import Chain, Failure, Protocol, Record, Schedule, cold_chain, is_narrow
from nni_latency.operators import By, OpSpec, build_operator, given_shapes
from nni_latency.tables import CachedCost


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
                self._run(AloneSchedule(chain, self._protocol, self._runtime.portable), [op.op_key])
        known = self._known.operator(op.op_key, self._protocol)
        assert known is not None, op
        return known


class AloneSchedule(Schedule):
    """One operator behind what empties the caches, again and again.

    Parameters
    ----------
    chain : tuple of Subject
        What runs; the operator is the last.
    protocol : Protocol
        How long.
    isolated : bool
        As for `Schedule`.
    """

    kind = "alone"

    def __init__(self, chain: Chain, protocol: Protocol, isolated: bool) -> None:
        super().__init__(protocol, isolated=isolated)
        self._chain = chain
        self._samples: list[float] = []

    @property
    def unsettled(self) -> int:
        """Whether the operator is not known well enough yet."""
        return int(not is_narrow(self._samples, self.protocol))

    def next_round(self) -> list[Chain]:
        """Run it once more, unless it is known or the budget is spent."""
        return [] if self.over else [self._chain]

    def observe(self, records: Sequence[Record]) -> None:
        """Take in a visit."""
        super().observe(records)
        self._samples += [run[-1] for record in records for run in record.parts]

    def fail(self, failure: Failure) -> None:
        """Raise `MeasurementError`: there is nothing else to measure."""
        raise MeasurementError(f"{self._chain[-1].key} cannot be run: {failure.reason}.")


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
