# SPDX-License-Identifier: Apache-2.0
"""`OperatorSum`: energy of networks as corrected sums of their operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from nni_latency.energy._features import DeviceFacts, known_group
from nni_latency.energy._measured import MeasuredOperator
from nni_latency.energy._portable import PortableModel
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, group_of

#: Operators shorter than this multiple of the shortest time of their kind are launch-bound.
_BOUND = 1.15

#: Share of the shortest operators of a kind that measure the launch time.
_SHORTEST = 0.1

#: A normalisation moves its elements twice; if it takes more than this multiple of elementwise operators, it also
#: computes statistics, as in training.
_TRAINING = 1.25

#: Kinds without effect in inference.
_RANDOM = ("dropout", "stochastic_depth")

#: Group of operators that only move their elements.
_PLAIN = "elementwise"

#: Attributes that do not affect the cost on a GPU.
_IDLE_ATTRIBUTES = ("inplace", "out", "weights", "learned")


@dataclass(frozen=True)
class NetworkSum:
    """Sum of the operators of a network. Immutable.

    Parameters
    ----------
    seconds, joules : float
        Corrected time [s] and energy [J].
    plain_seconds, plain_joules : float
        Plain sums of the measured operators, without the others [s], [J].
    constant_joules : float
        Corrected time multiplied by the typical power [J], a baseline that uses time only.
    work, launches : float
        Total GPU time and total launch time [s]; the longer one is the time of the network.
    measured : float
        Share of the operators that were measured.
    predicted : mapping of str to int
        Number of predicted operators by kind.
    """

    seconds: float
    joules: float
    plain_seconds: float
    plain_joules: float
    constant_joules: float
    work: float
    launches: float
    measured: float
    predicted: Mapping[str, int]


class OperatorSum:
    r"""Sums the operators of a network on a GPU, where they run back to back.

    An operator measured alone in a loop takes at least its launch time. In a network, launches run ahead: it takes
    :math:`T = \max(\sum_i l_i, \sum_i g_i)`, the longer of the launches :math:`l_i` and the work :math:`g_i`. For a
    launch-bound operator, the work follows from its power, which lies between that of an idle and a busy GPU,
    :math:`g_i = t_i (P_i - P_0) / (P_1 - P_0)`. Energy is :math:`E = P_0 T + \sum_i (E_i - P_0 t_i)`. Launch times by
    kind, :math:`P_0` and :math:`P_1` are those of the measured operators. Unmeasured operators are predicted by
    `PortableModel`; so are normalisations measured with statistics as in training, if the networks run in inference.

    Parameters
    ----------
    inference : bool, default=True
        Whether the networks run in inference, where a normalisation computes no statistics.
    model : PortableModel, optional
        Model for unmeasured operators; by default a new one.

    Attributes
    ----------
    device_ : DeviceFacts
        Facts of the device, derived from the operators.
    launches_ : dict of str to float
        Launch time by kind [s].
    training_ : bool
        Whether the operators were measured as in training.
    """

    def __init__(self, *, inference: bool = True, model: PortableModel | None = None) -> None:
        self.inference = inference
        self.model = model

    def fit(self, operators: Sequence[MeasuredOperator]) -> OperatorSum:
        """Fit to measured operators of one device.

        Raises
        ------
        InvalidValueError
            If there are fewer than three operators.
        """
        self.device_ = DeviceFacts.of(operators)
        self.launches_ = _launches(operators)
        self.groups_ = {item.op.kind: group_of(item.op) for item in operators}
        self.power_ = float(np.median([item.watts for item in operators]))
        self._known = {_key(item.op): item for item in operators}
        bound = [self._is_bound(item) for item in operators]
        free = [item for item, waits in zip(operators, bound, strict=True) if not waits]
        taught = [MeasuredOperator(item.op, *self._work_of(item)) for item in operators]
        self.training_ = self._is_training(free)
        if self.training_:
            taught = [item for item in taught if not _trains(item.op)]
        self.model_ = (self.model or PortableModel()).fit({"": taught}, {"": self.device_})
        return self

    def total(self, ops: Sequence[OpSpec]) -> NetworkSum:
        """Sum the operators of a network.

        Parameters
        ----------
        ops : sequence of OpSpec
            All operators, repeated for every run.

        Raises
        ------
        NotFittedError
            Before `fit`.
        InvalidValueError
            If there are none.
        """
        if not hasattr(self, "model_"):
            raise NotFittedError("OperatorSum is not fitted: call 'fit' first.")
        if not ops:
            raise InvalidValueError("A network has at least one operator. Got none.")
        known = [self._known.get(_key(op)) for op in ops]
        used = [item if item is not None and self._counts(op) else None for op, item in zip(ops, known, strict=True)]
        rest = [op for op, item in zip(ops, used, strict=True) if item is None]
        seconds, watts = self.model_.predict_time_power(rest, self.device_) if rest else (np.zeros(0), np.zeros(0))
        works = [self._work_of(item) for item in used if item is not None]
        work = math.fsum(second for second, _ in works) + float(seconds.sum())
        extra = math.fsum(joules - self.device_.rest * second for second, joules in works)
        extra += float(((watts - self.device_.rest) * seconds).sum())
        launches = math.fsum(self._launch(op) for op in ops)
        whole = max(work, launches)
        return NetworkSum(
            whole,
            self.device_.rest * whole + max(0.0, extra),
            math.fsum(item.seconds for item in known if item is not None),
            math.fsum(item.joules for item in known if item is not None),
            self.power_ * whole,
            work,
            launches,
            1 - len(rest) / len(ops),
            {kind: sum(op.kind == kind for op in rest) for kind in sorted({op.kind for op in rest})},
        )

    def _counts(self, op: OpSpec) -> bool:
        """Whether the measurement of an operator is valid for the network."""
        return not (self.training_ and self.inference and _trains(op))

    def _launch(self, op: OpSpec) -> float:
        """Return the launch time [s]: of the kind, or of the shortest kind of its group, or of any kind."""
        if op.kind in self.launches_:
            return self.launches_[op.kind]
        group = known_group(op, self.groups_.values())
        return min(self.launches_[kind] for kind in self.launches_ if self.groups_[kind] in (group, _PLAIN))

    def _is_bound(self, item: MeasuredOperator) -> bool:
        return item.seconds < _BOUND * self.launches_[item.op.kind]

    def _work_of(self, item: MeasuredOperator) -> tuple[float, float]:
        """Return the GPU time of an operator [s], and its energy [J]."""
        rest, busy = self.device_.rest, self.device_.power
        if not self._is_bound(item) or busy <= rest:
            return item.seconds, item.joules
        share = min(1.0, max(0.02, (item.watts - rest) / (busy - rest)))
        seconds = item.seconds * share
        return seconds, rest * seconds + max(0.0, item.joules - rest * item.seconds)

    def _is_training(self, free: Sequence[MeasuredOperator]) -> bool:
        """Whether normalisations take longer than reading and writing their elements once."""
        plain = _speeds([item for item in free if group_of(item.op) == "elementwise" and item.op.kind == "relu"])
        norms = _speeds([item for item in free if item.op.kind == "batch_norm"])
        return bool(len(plain) and len(norms) and np.median(norms) > _TRAINING * np.median(plain))


def _trains(op: OpSpec) -> bool:
    """Whether an operator does additional work in training."""
    return group_of(op) == "normalisation" or op.kind in _RANDOM


def _speeds(items: Sequence[MeasuredOperator]) -> NDArray[np.float64]:
    """Return the seconds per element of the larger half of operators."""
    sizes = np.array([math.prod(item.op.input_shapes[0]) for item in items], dtype=np.float64)
    if not len(sizes):
        return sizes
    speeds: NDArray[np.float64] = np.array([item.seconds for item in items]) / sizes
    return speeds[sizes >= np.median(sizes)]


def _launches(operators: Sequence[MeasuredOperator]) -> dict[str, float]:
    """Return the launch time by kind [s]: the time of its shortest operators."""
    kinds: dict[str, list[float]] = {}
    for item in operators:
        kinds.setdefault(item.op.kind, []).append(item.seconds)
    return {kind: float(np.quantile(times, _SHORTEST)) for kind, times in kinds.items()}


def _key(op: OpSpec) -> tuple[object, ...]:
    """Return the properties that determine the cost of an operator."""
    attributes = tuple(item for item in op.attributes if item[0] not in _IDLE_ATTRIBUTES)
    return op.kind, op.input_shapes, attributes
