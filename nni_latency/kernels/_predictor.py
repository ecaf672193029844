# SPDX-License-Identifier: Apache-2.0
"""`KernelPredictor`: regression of the latency of the kernels of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Scores, score
from nni_latency.kernels._catalogue import find_types, kernel_types
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._layers import ACTIVATIONS
from nni_latency.kernels._model import CANDIDATES, FeatureTable, fit_model, predict_held_out
from nni_latency.regression import conformal_factor
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Fewest kernels that a predictor can be fitted to.
FEWEST_KERNELS = 10


@dataclass(frozen=True)
class KernelScores(Scores):
    """Agreement of predictions with measurements of kernels.

    Parameters
    ----------
    **scores
        As for `nni_latency.estimators.Scores`: RMSPE, shares within 5 and 10 % and others.
    rmse : float
        Root mean square error [s].
    """

    rmse: float

    @classmethod
    def of(cls, predicted: ArrayLike, measured: ArrayLike) -> KernelScores:
        """Compare predictions with measurements [s]."""
        found = score(predicted, measured)
        errors = np.asarray(predicted, dtype=np.float64) - np.asarray(measured, dtype=np.float64)
        return cls(**asdict(found), rmse=float(np.sqrt((errors**2).mean())))


class KernelPredictor(RegressorMixin, BaseEstimator):
    """Latency of the kernels of one group, by the best of several models in cross-validation.

    "forest" is the model of nn-Meter [1]_: a random forest over configuration, FLOPs and parameters. The others predict
    the logarithm of the ratio of the latency to a linear function of the work, from features that describe the load of
    the machine, such as the relative padding of channels to whole vectors: "boosting" by boosted trees, "process" by a
    Gaussian process, "blend" by both.

    Parameters
    ----------
    candidates : tuple of str, default=("forest", "boosting", "process", "blend")
        Candidate models; the one with the least mean absolute log error is chosen.
    n_folds : int, default=5
        Folds of the cross-validation.
    confidence : float, default=0.95
        Level of the intervals, in (0, 1); they are conformal, from cross-validation errors.
    random_state : int, default=0
        Seed of the folds and models.
    types : mapping of str to KernelType, optional
        Kernel types by name; by default the catalogue.

    Attributes
    ----------
    group_ : str
        Group of the kernels.
    kinds_ : tuple of str
        Kinds in the training data.
    chosen_ : str
        The chosen model.
    scores_ : dict of str to KernelScores
        Cross-validated scores, by model.
    held_out_ : ndarray of shape (n,)
        Cross-validated predictions of the chosen model for the training kernels [s].
    interval_factor_ : float
        Factor by which a prediction may be off, at that confidence.

    References
    ----------
    .. [1] L. L. Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on
       Diverse Edge Devices", MobiSys 2021. https://doi.org/10.1145/3458864.3467882

    Examples
    --------
    >>> kernels = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(8, 72, 2)]
    >>> seconds = [1e-9 * 64 * kernel["CIN"] for kernel in kernels]
    >>> predictor = KernelPredictor(candidates=("process",)).fit(kernels, seconds)
    >>> round(predictor.estimate_kernel(Kernel.of("relu_block", HW=8, CIN=33)).value * 1e6, 1)
    2.1
    """

    __metadata_request__score = {"sample_weight": UNUSED}  # noqa: RUF012 - its own protocol

    def __init__(
        self,
        *,
        candidates: tuple[str, ...] = CANDIDATES,
        n_folds: int = 5,
        confidence: float = 0.95,
        random_state: int = 0,
        types: Mapping[str, KernelType] | None = None,
    ) -> None:
        self.candidates = candidates
        self.n_folds = n_folds
        self.confidence = confidence
        self.random_state = random_state
        self.types = types

    def fit(self, X: Sequence[Kernel], y: ArrayLike) -> KernelPredictor:  # noqa: N803 - the name that scikit-learn gives it
        """Fit to measured kernels of one group.

        Parameters
        ----------
        X : sequence of Kernel
            Kernels of one group, at least ten.
        y : array-like of shape (n,)
            Measured latencies [s].

        Returns
        -------
        KernelPredictor
            The predictor itself.

        Raises
        ------
        InvalidValueError
            If there are too few kernels, they are of several groups, or a latency is not positive and finite.
        UnknownNameError
            If a kind of kernel is unknown.
        """
        kernels, seconds = list(X), np.asarray(y, dtype=np.float64)
        self._check(kernels, seconds)
        kinds = find_types(dict.fromkeys(kernel.kind for kernel in kernels), self._known_types)
        self._take_kinds(kinds)
        predicted = self._held_out(kernels, seconds)
        errors = {name: float(np.abs(np.log(values / seconds)).mean()) for name, values in predicted.items()}
        self.chosen_ = min(errors, key=lambda name: errors[name])
        self.scores_ = {name: KernelScores.of(values, seconds) for name, values in predicted.items()}
        self.held_out_ = predicted[self.chosen_]
        self.interval_factor_ = conformal_factor(np.log(seconds / self.held_out_), self.confidence)
        self.model_ = fit_model(self.chosen_, self.table_, kernels, seconds, self.random_state)
        return self

    def predict(self, X: Sequence[Kernel]) -> Array:  # noqa: N803
        """Predict latencies.

        Parameters
        ----------
        X : sequence of Kernel
            Kernels of the fitted group.

        Returns
        -------
        ndarray of shape (n,)
            Latencies [s].

        Raises
        ------
        NotFittedError
            Before `fit`.
        InvalidValueError
            If a configuration is out of range, or a kernel is not of the fitted group.
        """
        check_is_fitted(self, "model_")
        kernels = list(X)
        for kernel in kernels:
            self._type_of(kernel).check(kernel, to_measure=False)
        return self.model_.predict(self.table_, kernels) if kernels else np.empty(0)

    def estimate_kernel(self, kernel: Kernel) -> Cost:
        """Predict one kernel with its interval [s]; raises the errors of `predict`."""
        value = float(self.predict([kernel])[0])
        return Cost(value, value / self.interval_factor_, value * self.interval_factor_)

    @property
    def cross_validation(self) -> KernelScores:
        """Cross-validated scores of the chosen model."""
        check_is_fitted(self, "model_")
        return self.scores_[self.chosen_]

    @property
    def _known_types(self) -> Mapping[str, KernelType]:
        return kernel_types() if self.types is None else self.types

    def _take_kinds(self, kinds: Sequence[KernelType], activations: Sequence[str] = tuple(ACTIVATIONS)) -> None:
        groups = sorted({kind.group for kind in kinds})
        if len(groups) != 1:
            raise InvalidValueError(f"A KernelPredictor is fitted on kernels of one group. Got {', '.join(groups)}.")
        self.group_ = groups[0]
        self.kinds_ = tuple(sorted(kind.name for kind in kinds))
        # All kinds of a group have the same sizes, so that unmeasured kinds are predicted like the measured ones.
        known = {name: kind for name, kind in self._known_types.items() if kind.group == self.group_}
        self.table_ = FeatureTable(known, activations)

    def _type_of(self, kernel: Kernel) -> KernelType:
        found = self.table_.kinds.get(kernel.kind)
        if found is None:
            raise InvalidValueError(
                f"The predictor is for kernels of the group {self.group_!r}. Got one of the kind {kernel.kind!r}."
            )
        return found

    def _held_out(self, kernels: Sequence[Kernel], seconds: Array) -> dict[str, Array]:
        """Return the cross-validated predictions, by candidate."""
        parts = dict.fromkeys(
            name for item in self.candidates for name in (("boosting", "process") if item == "blend" else (item,))
        )
        folds = min(self.n_folds, len(kernels))
        found = {
            name: predict_held_out(name, self.table_, kernels, seconds, folds=folds, seed=self.random_state)
            for name in parts
        }
        if "blend" in self.candidates:
            found["blend"] = np.sqrt(found["boosting"] * found["process"])
        return {name: found[name] for name in self.candidates}

    def _check(self, kernels: Sequence[Kernel], seconds: Array) -> None:
        unknown = [name for name in self.candidates if name not in CANDIDATES]
        if unknown or not self.candidates:
            raise InvalidValueError(
                f"The 'candidates' of a KernelPredictor must be among {', '.join(CANDIDATES)}. Got {self.candidates!r}."
            )
        if len(kernels) < FEWEST_KERNELS or seconds.shape != (len(kernels),):
            raise InvalidValueError(
                f"A KernelPredictor needs {FEWEST_KERNELS} kernels or more, and a latency for each. Got "
                f"{number_of(len(kernels), 'kernel')} and latencies of {seconds.shape}."
            )
        if not (np.isfinite(seconds).all() and (seconds > 0).all()):
            raise InvalidValueError("The latencies of kernels must be positive and finite.")
