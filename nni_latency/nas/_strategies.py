"""Strategies by name, each made so that it obeys a limit, and whether it can search a space at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nni_latency.errors import InvalidValueError, LatencyError, UnknownNameError
from nni_latency.nas import _nni
from nni_latency.nas._enas import ENAS
from nni_latency.nas._expectation_groups import expected_cost
from nni_latency.nas._fbnet import FBNet
from nni_latency.nas._filter import LatencyFilter
from nni_latency.nas._penalty import architecture_logits
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.nas._settings import DIFFERENTIABLE, STRATEGIES, is_one_shot
from nni_latency.nas._space_cost import warn_of_loose_limit
from nni_latency.nas._target import TargetPenalty, check_fill
from nni_latency.nas._training import quiet_lightning
from nni_latency.spaces import draw_samples, network_of
from nni_latency.units import number_of

#: Rewards between two steps of the controller: an epoch of a small data set has few.
_REWARDS = 4

#: Letters that are quoted of what NNI or a network of the user complains about.
_LONGEST = 200

#: Networks in a row that may be too slow before a multi-trial strategy gives up.
_PATIENCE = 20_000


@dataclass(frozen=True)
class SearchAim:
    """What a strategy is to obey, and how.

    Parameters
    ----------
    profiler : LatencyProfiler
        The costs of the very space that is searched.
    limit : float
        Highest cost of the network to be found, in the SI unit of the metric.
    weight : float, default=1.0
        Weight of the cost in the loss, where there is one.
    learning_rate : float, default=0.05
        Of the architecture parameters, or of the controller.
    trials : int, default=20
        Trials of a multi-trial strategy.
    seed : int, default=0
        Seed of what a multi-trial strategy draws.
    fill : float, optional
        Least share of the limit that the network is to use, in (0, 1].

    Raises
    ------
    InvalidValueError
        If the fill is outside (0, 1].
    UnreachableTargetError
        If no network of the space uses that share of the limit.
    """

    profiler: LatencyProfiler
    limit: float
    weight: float = 1.0
    learning_rate: float = 0.05
    trials: int = 20
    seed: int = 0
    fill: float | None = None

    def __post_init__(self) -> None:
        check_fill(self.fill, self.profiler.cost, self.limit)
        warn_of_loose_limit(self.profiler.cost, self.limit)

    @property
    def filter(self) -> LatencyFilter:
        """What lets through networks within the limit, and of those, the ones that use enough of it."""
        least = None if self.fill is None else self.fill * self.limit
        return LatencyFilter(self.profiler, max=self.limit, min=least)


def _fbnet(aim: SearchAim) -> Any:
    return FBNet(
        aim.profiler.estimator,
        target=aim.limit,
        fill=aim.fill,
        example_inputs=aim.profiler.example_inputs,
        weight=aim.weight,
        arc_learning_rate=aim.learning_rate,
    )


def _penalised(kind: Callable[..., Any]) -> Callable[[SearchAim], Any]:
    def make(aim: SearchAim) -> Any:
        penalty = TargetPenalty(aim.profiler, aim.limit, fill=aim.fill, weight=aim.weight)
        return kind(penalty=penalty, arc_learning_rate=aim.learning_rate)

    return make


def _enas(aim: SearchAim) -> Any:
    return ENAS(filter=aim.filter, batches_per_update=_REWARDS, controller_learning_rate=aim.learning_rate)


def _evolution(aim: SearchAim) -> Any:
    population = max(2, aim.trials // 4)
    return _nni.RegularizedEvolution(
        population_size=population,
        sample_size=max(1, population // 2),
        # About one choice of a network, and more of a small one.
        mutation_prob=max(0.05, 1 / len(aim.profiler.space.simplify())),
        seed=aim.seed,
    )


def _filtered(make: Callable[[SearchAim], Any]) -> Callable[[SearchAim], Any]:
    def filtered(aim: SearchAim) -> Any:
        kept = _nni.Filter(aim.filter, metric_for_invalid=0.0, patience=_PATIENCE, retain_history=False)
        return _nni.Chain(make(aim), kept)

    return filtered


_MAKERS: Mapping[str, Callable[[SearchAim], Any]] = {
    "fbnet": _fbnet,
    "darts": _penalised(_nni.DARTS),
    "gumbel-darts": _penalised(_nni.GumbelDARTS),
    "proxyless": _penalised(_nni.Proxyless),
    "enas": _enas,
    "evolution": _filtered(_evolution),
    "random": _filtered(lambda aim: _nni.Random(seed=aim.seed)),
}


def make_strategy(name: str, aim: SearchAim) -> Any:
    """Make a strategy that obeys a limit.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`.
    aim : SearchAim
        The limit, and how to keep it.

    Returns
    -------
    Strategy
        Of NNI: one-shot for `run_search`, or multi-trial for `run_trials`; see `is_one_shot`.

    Raises
    ------
    UnknownNameError
        If there is no such strategy.
    InvalidValueError
        If it cannot follow the costs of the space.
    UnreachableTargetError
        If no network of the space keeps the limit.
    """
    if name not in STRATEGIES:
        raise UnknownNameError.of("strategy", name, list(STRATEGIES))
    return _MAKERS[name](aim)


def check_strategy(name: str, cost: Any, make_space: Callable[[], Any], images: torch.Tensor) -> None:
    """Raise unless a strategy can search a space; it is tried on a space of its own, with a few images.

    Multi-trial strategies can search every space whose networks take the images, see `check_images`.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`.
    cost : AdditiveCost, GroupedCost or FrozenCost
        Costs of the space.
    make_space : callable
        Makes the space anew.
    images : Tensor of shape (n_images, 3, size, size)
        At least two.

    Raises
    ------
    InvalidValueError
        If NNI can make no supernet of the space, or the costs cannot be followed.
    """
    if not is_one_shot(name):
        return
    with quiet_lightning(), torch.random.fork_rng():
        try:
            supernet = {"proxyless": _nni.Proxyless, "enas": ENAS}.get(name, _nni.DARTS)().mutate_model(make_space())
        except LatencyError:
            raise
        except Exception as error:  # whatever NNI raises about what it does not know
            raise InvalidValueError(f"NNI can make no supernet for it: {_line(error)}") from error
        if name in DIFFERENTIABLE:
            _check_expectation(cost, supernet)
        _check_supernet(supernet, images)


def check_images(space: Any, images: torch.Tensor, num_classes: int) -> int:
    """Check that the networks of a space classify images: one of them is tried.

    Parameters
    ----------
    space : ModelSpace
        Any space.
    images : Tensor of shape (n_images, 3, size, size)
        At least two.
    num_classes : int
        Classes of the images.

    Returns
    -------
    int
        Numbers that a network returns for each image; there may be more than classes.

    Raises
    ------
    InvalidValueError
        If it does not take the images, or returns anything else than a number for each class and image.
    """
    with torch.random.fork_rng(), torch.no_grad():
        network = network_of(space, draw_samples(space, 1)[0])()
        try:
            found = network(images)
        except Exception as error:  # user code may raise anything
            raise InvalidValueError(
                f"The networks of {type(space).__name__} do not take the data set's images, "
                f"{'x'.join(map(str, images.shape[1:]))}: {_line(error)}"
            ) from error
    if not (isinstance(found, torch.Tensor) and found.ndim == 2 and found.shape[1] >= num_classes):
        shape = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise InvalidValueError(
            f"The networks of {type(space).__name__} must return a number for each of the data set's {num_classes} "
            f"classes and each image. Got {shape} for {number_of(len(images), 'image')}."
        )
    return int(found.shape[1])


def _check_expectation(cost: Any, supernet: Any) -> None:
    """Raise `InvalidValueError` if the expected cost of a supernet cannot be followed."""
    expected = expected_cost(cost)
    found = {label: logits() for label, logits in architecture_logits(supernet).items()}
    try:
        expected.check_labels(found)
    except LatencyError as error:
        raise InvalidValueError(
            f"{error} What it learns is not the probability of a choice, so its expected cost is not known."
        ) from error


def _check_supernet(supernet: Any, images: torch.Tensor) -> None:
    memo: dict[str, Any] = {}
    for module in supernet.modules():
        if isinstance(module, _nni.BaseSuperNetModule):
            memo.update(module.resample(memo=memo))
    try:
        with torch.no_grad():
            supernet(images)
    except Exception as error:  # whatever NNI raises about shapes that do not fit each other
        raise InvalidValueError(f"NNI cannot run its supernet: {_line(error)}") from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{text[:_LONGEST]} ({type(error).__name__})" if text else type(error).__name__
