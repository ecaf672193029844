# SPDX-License-Identifier: Apache-2.0
"""A whole search with NNI in one supernet: strategy, experiment, and the training of what was found."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import nn

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.nas._checkpoint import Checkpoint, SearchState, put_back, put_back_random, tensors_of
from nni_latency.nas._datasets import Dataset, split
from nni_latency.nas._derive import found_sample, freeze_trained, likeliest_sample
from nni_latency.nas._fbnet import FBNet
from nni_latency.nas._nni import Classification, ModelSpace, NasExperiment
from nni_latency.nas._penalty import LatencyPenalty, architecture_logits
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.nas._settings import SearchSettings
from nni_latency.nas._strategies import check_images
from nni_latency.nas._training import (
    OnBatch,
    Work,
    accuracy,
    bare_trainer,
    batch_statistics,
    forward_batches,
    loader_of,
    quiet_lightning,
    train_found,
)
from nni_latency.platforms import torch_threads
from nni_latency.spaces import check_sample

#: Least share of its limit that a network to be compared uses.
_CLOSE = 0.95


@dataclass(frozen=True)
class Epoch:
    """What one epoch of a search came to.

    Parameters
    ----------
    index : int
        Number of the epoch, from 0.
    loss : float
        Mean cross entropy of the weight steps.
    accuracy : float
        Share of the held-out images that the supernet classifies correctly, under freshly drawn masks or paths where
        the strategy draws any.
    latency : float
        Expected cost of the probabilities, in the SI unit of the metric; of a strategy that draws paths, the mean of
        those that judged the accuracy.
    temperature : float or None
        Of the Gumbel softmax of `FBNet`.
    duration : float
        Time that it took [s].
    """

    index: int
    loss: float
    accuracy: float
    latency: float
    temperature: float | None
    duration: float


@dataclass(frozen=True)
class Trial:
    """What one trial of a multi-trial search came to.

    Parameters
    ----------
    index : int
        Number of the trial, from 0.
    accuracy : float
        Share of the images kept for selection that the network classifies correctly.
    latency : float
        Its estimated cost, in the SI unit of the metric.
    duration : float
        Time that it took [s].
    sample : dict
        The network, ``{label: choice}``.
    """

    index: int
    accuracy: float
    latency: float
    duration: float
    sample: dict[str, Any]


Step = TypeVar("Step", Epoch, Trial)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    sample : dict
        The network as an NNI sample, ``{label: choice}``; ``space.freeze`` takes it.
    network : nn.Module
        The network itself, trained.
    latency : float
        Its estimated cost, in the SI unit of the metric.
    accuracy : float
        Share of the held-out images that it classifies correctly.
    history : tuple of Epoch or of Trial
        The epochs of a search in a supernet, or the trials of one in many.
    compared : tuple of dict, default=()
        Samples that the supernet finds most probable, to be compared with others: see `run_search`.
    """

    sample: dict[str, Any]
    network: nn.Module
    latency: float
    accuracy: float
    history: tuple[Epoch, ...] | tuple[Trial, ...]
    compared: tuple[dict[str, Any], ...] = ()


def run_search(
    space: ModelSpace,
    dataset: Dataset,
    strategy: Any,
    settings: SearchSettings,
    *,
    profiler: LatencyProfiler | None = None,
    limit: float | None = None,
    fill: float | None = None,
    against: Sequence[Mapping[str, Any]] = (),
    checkpoint: Checkpoint | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_final_epoch: Callable[[int], None] = lambda index: None,
    on_batch: OnBatch = lambda share: None,
    on_final_batch: OnBatch = lambda share: None,
) -> SearchResult:
    """Search a network with a one-shot strategy in an NNI experiment and train it.

    Of the training images, weights take four fifths and architecture parameters the rest, as in the FBNet paper; the
    network found is trained on all of them. Neither ever sees the validation images.

    Parameters
    ----------
    space : ModelSpace
        The space; it is turned into a supernet in place.
    dataset : Dataset
        Training and validation images.
    strategy : FBNet, or another one-shot strategy
        How to search: `FBNet`, `ENAS` with a `LatencyFilter`, or DARTS, GumbelDARTS or Proxyless of NNI with a
        `LatencyPenalty`.
    settings : SearchSettings
        How long and how fast.
    profiler : LatencyProfiler, optional
        The costs of this very space object. `FBNet` has its own, every other strategy needs it.
    limit : float, optional
        Highest cost of the network found, for strategies with a `LatencyPenalty`, which itself only draws towards its
        baseline: the network is the one that `found_sample` takes.
    fill : float, optional
        Least share of the limit that the network found is to use, for the same strategies.
    against : sequence of mapping, default=()
        Networks to compare the search with, such as random ones: `SearchResult.compared` has as many that the supernet
        finds most probable within limits over the same range of costs. Strategies without probabilities by label, and
        a search that goes on in its final training, give none.
    checkpoint : Checkpoint, optional
        Where the search saves itself after every epoch. If the file is there, the search goes on from it, and finds
        what it would have found without an interruption.
    on_epoch, on_final_epoch : callable, optional
        Called after every epoch of the search, and of the final training.
    on_batch, on_final_batch : callable, optional
        Called after every batch with the share of the search, or of the final training, that is done.

    Returns
    -------
    SearchResult

    Raises
    ------
    InvalidValueError
        If the profiler is missing.
    FileFormatError, MismatchError
        If the checkpoint cannot be read, or is of another search.
    OutputError
        If the checkpoint cannot be written.
    """
    if profiler is None and not isinstance(strategy, FBNet):
        raise InvalidValueError(
            f"A search with {type(strategy).__name__} needs the 'profiler' of its space. Only FBNet has its own."
        )
    before = None if checkpoint is None else checkpoint.state
    torch.manual_seed(settings.seed)
    with (
        quiet_lightning(),
        torch_threads(settings.threads),
        _interruptible(),
        tempfile.TemporaryDirectory(prefix="nni-latency-") as folder,
    ):
        recorder = _Recorder(dataset, settings, profiler, on_epoch, checkpoint, on_batch)
        for_weights, for_architecture = split(dataset.train, settings.seed)
        compared: tuple[dict[str, Any], ...] = ()
        evaluator = Classification(
            # A table of FBNet is one of a number of classes, which may be more than those of the data set.
            num_classes=check_images(space, dataset.few(2), dataset.num_classes),
            learning_rate=settings.learning_rate,
            train_dataloaders=loader_of(for_weights, settings),
            val_dataloaders=loader_of(for_architecture, settings),
            max_epochs=settings.epochs,
            callbacks=[recorder],
            **bare_trainer(folder),
        )
        if before is not None and before.sample is not None:
            sample = check_sample(space, before.sample)
            strategy.mutate_model(space)
            network = freeze_trained(space, sample).to(evaluator.trainer.strategy.root_device)
        else:
            experiment = NasExperiment(space, evaluator, strategy)
            experiment.config.experiment_working_directory = Path(folder)
            try:
                experiment.run()
                sample = _found(experiment, strategy, profiler, limit, fill)
            finally:
                experiment.stop()
            compared = _likeliest_beside(_costs_of(strategy, profiler), against)
            network = freeze_trained(space, sample)
        accuracy = train_found(
            network, dataset, settings, on_final_epoch,
            checkpoint=checkpoint, sample=sample, history=recorder.history, on_batch=on_final_batch,
        )  # fmt: skip
    return SearchResult(
        sample, network, _costs_of(strategy, profiler).profile(sample), accuracy, tuple(recorder.history), compared
    )


def steps_of(state: SearchState | None, kind: type[Step]) -> list[Step]:
    """Return the epochs or trials that a checkpoint holds."""
    try:
        return [] if state is None else [kind(**step) for step in state.history]
    except TypeError as error:
        raise FileFormatError(f"The checkpoint does not hold a search of this kind: {error}.") from error


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interruption be one: Lightning turns it, and being terminated, into an exit."""
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            # It ignores all that follow, too.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif not isinstance(error, SIGTERMException):
            raise
        raise KeyboardInterrupt from error


def _found(
    experiment: Any, strategy: Any, profiler: LatencyProfiler | None, limit: float | None, fill: float | None
) -> dict[str, Any]:
    """Return what the strategy exports, or the network that its probabilities stand for within the limit."""
    if profiler is not None and limit is not None and isinstance(getattr(strategy, "penalty", None), LatencyPenalty):
        return found_sample(profiler, limit, fill)
    return dict(experiment.export_top_models(1, formatter="dict")[0])


def _costs_of(strategy: Any, profiler: LatencyProfiler | None) -> LatencyProfiler:
    """Return the costs of the space that is searched; FBNet has its own."""
    costs: LatencyProfiler | None = strategy.profiler if isinstance(strategy, FBNet) else profiler
    assert costs is not None, "the experiment has initialised the strategy"
    return costs


def _likeliest_beside(profiler: LatencyProfiler, against: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return as many samples as there are others, each the most probable one within a limit of its own."""
    if not against or not architecture_logits(profiler.space):
        return ()
    # An estimator that measures draws weights, which must not change how the network found learns.
    with torch.random.fork_rng():
        costs = [profiler.profile(sample) for sample in against]
        limits = np.linspace(min(costs), max(costs), len(against))
        return tuple(likeliest_sample(profiler, max=limit, min=_CLOSE * limit) for limit in limits.tolist())


class _Recorder(Callback):
    """Note what every epoch comes to, save it, and go on from what was saved."""

    def __init__(
        self,
        dataset: Dataset,
        settings: SearchSettings,
        profiler: LatencyProfiler | None,
        on_epoch: Callable[[Epoch], None],
        checkpoint: Checkpoint | None,
        on_batch: OnBatch,
    ) -> None:
        self._on_batch = on_batch
        self._checkpoint = checkpoint
        self._before = None if checkpoint is None else checkpoint.state
        self.history = steps_of(self._before, Epoch)
        self._dataset = dataset
        self._settings = settings
        self._profiler = profiler
        self._on_epoch = on_epoch
        self._begin = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._before is None:
            return
        put_back(self._before.tensors, pl_module, trainer.optimizers)
        epochs: Any = trainer.fit_loop.epoch_progress
        for progress in (epochs.current, epochs.total):
            progress.ready = progress.started = progress.processed = progress.completed = self._before.done

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._before is not None:
            # Making the loaders has drawn some, which it did not where the search was not interrupted.
            put_back_random(self._before.tensors)
            self._before = None
        self._begin = time.perf_counter()
        self._losses: list[float] = []
        epochs, done = self._settings.epochs, trainer.current_epoch
        valid = forward_batches(self._dataset.valid, self._settings.batch_size)
        self._work = Work(
            int(trainer.num_training_batches), valid, lambda share: self._on_batch((done + share) / epochs)
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # What judges architectures alone has no loss of weights.
        if outputs:
            self._losses.append(float(outputs["loss"]))
        self._work.trained(batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        drawn: list[dict[str, Any]] = []
        has_mask = hasattr(pl_module, "mask")

        def before_batch() -> None:
            if has_mask:
                pl_module.mask.resample()
            else:
                drawn.append(pl_module.resample())
            self._work.judged()

        with batch_statistics(pl_module.model):
            reached = accuracy(pl_module.model, self._dataset.valid, self._settings.batch_size, before_batch)
        epoch = Epoch(
            trainer.current_epoch,
            sum(self._losses) / max(1, len(self._losses)),
            reached,
            self._latency(pl_module, drawn),
            float(pl_module.mask.tau) if has_mask else None,
            time.perf_counter() - self._begin,
        )
        self.history.append(epoch)
        if self._checkpoint is not None:
            history = tuple(map(asdict, self.history))
            state = SearchState("search", len(history), history, tensors_of(pl_module, trainer.optimizers))
            self._checkpoint.save(state)
        self._on_epoch(epoch)

    def _latency(self, pl_module: Any, drawn: list[dict[str, Any]]) -> float:
        """Return the expected cost; where a strategy knows none, the mean cost of the networks drawn."""
        if not isinstance(getattr(pl_module, "penalty", None), LatencyPenalty):
            assert self._profiler is not None
            costs = [self._profiler.profile(sample) for sample in drawn]
            return sum(costs) / max(1, len(costs))
        mask = getattr(pl_module, "mask", None)
        was_training = mask is not None and mask.training
        if mask is not None:
            mask.eval()
        with torch.no_grad():
            latency = float(pl_module.penalty.profile({}))
        if mask is not None:
            mask.train(was_training)
        return latency
