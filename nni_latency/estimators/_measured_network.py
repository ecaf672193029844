"""`MeasuredNetworkEstimator`: the true latency of a whole network, measured once and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nni_latency.estimators._base import Estimate, NetworkEstimator
from nni_latency.estimators._measuring import MeasuringEstimator, TracedNetwork, as_estimate


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
