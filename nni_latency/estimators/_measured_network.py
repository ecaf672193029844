"""`MeasuredNetworkEstimator`: the true latency of a whole network, measured once and remembered."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.estimators._base import Estimate, NetworkEstimator
from nni_latency.estimators._measuring import ANY_SHAPE, MeasuringEstimator, TracedNetwork, as_estimate
from nni_latency.measurement import ModuleWithInputs
from nni_latency.operators import freeze_inputs
from nni_latency.tables import NetworkRuns


class MeasuredNetworkEstimator(MeasuringEstimator, NetworkEstimator):
    """Network-based: the true latency of the whole, measured once and remembered.

    A network is known by its operators in their order and how they are connected, not by its weights.

    Parameters
    ----------
    runtime, protocol, memo
        As for `ModuleEstimator`. Runtimes that compile whole networks will do; they take networks of one input
        tensor of numbers with a fraction.
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
        known = self._memo.network(network.digest, self._protocol)
        assert known is not None, network
        return as_estimate(known)

    def _unknown(self, networks: Sequence[TracedNetwork]) -> list[TracedNetwork]:
        found = {network.digest: network for network in networks}
        return [network for digest, network in found.items() if self._memo.network(digest, self._protocol) is None]

    def _measure(self, networks: Sequence[TracedNetwork]) -> list[NetworkRuns]:
        found = []
        for shape, group in self._by_shape(networks):
            builds = [self._build(network) for network in group]
            names = " or ".join(dict.fromkeys(network.name for network in group))
            places = [(place,) for place in range(len(group))]
            visits, reference = self._visit([builds], places, shape, names, calls=False)
            found += [
                self._runs(network, visit, reference)
                for each in visits
                for network, visit in zip(group, each, strict=True)
            ]
        return found

    def _by_shape(self, networks: Sequence[TracedNetwork]) -> Iterator[tuple[tuple[int, ...], list[TracedNetwork]]]:
        """Group networks that one bench can run."""
        shapes = {network.digest: self._shape(network) for network in networks}
        for shape in dict.fromkeys(shapes.values()):
            yield shape, [network for network in networks if shapes[network.digest] == shape]

    def _shape(self, network: TracedNetwork) -> tuple[int, ...]:
        """Return the shape of what the bench gives to a network.

        Where the runtime compiles networks, inputs that a network brought along would be constants, and the compiler
        would compute the answer once and for all.
        """
        if self._runtime.sees_calls:
            return ANY_SHAPE
        inputs = freeze_inputs(network.inputs)
        (tensor, *others), plain = inputs.tensors, len(inputs.args) == 1 and not inputs.kwargs
        if others or not plain or not tensor.is_floating_point():
            raise MeasurementError(
                f"The runtime {self._runtime.name!r} takes networks of one input tensor with a fraction, and "
                f"{network.name} was given {', '.join(str(tensor.dtype) for tensor in inputs.tensors)}. "
                "Measure it with the runtime 'torch'."
            )
        return tuple(tensor.shape)

    def _build(self, network: TracedNetwork) -> Any:
        if self._runtime.sees_calls:
            return partial(copy.deepcopy, ModuleWithInputs(network.model, network.inputs))
        return partial(copy.deepcopy, network.model)
