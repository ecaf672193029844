# SPDX-License-Identifier: Apache-2.0
"""Strategies by name, each made to keep a limit, and replacements for those of NNI that do not work as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from nni_latency.errors import InvalidValueError, LatencyError, UnknownNameError, UnreachableTargetError, check_ints
from nni_latency.nas import _nni
from nni_latency.nas._enas import ENAS
from nni_latency.nas._expectation import expected_cost
from nni_latency.nas._fbnet import FBNet
from nni_latency.nas._penalty import TargetPenalty, architecture_logits, check_fill
from nni_latency.nas._profiler import LatencyFilter, LatencyProfiler
from nni_latency.nas._settings import DIFFERENTIABLE, STRATEGIES, is_one_shot
from nni_latency.nas._space_cost import warn_of_loose_limit
from nni_latency.nas._training import quiet_lightning
from nni_latency.spaces import draw_samples, network_of
from nni_latency.units import number_of

#: Rewards between two steps of the controller: an epoch of a small data set has few.
_REWARDS = 4

#: Letters that are quoted of what NNI or a network of the user complains about.
_LONGEST = 200

#: Networks in a row that may be too slow before a multi-trial strategy gives up.
_PATIENCE = 20_000

#: How long to wait where the engine is busy [s].
_PAUSE = 1.0

#: Labels that the tuner gets as indices: it cannot represent several values at once.
_CHOICES = (_nni.Categorical, _nni.CategoricalMultiple)


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
    """Raise unless a strategy can search a space; it is tried on a new space, with a few images.

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


class GridSearch(_nni.GridSearch):
    """Try every network of the space, one by one.

    In NNI 3.0 the models of a grid share one sample, which goes on changing: with the model format "raw" each has
    another sample when it is filtered, tried or exported than when it was made, in the end an empty one. Here every
    model keeps a separate sample. Parameters are those of NNI's `GridSearch`.
    """

    def _grid_generator(self, model_space: Any) -> Iterator[Any]:
        for model in super()._grid_generator(model_space):
            model.sample = deepcopy(model.sample)
            yield model


class TPE(_nni.TPE):
    """Model-based search with a tree-structured Parzen estimator [1]_.

    Three things differ from NNI's `TPE`. It maximises what is reported, as every other strategy of NNI does; NNI's
    minimises it by default, and so looks for the worst accuracy. It takes spaces with an `InputChoice`,
    where NNI's raises NotImplementedError. And it does not sleep for a second after every trial, only where no worker
    is free.

    Parameters
    ----------
    optimize_mode : {"maximize", "minimize"}, default="maximize"
        What is good about the reported number.
    **kwargs
        Further parameters of NNI's `TpeTuner`: `seed`, `tpe_args`.

    References
    ----------
    .. [1] J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011.
    """

    def __init__(self, *, optimize_mode: str = "maximize", **kwargs: Any) -> None:
        if optimize_mode not in ("maximize", "minimize"):
            raise InvalidValueError(
                f"The 'optimize_mode' of TPE must be 'maximize' or 'minimize'. Got {optimize_mode!r}."
            )
        super().__init__(optimize_mode=optimize_mode, **kwargs)

    def _run(self) -> None:
        space = self.model_space.simplify()
        options = {label: list(mutable.grid()) for label, mutable in space.items() if isinstance(mutable, _CHOICES)}
        with self._thread_lock:
            self.tuner.update_search_space(
                {
                    label: {"_type": "choice", "_value": list(range(len(options[label])))}
                    if label in options
                    else mutable.as_legacy_dict()
                    for label, mutable in space.items()
                }
            )
        while self.engine.budget_available():
            if not self.engine.idle_worker_available():
                time.sleep(_PAUSE)
                continue
            try:
                model = self._next_model(options)
            except _nni.NoMoreTrialError:
                break
            self.engine.submit_models(model)

    def _next_model(self, options: dict[str, list[Any]]) -> Any:
        """Ask the tuner for a network, and remember under which number it did."""
        with self._thread_lock:
            found = self.tuner.generate_parameters(self._model_count)
            sample = {label: options[label][value] if label in options else value for label, value in found.items()}
            model = self.model_space.freeze(sample)
            self._model_to_id[model] = self._model_count
            self._model_count += 1
        return model


class RandomOneShot(_nni.RandomOneShot):
    """Train a supernet by random paths, all of them within the filter, the exported one too.

    NNI 3.0 trains on filtered paths, but exports one that no filter has seen, and gives up after 100 draws. Here the
    filter holds for the export, and the draws can be many more: they cost microseconds with a `LatencyProfiler`.

    Parameters
    ----------
    filter : callable, optional
        Takes a sample and returns whether it may be trained: a `LatencyFilter`, or any filter of NNI.
    attempts : int, default=10000
        How often a path is drawn for one that passes the filter.
    **kwargs
        Further parameters of NNI's `RandomOneShot`.

    Raises
    ------
    InvalidValueError
        If `attempts` is not an int >= 1.
    UnreachableTargetError
        During the search, if no path drawn passes the filter.
    """

    def __init__(self, filter: Any = None, *, attempts: int = 10_000, **kwargs: Any) -> None:  # noqa: A002
        check_ints("RandomOneShot", {"attempts": attempts}, attempts=1)
        super().__init__(filter, **kwargs)
        self.attempts = attempts

    def configure_oneshot_module(self, training_module: Any) -> FilteredSamplingModule:
        """Make the module that draws and trains."""
        return FilteredSamplingModule(training_module, self.filter, self.attempts)


class FilteredSamplingModule(_nni.RandomSamplingLightningModule):
    """Draw until a path passes the filter, for every training step and for the export."""

    def __init__(self, training_module: Any, keep: Any, attempts: int) -> None:
        super().__init__(training_module, keep)
        self._sampling_patience = attempts

    def _repeat_until_valid(self, func: Any) -> dict[str, Any]:
        for attempt in range(self._sampling_patience):
            self._sampling_attempt = attempt + 1
            sample: dict[str, Any] = func()
            if self.filter is None or self.filter(sample):
                return sample
        raise UnreachableTargetError(
            f"None of {number_of(self._sampling_patience, 'random path')} passes the filter. Widen its range, or draw "
            "more often with 'attempts'."
        )

    def export(self) -> dict[str, Any]:
        """Return a random path that passes the filter."""
        return self._repeat_until_valid(super(_nni.RandomSamplingLightningModule, self).export)
