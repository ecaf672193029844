"""`PortableModel`: time, power and energy of operators on a GPU, by forests on features that devices share.

History of its file:

1. The first version.
2. ``devices``, the facts of those that were learned from, and ``bounds``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat
from sklearn.exceptions import NotFittedError

from nni_latency.documents import DocumentFormat, StrictDocument
from nni_latency.energy._device import DeviceFacts
from nni_latency.energy._features import GROUPS, kernel_features, roofline
from nni_latency.energy._measured import MeasuredOperator
from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Trees, TreesDocument
from nni_latency.operators import OpSpec, group_of

Array = NDArray[np.float64]

#: Share of the operators that an error is a bound of.
_MOST = 0.9

#: Operators by the name of the device on which they were measured.
ByDevice = Mapping[str, Sequence[MeasuredOperator]]


class PortableModel:
    r"""Forests for the time and the power of operators; energy is power times time.

    The method is that of Braun et al. [1]_: features that do not depend on the hardware, a random forest each for time
    and power. Here the features are operators' work in the terms of a device's facts, and the forests learn what is
    left: time over launch plus roofline, :math:`\log (t / (t_0 + t_r))`, and power as a share of the device's most. So
    one model serves several devices, and one that it has not seen.

    Parameters
    ----------
    n_trees : int, default=150
        Trees of a forest.
    max_features : float, default=1.0
        Share of the features that a division may choose from.
    random_state : int, default=0
        Seed of the forests.

    Attributes
    ----------
    devices_ : dict of str to DeviceFacts
        Facts of the devices that were learned from.
    bounds_ : dict of str to float
        By metric, ``latency`` and ``energy``, the relative error that nine of ten operators stay within; empty unless
        `EnergyScores.bounds` of operators that were held out are put there.

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
    >>> seconds, watts = model.predict([OpSpec.of("relu", [(1, 3000)])], facts)
    >>> bool(2e-6 < seconds[0] < 7e-6)
    True
    """

    def __init__(self, *, n_trees: int = 150, max_features: float = 1.0, random_state: int = 0) -> None:
        self.n_trees = n_trees
        self.max_features = max_features
        self.random_state = random_state

    def fit(self, operators: ByDevice, facts: Mapping[str, DeviceFacts]) -> PortableModel:
        """Learn from operators that were measured on one device or several.

        Parameters
        ----------
        operators : mapping of str to sequence of MeasuredOperator
            By device.
        facts : mapping of str to DeviceFacts
            Of every device.

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
        self.bounds_: dict[str, float] = {}
        return self

    def predict(self, ops: Sequence[OpSpec], device: DeviceFacts) -> tuple[Array, Array]:
        """Predict operators on a device, seen or not.

        Parameters
        ----------
        ops : sequence of OpSpec
            The operators.
        device : DeviceFacts
            Where they run.

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
        if not hasattr(self, "time_"):
            raise NotFittedError("PortableModel is not fitted: call 'fit' first.")
        rows = kernel_features(ops, device, self.groups_)
        seconds = (device.launch + roofline(ops, device)) * np.exp(self.time_.predict(rows))
        watts = device.power * np.exp(self.power_.predict(rows))
        return seconds, np.clip(watts, device.rest, device.power)

    def save(self, path: str | Path) -> Path:
        """Write the model as JSON, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        if not hasattr(self, "time_"):
            raise NotFittedError("PortableModel is not fitted: call 'fit' first.")
        settings = {name: getattr(self, name) for name in ("n_trees", "max_features", "random_state")}
        content = {
            **settings,
            "groups": self.groups_,
            "devices": {name: asdict(facts) for name, facts in self.devices_.items()},
            "bounds": self.bounds_,
            "time": self.time_.content(),
            "power": self.power_.content(),
        }
        return PORTABLE.save(path, content)

    @classmethod
    def load(cls, path: str | Path) -> PortableModel:
        """Read a model.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of a newer version.
        """
        return PORTABLE.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: PortableDocument) -> PortableModel:
        model = cls(n_trees=document.n_trees, max_features=document.max_features, random_state=document.random_state)
        model.groups_ = list(document.groups)
        model.devices_ = {name: DeviceFacts(**dict(facts)) for name, facts in document.devices.items()}
        model.bounds_ = {str(metric): bound for metric, bound in document.bounds.items()}
        model.time_, model.power_ = (
            Trees.read(item.model_dump()).check(_N_FEATURES) for item in (document.time, document.power)
        )
        return model


class FactsDocument(StrictDocument):
    """How fast a device computes and moves data, and what it draws."""

    flops: PositiveFloat = Field(description="floating-point operations that it reaches [1/s]")
    bandwidth: PositiveFloat = Field(description="bytes that it moves to and from its memory [byte/s]")
    power: PositiveFloat = Field(description="most that it draws [W]")
    rest: PositiveFloat = Field(description="what it draws without work [W]")
    launch: PositiveFloat = Field(description="shortest time of any operator [s]")


class PortableDocument(StrictDocument):
    """A portable model of time and power."""

    format: Literal["nni_latency.energy"]
    version: Literal[2]
    n_trees: int = Field(ge=1)
    max_features: float = Field(gt=0, le=1)
    random_state: int = Field(ge=0)
    groups: list[str] = Field(description="groups of operators of which something was measured")
    devices: dict[str, FactsDocument] = Field(default_factory=dict, description="those that were learned from")
    bounds: dict[Literal["latency", "energy"], PositiveFloat] = Field(
        default_factory=dict, description="relative error that nine of ten operators that were held out stay within"
    )
    time: TreesDocument = Field(description="logarithm of the time over launch and roofline")
    power: TreesDocument = Field(description="logarithm of the power over the device's most")


_N_FEATURES = kernel_features([OpSpec.of("relu", [(1, 1)])], DeviceFacts(1, 1, 2, 1, 1)).shape[1]


@dataclass(frozen=True)
class EnergyScores:
    """How far predicted operators are from measured ones, as shares of these; the median and the mean. Immutable.

    Parameters
    ----------
    operators : int
        How many were predicted.
    time, power, energy : tuple of float
        Errors of what was predicted.
    constant : tuple of float
        Errors of the energy if it were the predicted time, times the most common power of the operators that were seen.
    bounds : tuple of float
        What the errors of time and of energy are below for nine of ten operators.
    """

    operators: int
    time: tuple[float, float]
    power: tuple[float, float]
    energy: tuple[float, float]
    constant: tuple[float, float]
    bounds: tuple[float, float] = (0.0, 0.0)


def cross_validate(
    operators: Sequence[MeasuredOperator],
    *,
    device: DeviceFacts | None = None,
    model: PortableModel | None = None,
    folds: int = 5,
    seed: int = 0,
) -> EnergyScores:
    """Predict every operator of a device by a model that has not seen it.

    Parameters
    ----------
    operators : sequence of MeasuredOperator
        Of one device.
    device : DeviceFacts, optional
        Its facts; by default taken from the operators that were seen.
    model : PortableModel, optional
        Settings; by default those of a new one.
    folds : int, default=5
        In how many parts the operators are divided.
    seed : int, default=0
        Of the division.

    Raises
    ------
    InvalidValueError
        If there are fewer than three operators outside of a part.
    """
    places = np.random.default_rng(seed).permutation(len(operators))
    parts = []
    for part in np.array_split(places, folds):
        held = set(part.tolist())
        seen = [item for place, item in enumerate(operators) if place not in held]
        facts = device or DeviceFacts.of(seen)
        made = _like(model).fit({"": seen}, {"": facts})
        parts.append(_errors(made, [operators[place] for place in part], facts, float(np.median(_watts(seen)))))
    return _scores(np.concatenate(parts, axis=1))


def leave_one_device_out(
    operators: ByDevice, facts: Mapping[str, DeviceFacts], model: PortableModel | None = None
) -> dict[str, EnergyScores]:
    """Predict the operators of every device by a model that has seen the other devices alone.

    Raises
    ------
    InvalidValueError
        If there are fewer than two devices, or one without facts.
    """
    if len(operators) < 2:
        raise InvalidValueError(f"Leaving one device out needs at least two. Got {len(operators)}.")
    found = {}
    for name, items in operators.items():
        others = {other: seen for other, seen in operators.items() if other != name}
        made = _like(model).fit(others, facts)
        shares = np.concatenate([_watts(seen) / facts[other].power for other, seen in others.items()])
        constant = float(np.median(shares)) * facts[name].power
        found[name] = _scores(_errors(made, items, facts[name], constant))
    return found


def _like(model: PortableModel | None) -> PortableModel:
    given = model or PortableModel()
    return PortableModel(n_trees=given.n_trees, max_features=given.max_features, random_state=given.random_state)


def _errors(model: PortableModel, items: Sequence[MeasuredOperator], device: DeviceFacts, constant: float) -> Array:
    """Return the errors of time, power, energy, and energy by a constant power, (4, n_items)."""
    seconds, watts = model.predict([item.op for item in items], device)
    true, power = _seconds(items), _watts(items)
    errors: Array = np.abs(
        np.array([seconds / true, watts / power, seconds * watts / (true * power), seconds * constant / (true * power)])
        - 1
    )
    return errors


def _scores(errors: Array) -> EnergyScores:
    time, power, energy, constant = ((float(np.median(row)), float(row.mean())) for row in errors)
    bounds = float(np.quantile(errors[0], _MOST)), float(np.quantile(errors[2], _MOST))
    return EnergyScores(errors.shape[1], time, power, energy, constant, bounds)


def _seconds(items: Sequence[MeasuredOperator]) -> Array:
    return np.array([item.seconds for item in items])


def _watts(items: Sequence[MeasuredOperator]) -> Array:
    return np.array([item.watts for item in items])


def _least(items: Sequence[MeasuredOperator], device: DeviceFacts) -> Array:
    return device.launch + roofline([item.op for item in items], device)


PORTABLE = DocumentFormat(
    "nni_latency.energy",
    2,
    "portable model",
    "a portable model of time and power",
    "fit one with: nni-latency fit energy",
    model=PortableDocument,
    steps=(dict,),
)

#: Returns the JSON schema of the file format.
portable_schema = PORTABLE.schema
