# SPDX-License-Identifier: Apache-2.0
"""`distil`: fits a sum over choices, for differentiable search, to a network-based estimator."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, check_ints
from nni_latency.estimators._additive import AdditiveCost
from nni_latency.estimators._base import Estimator
from nni_latency.estimators._scores import Scores, score
from nni_latency.operators import features_of
from nni_latency.regression import Rows, held_out
from nni_latency.tables import MeasurePlan, PlanLayer, measure_plan_of, solve_entries
from nni_latency.units import combination_of, format_percent, format_rank_correlation, with_article

#: Bounds of the default number of networks, which is two per unknown.
_LEAST, _MOST = 24, 400

#: Prior cost of a candidate without computation, as a share of the mean candidate.
_FLOOR = 0.05

#: Number of folds of the cross-validation.
_FOLDS = 5


@dataclass(frozen=True)
class Distillation:
    """Additive approximation of a network-based estimator, with its error.

    Parameters
    ----------
    cost : AdditiveCost
        The additive cost; choices are named as in tables.
    scores : Scores
        Cross-validated errors of the sum relative to the estimator.
    n_samples : int
        Number of networks estimated.
    """

    cost: AdditiveCost
    scores: Scores
    n_samples: int

    def __str__(self) -> str:
        off = self.scores
        return (
            f"a sum in place of whole networks, from {self.n_samples} of them; on others it is off by "
            f"{format_percent(off.mape)} on average and {format_percent(off.worst)} at worst, "
            f"{format_percent(off.within10)} are within 10 %, Spearman {format_rank_correlation(off.spearman)}"
        )


def distil(
    estimator: Estimator,
    space: Any,
    example_inputs: Any = None,
    *,
    n_samples: int | None = None,
    random_state: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Distillation:
    """Fit a sum over choices to a network-based estimator.

    Networks are drawn such that every choice of every label occurs equally often, and each is estimated. The costs of
    the choices are solved for with the work of the choices as a prior (see `solve_entries`). Effects that are not
    additive, such as concurrent execution or a shared cache, remain in the residual. Check `Distillation.scores` before
    you rely on a search.

    Parameters
    ----------
    estimator : Estimator
        A `NetworkEstimator`, or any other estimator.
    space : ModelSpace or MeasurePlan
        The space, which is not modified.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the networks; by default a batch of one of the space's input size.
    n_samples : int, optional
        Number of networks to estimate, at least 10. The default is two per unknown, between 24 and 400; all networks if
        there are fewer.
    random_state : int, default=0
        Seed of the draw.
    on_progress : callable, optional
        Called with the number of finished networks and their total.

    Returns
    -------
    Distillation

    Raises
    ------
    InvalidValueError
        If the metric is neither a sum nor the inverse of one, the space has no choices, or `n_samples` is too small.

    Examples
    --------
    >>> found = distil(estimator, space, n_samples=200)                                        # doctest: +SKIP
    >>> print(found)                                                                           # doctest: +SKIP
    >>> strategy = FBNet(latency_estimator=estimator, target=0.012)  # calls distil itself     # doctest: +SKIP
    """
    combination = combination_of(estimator.metric)
    if not combination.adds_up:
        raise InvalidValueError(
            f"{with_article(estimator.metric).capitalize()} is the largest of its parts: no sum can stand for it."
        )
    networks = _networks_of(space, example_inputs)
    architectures = _design(networks.sizes, _number(n_samples, networks.sizes), np.random.default_rng(random_state))
    values, missing = np.empty(len(architectures)), {}
    with _same_random_numbers():
        for begin in range(0, len(architectures), estimator.batch):
            part = architectures[begin : begin + estimator.batch]
            asked = ((networks.build(architecture), networks.inputs) for architecture in part)
            for index, estimate in enumerate(estimator.estimate_all(asked), begin):
                values[index] = estimate.value
                missing.update(dict.fromkeys(estimate.missing))
                on_progress(index + 1, len(architectures))
    sums = combination.counted(values)
    predicted = _cross_validated(architectures, sums, networks)
    constant, columns = _solve(architectures, sums, networks)
    costs = {
        label: dict(zip(choices, column.tolist(), strict=True))
        for (label, choices), column in zip(networks.choices.items(), columns, strict=True)
    }
    cost = AdditiveCost(constant, costs, estimator.metric, tuple(missing))
    scores = score(combination.whole(predicted), values)
    return Distillation(cost, scores, len(architectures))


@dataclass(frozen=True)
class _Networks:
    """Networks of a space: choices and builder."""

    choices: Mapping[str, Sequence[str]]
    build: Callable[[NDArray[np.int64]], Any]
    inputs: Any
    prior: Sequence[NDArray[np.float64]]

    @property
    def sizes(self) -> list[int]:
        return [len(choices) for choices in self.choices.values()]


def _networks_of(space: Any, example_inputs: Any) -> _Networks:
    if isinstance(space, MeasurePlan):
        return _of_plan(space, example_inputs)
    if not (hasattr(space, "simplify") and hasattr(space, "freeze")):
        raise InvalidValueError(
            f"The space to distil for must be an NNI model space or a measure plan. Got {type(space).__name__}."
        )
    options = {label: list(mutable.grid()) for label, mutable in space.simplify().items()}
    if not options:
        raise InvalidValueError(f"The space {type(space).__name__} has no choices: there is nothing to distil.")

    if example_inputs is None and hasattr(space, "example_inputs"):
        example_inputs = space.example_inputs()
    choices = {label: [str(value) for value in values] for label, values in options.items()}
    plan = measure_plan_of(space) if hasattr(space, "measure_plan") else None
    if plan is not None and {layer.name: list(layer.candidates) for layer in plan.searched} == choices:
        # A plan builds only the layers of one network; freezing copies the space.
        return _of_plan(plan, example_inputs)

    def build(architecture: NDArray[np.int64]) -> Any:
        chosen = zip(options.items(), architecture.tolist(), strict=True)
        return space.freeze({label: values[index] for (label, values), index in chosen})

    return _Networks(choices, build, example_inputs, [np.ones(len(values)) for values in options.values()])


def _of_plan(plan: MeasurePlan, example_inputs: Any) -> _Networks:
    choices = {layer.name: list(layer.candidates) for layer in plan.searched}
    fixed = {layer.name: layer.default for layer in plan.layers if not layer.searched and layer.default}

    def build(architecture: NDArray[np.int64]) -> Any:
        chosen = zip(choices.items(), architecture.tolist(), strict=True)
        return plan.network_of({**fixed, **{label: names[index] for (label, names), index in chosen}})()

    if example_inputs is None:
        import torch

        example_inputs = torch.zeros(plan.input_shape)
    return _Networks(choices, build, example_inputs, _work(plan.searched))


def _work(layers: Sequence[PlanLayer]) -> list[NDArray[np.float64]]:
    """Return the work of the candidates of every layer relative to the mean, always positive."""
    features = [[features_of(candidate.op) for candidate in layer.candidates.values()] for layer in layers]
    work = [np.array([float(found.macs + found.inputs + found.outputs) for found in row]) for row in features]
    mean = max(1.0, float(np.concatenate(work).mean()))
    return [column / mean + _FLOOR for column in work]


def _number(n_samples: int | None, sizes: Sequence[int]) -> int:
    if n_samples is None:
        return min(_MOST, max(_LEAST, 2 * (1 + sum(size - 1 for size in sizes))))
    check_ints("distil", {"n_samples": n_samples}, n_samples=10)
    return n_samples


def _design(sizes: Sequence[int], n_samples: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return all networks if they are few, otherwise a sample in which every choice of a label occurs equally often."""
    if math.prod(sizes) <= n_samples:
        return np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int64)
    columns = []
    for size in sizes:
        rounds = [random.permutation(size) for _ in range(-(-n_samples // size))]
        columns.append(random.permutation(np.concatenate(rounds)[:n_samples]))
    return np.stack(columns, 1).astype(np.int64)


def _solve(
    architectures: NDArray[np.int64], sums: NDArray[np.float64], networks: _Networks
) -> tuple[float, list[NDArray[np.float64]]]:
    """Solve for the constant and the costs of the choices."""
    # The constant part is an additional layer with a single candidate.
    with_rest = np.column_stack([architectures, np.zeros(len(architectures), dtype=np.int64)])
    names = [*networks.choices.values(), ["(the rest)"]]
    solution = solve_entries(with_rest, sums, [*networks.prior, np.ones(1)], names=names)
    return float(solution.values[-1][0]), list(solution.values[:-1])


def _cross_validated(
    architectures: NDArray[np.int64], sums: NDArray[np.float64], networks: _Networks
) -> NDArray[np.float64]:
    """Return the out-of-fold prediction of every network."""
    parts = np.random.default_rng(0).permutation(len(sums)) % _FOLDS

    def fit(known: Rows) -> Callable[[Rows], NDArray[np.float64]]:
        constant, columns = _solve(architectures[known], sums[known], networks)
        return lambda others: (
            constant
            + np.sum([column[chosen] for column, chosen in zip(columns, architectures[others].T, strict=True)], axis=0)
        )

    return held_out(len(sums), [np.flatnonzero(parts == part) for part in range(_FOLDS)], fit)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore torch's random state: building a network draws its weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        yield
