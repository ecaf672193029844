"""A whole search with NNI: supernet, strategy, experiment, and the training of what was found."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.nas._datasets import Dataset, split
from nni_latency.nas._fbnet import FBNet
from nni_latency.nas._nni import Classification, DataLoader, ModelSpace, NasExperiment


@dataclass(frozen=True)
class SearchSettings:
    """How long and how fast a search learns.

    Parameters
    ----------
    epochs : int, default=5
        Epochs of the search.
    final_epochs : int, default=10
        Epochs in which the network found learns on, with the weights that it inherits from the supernet.
    batch_size : int, default=64
        Pictures a step.
    learning_rate : float, default=0.003
        Of the weights (Adam).
    seed : int, default=0
        Seed of everything random.
    threads : int, default=1
        Threads of torch while it learns on the CPU. Small pictures gain little from more, and threads that wait for one
        another make a step tens of times slower where other processes want the cores.
    """

    epochs: int = 5
    final_epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("final_epochs", 0), ("batch_size", 2), ("seed", 0), ("threads", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidValueError(f"The {name!r} of a search must be an int >= {least}. Got {value!r}.")
        if not self.learning_rate > 0:
            raise InvalidValueError(f"The 'learning_rate' of a search must be > 0. Got {self.learning_rate!r}.")


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
        Share of the held-back pictures that the supernet classifies rightly under freshly drawn masks.
    latency : float
        Expected cost of the probabilities, in the SI unit of the metric.
    temperature : float
        Of the Gumbel softmax.
    duration : float
        Time that it took [s].
    """

    index: int
    loss: float
    accuracy: float
    latency: float
    temperature: float
    duration: float


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
        Share of the held-back pictures that it classifies rightly.
    history : tuple of Epoch
        The epochs of the search.
    """

    sample: dict[str, Any]
    network: nn.Module
    latency: float
    accuracy: float
    history: tuple[Epoch, ...]


def run_search(
    space: ModelSpace,
    dataset: Dataset,
    strategy: FBNet,
    settings: SearchSettings,
    *,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_final_epoch: Callable[[int], None] = lambda index: None,
) -> SearchResult:
    """Search a network in an NNI experiment and train it.

    Of the pictures to learn from, weights take four fifths and architecture parameters the rest, as in the FBNet paper;
    the network found learns from all of them. Neither ever sees the pictures to judge by.

    Parameters
    ----------
    space : ModelSpace
        The space; it is turned into a supernet in place.
    dataset : Dataset
        What to learn from and to judge by.
    strategy : FBNet
        How to search.
    settings : SearchSettings
        How long and how fast.
    on_epoch, on_final_epoch : callable, optional
        Called after every epoch of the search, and of the final training.

    Returns
    -------
    SearchResult
    """
    torch.manual_seed(settings.seed)
    with _quiet_lightning(), _threads(settings.threads), tempfile.TemporaryDirectory(prefix="nni-latency-") as folder:
        recorder = _Recorder(dataset, settings, on_epoch)
        for_weights, for_architecture = split(dataset.train, settings.seed)
        evaluator = Classification(
            num_classes=dataset.num_classes,
            learning_rate=settings.learning_rate,
            train_dataloaders=_loader(for_weights, settings),
            val_dataloaders=_loader(for_architecture, settings),
            max_epochs=settings.epochs,
            callbacks=[recorder],
            **_bare_trainer(folder),
        )
        experiment = NasExperiment(space, evaluator, strategy)
        experiment.config.experiment_working_directory = Path(folder)
        try:
            experiment.run()
            sample = dict(experiment.export_top_models(1, formatter="dict")[0])
        finally:
            experiment.stop()
        network = space.freeze(sample)
        accuracy = _train_on(network, dataset, settings, on_final_epoch)
    assert strategy.profiler is not None, "the experiment has initialised the strategy"
    return SearchResult(sample, network, strategy.profiler.profile(sample), accuracy, tuple(recorder.history))


class _Recorder(Callback):
    """Note what every epoch comes to."""

    def __init__(self, dataset: Dataset, settings: SearchSettings, on_epoch: Callable[[Epoch], None]) -> None:
        self.history: list[Epoch] = []
        self._dataset = dataset
        self._settings = settings
        self._on_epoch = on_epoch
        self._begin = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.perf_counter()
        self._losses: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._losses.append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        with _batch_statistics(pl_module.model):
            accuracy = _share_right(
                pl_module.model, self._dataset.valid, self._settings.batch_size, pl_module.mask.resample
            )
        was_training = pl_module.mask.training
        pl_module.mask.eval()
        with torch.no_grad():
            latency = float(pl_module.penalty.profile({}))
        pl_module.mask.train(was_training)
        epoch = Epoch(
            trainer.current_epoch,
            sum(self._losses) / max(1, len(self._losses)),
            accuracy,
            latency,
            float(pl_module.mask.tau),
            time.perf_counter() - self._begin,
        )
        self.history.append(epoch)
        self._on_epoch(epoch)


def accuracy_of(network: nn.Module, pictures: Any, batch_size: int = 64) -> float:
    """Return the share of the pictures that a network classifies rightly, in evaluation mode."""
    was_training = network.training
    network.eval()
    share = _share_right(network, pictures, batch_size)
    network.train(was_training)
    return share


def _share_right(
    network: nn.Module, pictures: Any, batch_size: int, before_batch: Callable[[], None] = lambda: None
) -> float:
    device = next(network.parameters()).device
    right = total = 0
    with torch.no_grad():
        for inputs, classes in torch.utils.data.DataLoader(pictures, batch_size):
            before_batch()
            guesses = network(inputs.to(device)).argmax(1)
            right += int((guesses == classes.to(device)).sum())
            total += len(classes)
    return right / max(1, total)


@contextlib.contextmanager
def _batch_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by the statistics of each batch, and leave the running ones alone.

    In a supernet the running statistics mix those of all masks, so they fit none.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _train_on(
    network: nn.Module, dataset: Dataset, settings: SearchSettings, on_final_epoch: Callable[[int], None]
) -> float:
    """Let the network found learn on, and return its accuracy on the held-back pictures."""
    network.requires_grad_(True)
    device = next(network.parameters()).device
    loader = _loader(dataset.train, settings)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    # Falling to zero, so that the statistics of the batch normalisation settle.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.final_epochs * len(loader)))
    network.train()
    for index in range(settings.final_epochs):
        for inputs, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs.to(device)), classes.to(device)).backward()
            optimizer.step()
            schedule.step()
        on_final_epoch(index)
    return accuracy_of(network, dataset.valid, settings.batch_size)


def _loader(pictures: Any, settings: SearchSettings) -> Any:
    # A last batch of one picture would break batch normalisation.
    return DataLoader(pictures, settings.batch_size, shuffle=True, drop_last=len(pictures) >= settings.batch_size)


def _bare_trainer(folder: str) -> dict[str, Any]:
    return {
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence chatter about loggers and workers that says nothing about the search."""
    loggers = [logging.getLogger(name) for name in ("nni", "pytorch_lightning", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning|torchmetrics|nni)(\..*)?")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the threads, and treat numbers too small for the processor's fast path as zero.

    Candidates that the mask hardly uses get gradients of that size, and an epoch then takes several times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
