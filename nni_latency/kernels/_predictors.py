# SPDX-License-Identifier: Apache-2.0
"""`KernelPredictors`: the predictors of all kernels of one platform, with their training data; and costs for fusion."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import Cost
from nni_latency.documents import plain
from nni_latency.errors import InvalidValueError, MissingEntryError, listed
from nni_latency.estimators import Estimate
from nni_latency.kernels._catalogue import find_types, kernel_types
from nni_latency.kernels._document import (
    KERNELS,
    KernelsDocument,
    MeasuredKernelDocument,
    PredictorDocument,
)
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._naming import kernel_of
from nni_latency.kernels._predictor import KernelPredictor, KernelScores
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import SpaceReference, TableHeader
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Written to files in place of the name of a space.
CATALOGUE = "kernels"

#: Size of the cache of costs.
_REMEMBERED = 2**15


@dataclass(frozen=True)
class MeasuredKernel(Cost):
    """A kernel and its measured latency. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    kernel : Kernel
        The kernel.
    n_samples : int
        Number of runs.
    """

    kernel: Kernel
    n_samples: int = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelPredictors(TableHeader):
    """Predictors of all kernels of one platform. Immutable.

    Parameters
    ----------
    predictors : mapping of str to KernelPredictor
        Predictors by group.
    kernels : tuple of MeasuredKernel
        Training data.
    tested : tuple of MeasuredKernel
        Test kernels: measured in the same rounds, and not in the training data.
    constant : float, default=0.0
        Overhead of a run of the runtime outside of its kernels [s]; 0 where kernels were timed inside of networks.
    sampling : mapping
        How kernels were sampled: the fields of `Sampling`.
    failures : mapping of str to str
        Reasons of failures, by key of the kernel.
    **header
        As for `nni_latency.tables.TableHeader`.
    """

    space: SpaceReference = field(default_factory=lambda: SpaceReference(CATALOGUE))
    predictors: Mapping[str, KernelPredictor]
    kernels: tuple[MeasuredKernel, ...] = ()
    tested: tuple[MeasuredKernel, ...] = ()
    constant: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        kernels, groups = number_of(len(self.kernels), "kernel"), number_of(len(self.predictors), "group")
        return f"KernelPredictors({self.described}, {kernels} of {groups})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of kernels that can be predicted: those of all groups."""
        return tuple(name for predictor in self.predictors.values() for name in predictor.table_.kinds)

    def estimate_kernel(self, kernel: Kernel) -> Cost:
        """Predict one kernel with its interval [s].

        Raises
        ------
        MissingEntryError
            If no kernel of its group was measured.
        InvalidValueError
            If its configuration is out of range.
        """
        return self._predictor_of(kernel).estimate_kernel(kernel)

    def predict(self, kernels: Sequence[Kernel]) -> Array:
        """Predict kernels [s], (n,); raises the errors of `estimate_kernel`."""
        values = np.empty(len(kernels))
        places: dict[str, list[int]] = {}
        for place, kernel in enumerate(kernels):
            places.setdefault(self._predictor_of(kernel).group_, []).append(place)
        for group, members in places.items():
            values[members] = self.predictors[group].predict([kernels[place] for place in members])
        return values

    def _predictor_of(self, kernel: Kernel) -> KernelPredictor:
        for predictor in self.predictors.values():
            if kernel.kind in predictor.table_.kinds:
                return predictor
        raise MissingEntryError(
            f"No kernel like {kernel.kind!r} was measured on {self.platform.id}, which has {listed(self.predictors)}. "
            f"Measure {kernel.kind} as well, with 'nni-latency learn kernels'."
        )

    def scores(self) -> KernelScores | None:
        """Return the cross-validated scores, pooled over all groups."""
        weights = np.array([item.cross_validation.n for item in self.predictors.values()], dtype=np.float64)
        if not len(weights):
            return None
        found = [asdict(item.cross_validation) for item in self.predictors.values()]
        means = {
            name: float(np.average([item[name] for item in found], weights=weights))
            for name in ("mape", "bias", "within5", "within10")
        }
        roots = {
            name: math.sqrt(float(np.average([item[name] ** 2 for item in found], weights=weights)))
            for name in ("rmspe", "rmse")
        }
        worst = max(item["worst"] for item in found)
        return KernelScores(n=int(weights.sum()), spearman=math.nan, worst=worst, **means, **roots)

    def held_out(self, group: str) -> list[tuple[MeasuredKernel, float]]:
        """Return the kernels of a group, each with its prediction by cross-validation [s].

        The list is empty if these predictions are not known.
        """
        predictor = self.predictors[group]
        members = [item for item in self.kernels if item.kernel.kind in predictor.kinds_]
        predictions = getattr(predictor, "held_out_", ())
        return list(zip(members, map(float, predictions), strict=True)) if len(predictions) == len(members) else []

    def test_scores(self, shortest: float = 0.0) -> KernelScores | None:
        """Return the scores on the test kernels; None if there are none.

        Parameters
        ----------
        shortest : float, default=0.0
            Kernels with shorter times [s] are excluded: many runtimes report whole microseconds.
        """
        known = [item for item in self.tested if item.kernel.kind in self.kinds and item.value >= shortest]
        if not known:
            return None
        return KernelScores.of(self.predict([item.kernel for item in known]), [item.value for item in known])

    def save(self, path: str | Path) -> Path:
        """Write the predictors to a JSON file, atomically."""
        content = {
            **self.header_content(),
            "constant": self.constant,
            "sampling": dict(self.sampling),
            "failures": dict(self.failures),
        }
        held_out = {item.kernel.key: value for group in self.predictors for item, value in self.held_out(group)}
        lists = {
            "predictors": (json.dumps(_content(predictor)) for predictor in self.predictors.values()),
            "kernels": (
                json.dumps({**_kernel_content(item), **_held_out_content(item, held_out)}) for item in self.kernels
            ),
            "tested": (json.dumps(_kernel_content(item)) for item in self.tested),
        }
        return KERNELS.save(path, content, lists)

    @classmethod
    def load(cls, path: str | Path, *, types: Mapping[str, KernelType] | None = None) -> KernelPredictors:
        """Read predictors from their file.

        Parameters
        ----------
        path : str or Path
            The file.
        types : mapping of str to KernelType, optional
            Types of plugins, in addition to the catalogue.

        Raises
        ------
        FileFormatError
            If it is absent, truncated, altered, of another kind or of a newer version, or has kernels of a plugin that
            is not installed.
        """
        known = {**kernel_types(), **(types or {})}
        return KERNELS.load(path, lambda document: cls._of_document(document, known))

    @classmethod
    def _of_document(cls, document: KernelsDocument, types: Mapping[str, KernelType]) -> KernelPredictors:
        predictors = [_predictor(item, types, document.kernels) for item in document.predictors]
        return cls(
            **document.header(),
            predictors={predictor.group_: predictor for predictor in predictors},
            kernels=tuple(map(_measured, document.kernels)),
            tested=tuple(map(_measured, document.tested)),
            constant=document.constant,
            sampling=document.sampling,
            failures=document.failures,
        )


def _content(predictor: KernelPredictor) -> dict[str, Any]:
    settings = {name: value for name, value in predictor.get_params().items() if name != "types"}
    return {
        "group": predictor.group_,
        "kinds": list(predictor.kinds_),
        "activations": list(predictor.table_.activations),
        "settings": {**settings, "candidates": list(predictor.candidates)},
        "chosen": predictor.chosen_,
        "scores": {name: plain(item) for name, item in predictor.scores_.items()},
        "interval_factor": predictor.interval_factor_,
        "model": plain(predictor.model_),
    }


def _held_out_content(item: MeasuredKernel, held_out: Mapping[str, float]) -> dict[str, float]:
    return {"held_out": held_out[item.kernel.key]} if item.kernel.key in held_out else {}


def _predictor(
    document: PredictorDocument, types: Mapping[str, KernelType], kernels: Sequence[MeasuredKernelDocument]
) -> KernelPredictor:
    settings = document.settings.model_dump()
    made = KernelPredictor(**{**settings, "candidates": tuple(settings["candidates"])}, types=types)
    made._take_kinds(find_types(document.kinds, types), document.activations)
    made.chosen_ = document.chosen
    made.scores_ = document.scores
    made.interval_factor_ = document.interval_factor
    held_out = [item.held_out for item in kernels if item.kind in made.kinds_]
    if None not in held_out:
        made.held_out_ = np.array(held_out, dtype=np.float64)
    made.model_ = document.model.check(made.table_)
    return made


def _kernel_content(item: MeasuredKernel) -> dict[str, Any]:
    costs = {name: getattr(item, name) for name in ("value", "low", "high", "n_samples")}
    return {**item.kernel.as_dict(), **costs}


def _measured(document: MeasuredKernelDocument) -> MeasuredKernel:
    kernel = Kernel.of(document.kind, **document.configuration)
    return MeasuredKernel(document.value, document.low, document.high, kernel, document.n_samples)


class PredictedKernels:
    """Costs of kernels from predictors, in the form that estimators require. Thread-safe."""

    metric = "latency"

    def __init__(self, predictors: KernelPredictors) -> None:
        self.predictors = predictors
        self._known: dict[Kernel, Estimate | None] = {}

    @property
    def platform(self) -> Platform:
        """Platform of the measured kernels."""
        return self.predictors.platform

    @property
    def constant(self) -> float:
        """Overhead of a run of the runtime outside of its kernels [s]."""
        return self.predictors.constant

    def estimate_fused(self, ops: Sequence[OpSpec]) -> Estimate | None:
        """Return the cost of operators that are executed as one kernel [s].

        Returns
        -------
        Estimate or None
            None if they form no kernel of the catalogue, no kernel of the group was measured, or the configuration is
            out of range.
        """
        kernel = kernel_of(ops)
        if kernel is None:
            return None
        if kernel not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[kernel] = self._predict(kernel)
        return self._known.get(kernel)

    def _predict(self, kernel: Kernel) -> Estimate | None:
        try:
            return Estimate.of(self.predictors.estimate_kernel(kernel))
        except (InvalidValueError, MissingEntryError):
            return None
