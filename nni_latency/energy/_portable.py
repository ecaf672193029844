# SPDX-License-Identifier: Apache-2.0
"""`PortableModel`: time, power and energy of GPU operators from device-independent features; and its estimator."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from nni_latency.documents import plain
from nni_latency.energy._features import GROUPS, DeviceFacts, kernel_features, roofline
from nni_latency.energy._measured import MeasuredOperator
from nni_latency.energy._portable_document import PORTABLE, HeldOutOperator, PortableDocument
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.operators import OpSpec, group_of
from nni_latency.platforms import Platform
from nni_latency.regression import Trees, corrected

Array = NDArray[np.float64]

#: Measured operators by device name, and facts by device name.
ByDevice = Mapping[str, Sequence[MeasuredOperator]]

Facts = Mapping[str, DeviceFacts]

_N_FEATURES = kernel_features([OpSpec.of("relu", [(1, 1)])], DeviceFacts(1, 1, 2, 1, 1)).shape[1]


class PortableModel:
    r"""Random forests for the time and the power of operators; energy is power times time.

    The method follows Braun et al. [1]_: hardware-independent features, with one random forest each for time and power.
    Here, the features are the work of operators relative to a device's facts, and the forests predict the residuals:
    time over launch plus roofline, :math:`\log (t / (t_0 + t_r))`, and power as a share of the device's maximum. One
    model therefore serves several devices, including unseen ones.

    Parameters
    ----------
    n_trees : int, default=150
        Number of trees per forest.
    max_features : float, default=1.0
        Share of the features considered at a split.
    random_state : int, default=0
        Seed of the forests.

    Attributes
    ----------
    devices_ : dict of str to DeviceFacts
        Facts of the training devices.
    bounds_ : dict of str to float
        90 % quantile of the relative error of operators by metric, ``latency`` and ``energy``; empty unless set from
        `EnergyScores.bounds` of held-out operators.
    share_ : float
        Median power of the training operators, as a share of the maximum of their device.
    powers_ : dict of str to float
        Median power of the operators of each device [W].
    held_out_ : tuple of HeldOutOperator
        Held-out operators for figures; empty unless set from `EnergyScores.held_out`.

    References
    ----------
    .. [1] L. Braun, S. Nikas, C. Song, V. Heuveline, H. Froening, "A Simple Model for Portable and Fast Prediction of
       Execution Time and Power Consumption of GPU Kernels", ACM TACO 18 (2021). https://arxiv.org/abs/2001.07104

    Examples
    --------
    >>> sizes = [2**power for power in range(8, 20)]
    >>> ops = [MeasuredOperator(OpSpec.of("relu", [(1, size)]), 1e-6 + size * 1e-9, 1e-4) for size in sizes]
    >>> facts = DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)
    >>> model = PortableModel(n_trees=20).fit({"mine": ops}, {"mine": facts})
    >>> seconds, watts = model.predict_time_power([OpSpec.of("relu", [(1, 3000)])], facts)
    >>> bool(2e-6 < seconds[0] < 7e-6)
    True
    """

    def __init__(self, *, n_trees: int = 150, max_features: float = 1.0, random_state: int = 0) -> None:
        self.n_trees = n_trees
        self.max_features = max_features
        self.random_state = random_state

    def fit(self, operators: ByDevice, facts: Facts) -> PortableModel:
        """Fit the model to operators measured on one or several devices.

        Parameters
        ----------
        operators : mapping of str to sequence of MeasuredOperator
            Operators by device.
        facts : mapping of str to DeviceFacts
            Facts of every device.

        Returns
        -------
        self

        Raises
        ------
        InvalidValueError
            If there are fewer than three operators, or a device without facts.
        """
        from sklearn.ensemble import ExtraTreesRegressor

        unknown = [name for name in operators if name not in facts]
        if unknown or sum(map(len, operators.values())) < 3:
            raise InvalidValueError(
                f"The facts of the device {unknown[0]!r} are missing."
                if unknown
                else "A portable model learns from at least three measured operators."
            )
        given = [(items, facts[name]) for name, items in operators.items() if items]
        self.groups_ = sorted({group for items, _ in given for item in items if (group := group_of(item.op)) in GROUPS})
        rows = np.concatenate(
            [kernel_features([item.op for item in items], device, self.groups_) for items, device in given]
        )
        times = np.concatenate([np.log(_seconds(items) / _least(items, device)) for items, device in given])
        powers = np.concatenate([np.log(_watts(items) / device.power) for items, device in given])
        trees = {}
        for name, target in {"time": times, "power": powers}.items():
            forest = ExtraTreesRegressor(
                self.n_trees, max_features=self.max_features, random_state=self.random_state, n_jobs=1
            )
            trees[name] = Trees.of_forest(forest.fit(rows, target))
        self.time_, self.power_ = trees["time"], trees["power"]
        self.devices_ = {name: facts[name] for name in operators}
        self.share_ = float(np.exp(np.median(powers)))
        self.powers_ = {name: float(np.median(_watts(items))) for name, items in operators.items() if items}
        self.bounds_: dict[str, float] = {}
        self.held_out_: tuple[HeldOutOperator, ...] = ()
        return self

    def check_fitted(self) -> None:
        """Raise `NotFittedError` before `fit`."""
        if not hasattr(self, "time_"):
            raise NotFittedError("PortableModel is not fitted: call 'fit' first.")

    def predict_time_power(self, ops: Sequence[OpSpec], device: DeviceFacts) -> tuple[Array, Array]:
        """Predict operators on a known or unseen device.

        Parameters
        ----------
        ops : sequence of OpSpec
            The operators.
        device : DeviceFacts
            Device of the operators.

        Returns
        -------
        seconds : ndarray of shape (n_ops,)
            Time of each [s].
        watts : ndarray of shape (n_ops,)
            Power of each [W]; their product is the energy [J].

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        self.check_fitted()
        rows = kernel_features(ops, device, self.groups_)
        seconds = corrected(device.launch + roofline(ops, device), [self.time_], rows)
        watts = corrected(np.full(len(rows), device.power), [self.power_], rows)
        return seconds, np.clip(watts, device.rest, device.power)

    def constant_power(self, device: str | DeviceFacts) -> float:
        """Return the typical power of operators on a device [W], used for energy without a power prediction.

        Parameters
        ----------
        device : str or DeviceFacts
            Name of a training device, for the median of its operators; or facts of another device, for the same share
            of its maximum power as on the training devices.

        Raises
        ------
        NotFittedError
            Before `fit`.
        InvalidValueError
            If there is no training device of that name.
        """
        self.check_fitted()
        if isinstance(device, DeviceFacts):
            return self.share_ * device.power
        if device not in self.devices_:
            known = ", ".join(self.devices_) or "none"
            raise InvalidValueError(f"The portable model has not learned from {device!r}. It knows: {known}.")
        return self.powers_.get(device, self.share_ * self.devices_[device].power)

    def save(self, path: str | Path) -> Path:
        """Write the model as JSON atomically.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self.check_fitted()
        settings = {name: getattr(self, name) for name in ("n_trees", "max_features", "random_state")}
        content = {
            **settings,
            "groups": self.groups_,
            "devices": {name: asdict(facts) for name, facts in self.devices_.items()},
            "share": self.share_,
            "powers": self.powers_,
            "bounds": self.bounds_,
            "time": plain(self.time_),
            "power": plain(self.power_),
        }
        return PORTABLE.save(path, content, {"held_out": (json.dumps(asdict(item)) for item in self.held_out_)})

    @classmethod
    def load(cls, path: str | Path) -> PortableModel:
        """Read a model.

        Raises
        ------
        FileFormatError
            If the file is missing, truncated, modified, or of another type or a newer version.
        """
        return PORTABLE.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: PortableDocument) -> PortableModel:
        model = cls(n_trees=document.n_trees, max_features=document.max_features, random_state=document.random_state)
        model.groups_ = list(document.groups)
        model.devices_ = document.devices
        model.bounds_ = {str(metric): bound for metric, bound in document.bounds.items()}
        model.share_, model.powers_ = document.share, dict(document.powers)
        model.held_out_ = tuple(document.held_out)
        model.time_, model.power_ = (trees.check(_N_FEATURES) for trees in (document.time, document.power))
        return model


def _seconds(items: Sequence[MeasuredOperator]) -> Array:
    return np.array([item.seconds for item in items])


def _watts(items: Sequence[MeasuredOperator]) -> Array:
    return np.array([item.watts for item in items])


def _least(items: Sequence[MeasuredOperator], device: DeviceFacts) -> Array:
    return device.launch + roofline([item.op for item in items], device)


@dataclass(frozen=True)
class EnergyEstimate(Estimate):
    """An energy, and its value at constant power. Immutable.

    Parameters
    ----------
    value, low, high, missing
        As in `nni_latency.estimators.Estimate` [J].
    at_constant_power : float
        Predicted time multiplied by the typical power of operators [J].

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
    """Sums the predictions of the operators of a network.

    Parameters
    ----------
    model : PortableModel
        A fitted model.
    device : str or DeviceFacts
        Name of a training device of the model, or the facts of another device.
    metric : {"energy", "latency"}, default="energy"
        Metric to estimate.

    Attributes
    ----------
    constant_power : float
        Typical power of operators on the device [W].

    Raises
    ------
    InvalidValueError
        If the device is unknown to the model, or the metric is invalid.
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
        model.check_fitted()
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
        """Estimate one operator; an unmeasured group is noted in `missing`."""
        return self._estimate_ops([op])[0]

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Sum operators and their intervals, since errors of similar operators are correlated."""
        kind = EnergyEstimate if self.metric == "energy" else Estimate
        return kind.comonotone_sum(parts)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        if not ops:
            return []
        seconds, watts = self.model.predict_time_power(ops, self.device)
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
