# SPDX-License-Identifier: Apache-2.0
"""Scores of portable models on unseen operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.energy._features import DeviceFacts
from nni_latency.energy._measured import MeasuredOperator
from nni_latency.energy._portable import ByDevice, Facts, PortableModel
from nni_latency.energy._portable_document import HeldOutOperator
from nni_latency.errors import InvalidValueError
from nni_latency.operators import group_of

#: Coverage of the error bounds.
_MOST = 0.9


@dataclass(frozen=True)
class EnergyScores:
    """Median and mean relative errors of predicted operators. Immutable.

    Parameters
    ----------
    operators : int
        Number of predicted operators.
    time, power, energy : tuple of float
        Errors of the predictions.
    constant : tuple of float
        Errors of an energy computed from the predicted time and the typical power of the training operators.
    bounds : tuple of float
        90 % quantiles of the errors of time and energy.
    held_out : tuple of HeldOutOperator
        Operators with measured and predicted values.
    """

    operators: int
    time: tuple[float, float]
    power: tuple[float, float]
    energy: tuple[float, float]
    constant: tuple[float, float]
    bounds: tuple[float, float] = (0.0, 0.0)
    held_out: tuple[HeldOutOperator, ...] = ()

    @classmethod
    def of(cls, held_out: Sequence[HeldOutOperator]) -> EnergyScores:
        """Score held-out operators.

        Raises
        ------
        InvalidValueError
            If there are no operators.
        """
        if not held_out:
            raise InvalidValueError("Scores need at least one operator that was held out. Got none.")
        errors: NDArray[np.float64] = np.abs(
            [
                (
                    item.predicted_seconds / item.seconds - 1,
                    item.predicted_watts / item.watts - 1,
                    item.predicted_joules / item.joules - 1,
                    item.constant_joules / item.joules - 1,
                )
                for item in held_out
            ]
        ).T
        time, power, energy, constant = ((float(np.median(row)), float(row.mean())) for row in errors)
        bounds = float(np.quantile(errors[0], _MOST)), float(np.quantile(errors[2], _MOST))
        return cls(len(held_out), time, power, energy, constant, bounds, tuple(held_out))


def cross_validate(
    operators: Sequence[MeasuredOperator],
    *,
    device: DeviceFacts | None = None,
    model: PortableModel | None = None,
    folds: int = 5,
    seed: int = 0,
    name: str = "",
) -> EnergyScores:
    """Predict every operator of a device by cross-validation.

    Parameters
    ----------
    operators : sequence of MeasuredOperator
        Operators of one device.
    device : DeviceFacts, optional
        Facts of the device; by default derived from the training operators.
    model : PortableModel, optional
        Model with the settings; by default a new one.
    folds : int, default=5
        Number of folds.
    seed : int, default=0
        Seed of the folds.
    name : str, default=""
        Name of the device in `EnergyScores.held_out`.

    Raises
    ------
    InvalidValueError
        If there are fewer than three training operators for a fold.
    """
    places = np.random.default_rng(seed).permutation(len(operators))
    found: list[HeldOutOperator] = []
    for part in np.array_split(places, folds):
        held = set(part.tolist())
        seen = [item for place, item in enumerate(operators) if place not in held]
        facts = device or DeviceFacts.of(seen)
        made = _like(model).fit({name: seen}, {name: facts})
        found += _predicted(made, [operators[place] for place in part], name, facts, made.constant_power(name))
    return EnergyScores.of(found)


def leave_one_device_out(
    operators: ByDevice, facts: Facts, model: PortableModel | None = None
) -> dict[str, EnergyScores]:
    """Predict the operators of every device by a model fitted to the other devices.

    Raises
    ------
    InvalidValueError
        If there are fewer than two devices, or one without facts.
    """
    if len(operators) < 2:
        raise InvalidValueError(f"Leaving one device out needs at least two. Got {len(operators)}.")
    found = {}
    for name, items in operators.items():
        made = _like(model).fit({other: seen for other, seen in operators.items() if other != name}, facts)
        constant = made.constant_power(facts[name])
        found[name] = EnergyScores.of(_predicted(made, items, name, facts[name], constant, whole_device=True))
    return found


def _like(model: PortableModel | None) -> PortableModel:
    given = model or PortableModel()
    return PortableModel(n_trees=given.n_trees, max_features=given.max_features, random_state=given.random_state)


def _predicted(
    model: PortableModel,
    items: Sequence[MeasuredOperator],
    name: str,
    device: DeviceFacts,
    constant: float,
    *,
    whole_device: bool = False,
) -> list[HeldOutOperator]:
    if not items:
        return []
    seconds, watts = model.predict_time_power([item.op for item in items], device)
    return [
        HeldOutOperator(
            name, group_of(item.op), item.seconds, item.watts, second, watt, constant, whole_device=whole_device
        )
        for item, second, watt in zip(items, seconds.tolist(), watts.tolist(), strict=True)
    ]
