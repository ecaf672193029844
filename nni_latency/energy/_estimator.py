"""`PortableEstimator`: the energy or the time of networks on a device, by a portable model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sklearn.exceptions import NotFittedError

from nni_latency.energy._device import DeviceFacts
from nni_latency.energy._portable import PortableModel
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.operators import OpSpec, group_of
from nni_latency.platforms import Platform


@dataclass(frozen=True)
class EnergyEstimate(Estimate):
    """An energy, and what it would be if it were told by time alone. Immutable.

    Parameters
    ----------
    value, low, high, missing
        As in `nni_latency.estimators.Estimate` [J].
    at_constant_power : float
        The predicted time, times the most common power of operators [J].

    Examples
    --------
    >>> twice = EnergyEstimate(1.0, 0.9, 1.2, at_constant_power=1.5).scaled(2.0)
    >>> twice.value, twice.at_constant_power
    (2.0, 3.0)
    """

    at_constant_power: float = 0.0

    def scaled(self, factor: float) -> EnergyEstimate:
        """Return the energy times a factor >= 0."""
        return replace(super().scaled(factor), at_constant_power=factor * self.at_constant_power)

    @classmethod
    def _joined(cls, parts: Sequence[Estimate], value: float, low: float, high: float) -> EnergyEstimate:
        plain = Estimate._joined(parts, value, low, high)
        whole = math.fsum(part.value for part in parts)
        other = math.fsum(getattr(part, "at_constant_power", part.value) for part in parts)
        return cls(value, low, high, plain.missing, other * (value / whole) if whole else 0.0)


class PortableEstimator(LayerEstimator):
    """The operators of a network, predicted one by one and added up.

    Parameters
    ----------
    model : PortableModel
        A fitted model.
    device : str or DeviceFacts
        One of the devices that the model has learned from, or the facts of another one.
    metric : {"energy", "latency"}, default="energy"
        What it estimates.

    Attributes
    ----------
    constant_power : float
        The most common power of operators on the device [W].

    Raises
    ------
    InvalidValueError
        If the model does not know the device, or the metric is another one.
    NotFittedError
        If the model is not fitted.

    Examples
    --------
    >>> import torch
    >>> from nni_latency.energy import MeasuredOperator
    >>> sizes = [2**power for power in range(8, 20)]
    >>> ops = [MeasuredOperator(OpSpec.of("relu", [(1, size)]), 1e-6 + size * 1e-9, 1e-4) for size in sizes]
    >>> model = PortableModel(n_trees=20).fit({"mine": ops}, {"mine": DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)})
    >>> estimate = PortableEstimator(model, "mine", metric="latency").estimate(torch.nn.ReLU(), torch.zeros(1, 3000))
    >>> 2e-6 < estimate.value < 7e-6
    True
    """

    def __init__(
        self, model: PortableModel, device: str | DeviceFacts, *, metric: Literal["energy", "latency"] = "energy"
    ) -> None:
        if not hasattr(model, "devices_"):
            raise NotFittedError("PortableModel is not fitted: call 'fit' first.")
        if metric not in ("energy", "latency"):
            raise InvalidValueError(f"The 'metric' of PortableEstimator must be energy or latency. Got {metric!r}.")
        if isinstance(device, str) and device not in model.devices_:
            known = ", ".join(model.devices_) or "none"
            raise InvalidValueError(
                f"The portable model has not learned from {device!r}. It knows: {known}. Or give the facts of a device."
            )
        self.model, self.metric = model, metric
        self.device = model.devices_[device] if isinstance(device, str) else device
        self.constant_power = model.constant_power(device)
        self.platform = Platform.parse(device if isinstance(device, str) else "device-by-facts")

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate one operator; `missing` says so where nothing of its group was measured."""
        return self._estimate_ops([op])[0]

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Add up operators, and their intervals: what is wrong with one is wrong with those like it."""
        kind = EnergyEstimate if self.metric == "energy" else Estimate
        return kind.comonotone_sum(parts)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        if not ops:
            return []
        seconds, watts = self.model.predict(ops, self.device)
        reach = 1 + self.model.bounds_.get(self.metric, 0.0)
        found = []
        for op, second, watt in zip(ops, seconds.tolist(), watts.tolist(), strict=True):
            value = second * watt if self.metric == "energy" else second
            interval = value, value / reach, value * reach, self._missing(op)
            constant = second * self.constant_power
            found.append(EnergyEstimate(*interval, constant) if self.metric == "energy" else Estimate(*interval))
        return found

    def _missing(self, op: OpSpec) -> tuple[str, ...]:
        if group_of(op) in self.model.groups_:
            return ()
        return (f"nothing like it was measured: {op.op_key}",)
