# SPDX-License-Identifier: Apache-2.0
"""`ActsEstimator`: a latency model of a device, fitted to 56 blocks by their ACTS, INP and FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from nni_latency.errors import InvalidValueError, check_ints
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators.acts._document import ActsFit, read_acts, write_acts
from nni_latency.estimators.acts._line import ActsLine, BlockScores, fit_line, score_blocks
from nni_latency.estimators.acts._model import (
    CORRECTIONS,
    CostModel,
    choose_correction,
    fit_model,
    validate_line,
    validate_model,
)
from nni_latency.estimators.acts._workloads import Workloads, WorkloadSource, workloads_of
from nni_latency.operators import OpSpec, capture_operators, read_onnx
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.regression import conformal_factor, draw_folds
from nni_latency.units import number_of

Variant = Literal["refined", "published"]

_NOWHERE = Platform("unknown", "unknown")

#: Fitted attributes saved in a file, without the trailing "_".
_LEARNED = tuple(field.name for field in fields(ActsFit) if field.name != "settings")

#: Minimum number of points of a fit.
FEWEST_POINTS = 10

#: Relative difference below which amounts of work belong to one block.
_SAME_BLOCK = 1e-6


class ActsEstimator(RegressorMixin, BaseEstimator, LayerEstimator):
    """Latency from ACTS, INP and FLOPs: output and input elements of the convolutions, and operations.

    The published formula [1]_ is ``latency = a*ACTS + b*INP + c*FLOPs + d`` with coefficients that are not negative,
    and below a breakpoint ``slope`` times that plus ``offset``, fitted on errors in seconds. The variant "refined" fits
    the same formula on relative errors and extends it: every operator has a cost by outputs, inputs, FLOPs and
    parameters, with an efficiency per group of operators (depthwise convolutions, matrix products, ...) and, unless
    cross-validation finds it worse, a monotone correction of the costs, or factors from a Gaussian process over the
    residuals of operators. A network is the sum of its operators. If only totals are given, each workload counts as one
    operator.

    Parameters
    ----------
    variant : {"refined", "published"}, default="refined"
        Model variant.
    confidence : float, default=0.9
        Level of the intervals, in (0, 1); they are conformal, from held-out errors.
    n_folds : int, default=5
        Folds of the cross-validation.
    random_state : int, default=0
        Seed of the folds.

    Attributes
    ----------
    a_, b_, c_ : float
        Time of one ACTS, INP and FLOP [s], not negative.
    d_ : float
        Constant [s], not negative.
    breakpoint_, slope_, offset_ : float
        Second line and its upper end [s]; 0, 1 and 0 without a second line.
    correction_ : str
        Correction selected by cross-validation: "none", "curve" or "residual"; "none" for the published variant.
    shares_ : dict of str to float
        Average shares of ACTS, INP, FLOPs and the constant in the first line over the points.
    bound_ : str
        "memory" if ACTS and INP make up more than FLOPs, else "compute".
    held_out_errors_ : ndarray of shape (n,)
        Logarithm of measured over held-out predicted latency, by point.
    interval_factor_ : float
        Factor that bounds the error of an estimate with that confidence.
    n_features_in_ : int
        3.

    References
    ----------
    .. [1] https://github.com/Jeykobz/dnn-latency-predictor
    .. [2] "Dissecting Convolutional Neural Networks for Runtime and Scalability Prediction", ICPP 2024, of the same
       group. https://doi.org/10.1145/3673038.3673107

    Examples
    --------
    >>> totals = [[1e6 * k, 2e6 * (k % 5), 1e8 * (k % 7)] for k in range(1, 21)]
    >>> seconds = [1e-9 * acts + 2e-9 * inp + 1e-11 * flops + 1e-4 for acts, inp, flops in totals]
    >>> estimator = ActsEstimator(variant="published").fit(totals, seconds)
    >>> round(estimator.a_ * 1e9, 6), round(estimator.c_ * 1e11, 6), round(estimator.d_ * 1e4, 6)
    (1.0, 1.0, 1.0)
    """

    metric = "latency"
    by = "graph"

    # No metadata routing by scikit-learn: no meta-estimator supports platforms.
    __metadata_request__fit = {"groups": UNUSED, "platform": UNUSED}  # noqa: RUF012 - its own protocol
    __metadata_request__predict = {"alone": UNUSED}  # noqa: RUF012
    __metadata_request__score = {"sample_weight": UNUSED}  # noqa: RUF012

    def __init__(
        self,
        *,
        variant: Variant = "refined",
        confidence: float = 0.9,
        n_folds: int = 5,
        random_state: int = 0,
    ) -> None:
        self.variant = variant
        self.confidence = confidence
        self.n_folds = n_folds
        self.random_state = random_state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - the name that scikit-learn gives it
        where = self.platform.id if hasattr(self, "platform") else "no platform yet"
        return f"ActsEstimator({self.variant}, latency on {where})"

    def fit(
        self,
        X: WorkloadSource,  # noqa: N803 - the name that all of scikit-learn gives it
        y: ArrayLike,
        *,
        groups: Sequence[object] | None = None,
        platform: Platform | Sequence[Platform] | None = None,
    ) -> ActsEstimator:
        """Fit a device.

        Parameters
        ----------
        X : array-like of shape (n, 3), or list
            ACTS, INP and FLOPs; or ``(module, input_shape)`` each, batch first; or a sequence of `OpSpec` each. At
            least 10 points. FLOPs counted here are floating-point operations, two per multiply-add.
        y : array-like of shape (n,)
            Measured latencies [s].
        groups : sequence, optional
            Group of each point, such as a block at several batch sizes; cross-validation holds out whole groups.
        platform : Platform, or one by point, optional
            Platform of the measurements.

        Returns
        -------
        ActsEstimator
            The estimator.

        Raises
        ------
        InvalidValueError
            If there are fewer than 10 points, all are of one block, or numbers are invalid.
        MismatchError
            If the points are of several platforms.
        """
        check_settings(self.variant, self.confidence, self.n_folds)
        workloads = workloads_of(X)
        seconds = check_points(workloads, y)
        self.start_ = workloads.varied() and self.variant == "refined"
        if self.start_:
            workloads = workloads.with_start()
        self.platform_ = one_platform(platform, len(seconds)) or _NOWHERE
        folds = self._draw_folds(workloads, groups)
        relative = self.variant == "refined"
        self._take_line(fit_line(workloads.totals, seconds, relative=relative))
        self.shares_ = self.line_.shares(workloads.totals)
        self.bound_ = "memory" if self.shares_["acts"] + self.shares_["inp"] > self.shares_["flops"] else "compute"
        self.operators_ = workloads.operators and relative
        self.totals_range_ = (workloads.totals.min(axis=0), workloads.totals.max(axis=0))
        if relative:
            errors = {name: validate_model(workloads, seconds, folds, name) for name in CORRECTIONS}
            self.correction_ = choose_correction(errors)
            self.model_: CostModel | None = fit_model(workloads, seconds, self.correction_)
            self.held_out_errors_ = errors[self.correction_]
        else:
            self.correction_, self.model_ = "none", None
            self.held_out_errors_ = validate_line(workloads, seconds, folds, relative=False)
        self.interval_factor_ = conformal_factor(self.held_out_errors_, self.confidence)
        return self

    def _draw_folds(self, workloads: Workloads, groups: Sequence[object] | None) -> list[NDArray[np.intp]]:
        labels = list(range(len(workloads))) if groups is None else list(groups)
        if len(labels) != len(workloads) or len(set(labels)) < 2:
            raise InvalidValueError("The 'groups' of ActsEstimator must be one for each point, at least two different.")
        return draw_folds(labels, self.n_folds, self.random_state, workloads.mixtures())

    def _take_line(self, line: ActsLine) -> None:
        """Set the attributes of the formula."""
        self.line_ = line
        self.a_, self.b_, self.c_, self.d_ = line.a, line.b, line.c, line.d
        self.breakpoint_, self.slope_, self.offset_ = line.breakpoint, line.slope, line.offset
        self.n_features_in_ = 3

    def predict(self, X: WorkloadSource, *, alone: bool = True) -> NDArray[np.float64]:  # noqa: N803
        """Estimate many blocks or networks at once.

        Parameters
        ----------
        X
            As for `fit`. If the fit used operators and those of `X` are unknown, the formula is applied.
        alone : bool, default=True
            Whether each workload runs alone with cold caches, as the points did, instead of inside a network.

        Returns
        -------
        ndarray of shape (n,)
            Latencies [s].
        """
        check_is_fitted(self, "line_")
        workloads = workloads_of(X)
        if self.model_ is None or (self.operators_ and not workloads.operators):
            return self.line_.predict(workloads.totals)
        if not self.operators_:
            return self.model_.predict(workloads.as_totals())
        return self.model_.predict(workloads.with_start() if self.start_ and alone else workloads)

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate the latency of a whole network, a module or the path of an ONNX file, as one workload.

        Operators without a feature function are not counted and listed in `Estimate.missing`. A file needs
        `example_inputs` only for dynamic input sizes.
        """
        if isinstance(model, (str, Path)):
            return self.estimate_block([item.op for item in read_onnx(model, example_inputs=example_inputs).operators])
        if example_inputs is None:
            raise InvalidValueError(
                "ActsEstimator.estimate needs 'example_inputs': latencies depend on the shapes. Got None."
            )
        return self.estimate_block([op for _, op in capture_operators(model, example_inputs, by="graph")])

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate the contribution of an operator or block to a network.

        A fit without operators, on totals or of the published variant, models whole workloads: an operator adds its
        terms of the first line without the constant, which would otherwise count once per operator.
        """
        if self.model_ is not None and self.operators_:
            return self.estimate_block([op])
        workloads = workloads_of([[op]])
        value = max(float(workloads.totals[0] @ (self.a_, self.b_, self.c_)), 1e-9)
        return self._as_estimate(value, workloads.uncounted[0])

    def estimate_block(self, ops: Sequence[OpSpec]) -> Estimate:
        """Estimate the latency of a sequence of operators as one workload."""
        workloads = workloads_of([list(ops)])
        value = max(float(self.predict(workloads, alone=False)[0]), 1e-9)
        return self._as_estimate(value, workloads.uncounted[0])

    def _as_estimate(self, value: float, missing: tuple[str, ...]) -> Estimate:
        return Estimate(value, value / self.interval_factor_, value * self.interval_factor_, missing)

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Return the latency of a network from its parts; the interval is that of a whole workload."""
        whole = super().total(parts)
        return self._as_estimate(max(whole.value, 1e-9), whole.missing)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        """Return the cost of every operator, or the latency divided among them if the fit does not use operators."""
        if not ops:
            return []
        parts = [self.estimate_op(op) for op in ops]
        if self.model_ is not None and self.operators_:
            return parts
        weights = np.maximum(workloads_of([[op] for op in ops]).totals @ (self.a_, self.b_, self.c_), 1e-15)
        values = self.predict([ops], alone=False)[0] * weights / weights.sum()
        return [self._as_estimate(value, part.missing) for value, part in zip(map(float, values), parts, strict=True)]

    @property
    def platform(self) -> Platform:  # type: ignore[override]
        """Platform of the measurements."""
        return getattr(self, "platform_", _NOWHERE)

    def held_out_scores(self, y: ArrayLike) -> BlockScores:
        """Score the predictions of the cross-validation.

        Parameters
        ----------
        y : array-like of shape (n,)
            Latencies of the fit [s].
        """
        check_is_fitted(self, "line_")
        seconds = np.asarray(y, dtype=np.float64)
        if seconds.shape != self.held_out_errors_.shape:
            count = len(self.held_out_errors_)
            raise InvalidValueError(
                f"The estimator was fitted on {number_of(count, 'point')}. Got latencies of {seconds.shape}."
            )
        return score_blocks(seconds / np.exp(self.held_out_errors_), seconds)

    def uncounted(self, X: WorkloadSource) -> list[tuple[str, ...]]:  # noqa: N803
        """Return the kinds of operators without a feature function for each workload."""
        return list(workloads_of(X).uncounted)

    def save(self, path: str | Path) -> Path:
        """Write the fit to a JSON file atomically.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        check_is_fitted(self, "line_")
        learned = {name: getattr(self, f"{name}_") for name in _LEARNED}
        return write_acts(Path(path), ActsFit(settings=self.get_params(), **learned))

    @classmethod
    def load(cls, path: str | Path) -> ActsEstimator:
        """Read a fit from its file.

        Raises
        ------
        FileFormatError
            If it is missing, truncated, modified, or of another type or a newer version.
        """
        fit = read_acts(path)
        estimator = cls(**fit.settings)
        for name in _LEARNED:
            setattr(estimator, f"{name}_", getattr(fit, name))
        estimator._take_line(fit.line)
        return estimator


def check_settings(variant: str, confidence: float, n_folds: int) -> None:
    """Raise `InvalidValueError` if a parameter of the estimator is outside its range."""
    if variant not in ("refined", "published"):
        raise InvalidValueError(f"The 'variant' of ActsEstimator must be 'refined' or 'published'. Got {variant!r}.")
    if not 0 < confidence < 1:
        raise InvalidValueError(f"The 'confidence' of ActsEstimator must be a number in (0, 1). Got {confidence!r}.")
    check_ints("ActsEstimator", {"n_folds": n_folds}, n_folds=2)


def check_points(workloads: Workloads, y: ArrayLike) -> NDArray[np.float64]:
    """Validate the points of a fit and return their latencies [s].

    Raises
    ------
    InvalidValueError
        If there are fewer than 10 points, not one per workload, not positive, or all of one block.
    """
    try:
        seconds = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        seconds = np.empty((0, 0))
    if seconds.shape != (len(workloads),):
        raise InvalidValueError(
            f"The 'y' of ActsEstimator must be one latency [s] for each of {number_of(len(workloads), 'point')}. Got "
            f"an array of shape {seconds.shape}."
        )
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise InvalidValueError("Latencies must be positive, finite numbers of seconds.")
    if len(seconds) < FEWEST_POINTS:
        raise InvalidValueError(
            f"ActsEstimator needs at least {FEWEST_POINTS} points to fit. Got {len(seconds)}: measure more blocks."
        )
    if _is_one_block(workloads):
        raise InvalidValueError(
            f"All {number_of(len(seconds), 'point')} are of one block: what they compute differs by a common factor "
            "at most, and nothing can be learned about others. Measure blocks of several kinds, channels and sizes."
        )
    return seconds


def one_platform(platforms: Platform | Sequence[Platform] | None, count: int) -> Platform | None:
    """Return the common platform of all points.

    Raises
    ------
    InvalidValueError
        If there is not one platform per point.
    MismatchError
        If the platforms differ.
    """
    if platforms is None or isinstance(platforms, Platform):
        return platforms
    if len(platforms) != count:
        raise InvalidValueError(
            f"The 'platform' must be one, or one for each of {number_of(count, 'point')}. Got {len(platforms)}."
        )
    first, *others = platforms
    for other in others:
        if other is not first:
            check_same_platform(first, other, "Fitting one device to these points")
    return first


def _is_one_block(workloads: Workloads) -> bool:
    """Return whether the workloads are equal up to a common factor."""
    if workloads.operators:
        # Outputs, inputs and FLOPs; parameters are the same at every batch size.
        amounts = workloads.counts @ np.array([piece.amounts[:3] for piece in workloads.work])
    else:
        amounts = workloads.totals
    largest = amounts.max(axis=0)
    scaled = amounts / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    if not lengths.any():
        return True
    directions = scaled / np.maximum(lengths, 1e-300)
    return bool(np.abs(directions - directions[0]).max() < _SAME_BLOCK)
