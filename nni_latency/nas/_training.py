# SPDX-License-Identifier: Apache-2.0
"""Learning, whatever is searched: loaders, accuracy, the training of one network, and quiet surroundings."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from nni_latency.nas._checkpoint import Checkpoint, SearchState, put_back, tensors_of
from nni_latency.nas._datasets import Dataset
from nni_latency.nas._nni import DataLoader
from nni_latency.nas._settings import SearchSettings

#: What is called after every batch, with the share of the work that is done.
OnBatch = Callable[[float], None]

#: What a batch takes that is only judged, in batches that are learned from: those go back as well, twice as much.
_FORWARD = 1 / 3


class Work:
    """How much of a training is done.

    Parameters
    ----------
    train, valid : int
        Batches that are learned from, and batches that are judged after them.
    on_batch : callable
        Called after every batch, with the share that is done.
    """

    def __init__(self, train: int, valid: int, on_batch: OnBatch) -> None:
        self._total, self._on_batch = train + valid * _FORWARD, on_batch
        self._done = 0.0

    def trained(self, batches: int) -> None:
        """Note how many batches have been learned from."""
        self._report(batches)

    def judged(self) -> None:
        """Note one more batch that was judged."""
        self._report(self._done + _FORWARD)

    def _report(self, done: float) -> None:
        self._done = done
        self._on_batch(min(1.0, done / max(1.0, self._total)))


def forward_batches(images: Any, batch_size: int) -> int:
    """Return in how many batches images are judged."""
    return math.ceil(len(images) / batch_size)


def accuracy(network: nn.Module, images: Any, batch_size: int, before_batch: Callable[[], object]) -> float:
    """Return the share of the images that a network classifies correctly, in the mode that it is in."""
    device = next(network.parameters()).device
    right = total = 0
    with torch.no_grad():
        for inputs, classes in torch.utils.data.DataLoader(images, batch_size):
            before_batch()
            guesses = network(inputs.to(device)).argmax(1)
            right += int((guesses == classes.to(device)).sum())
            total += len(classes)
    return right / max(1, total)


@contextlib.contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
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


def train_found(
    network: nn.Module,
    dataset: Dataset,
    settings: SearchSettings,
    on_final_epoch: Callable[[int], None],
    *,
    checkpoint: Checkpoint | None,
    sample: dict[str, Any],
    history: Sequence[Any],
    on_batch: OnBatch,
) -> float:
    """Let the network found learn on, from where a checkpoint left it, and return its accuracy."""
    if checkpoint is None:
        return train_on(network, dataset, settings, on_final_epoch, on_batch=on_batch)
    steps = tuple(map(asdict, history))

    def save(done: int, *optimizers: torch.optim.Optimizer) -> None:
        checkpoint.save(SearchState("final", done, steps, tensors_of(network, optimizers), sample))

    state = checkpoint.state
    if state is None or state.sample is None:
        save(0)
        state = None
    return train_on(network, dataset, settings, on_final_epoch, save=save, state=state, on_batch=on_batch)


def train_on(
    network: nn.Module,
    dataset: Dataset,
    settings: SearchSettings,
    on_final_epoch: Callable[[int], None],
    *,
    save: Callable[[int, torch.optim.Optimizer], None] = lambda done, optimizer: None,
    state: SearchState | None = None,
    on_batch: OnBatch = lambda share: None,
) -> float:
    """Let a network learn on, and return its accuracy on the held-out images."""
    network.requires_grad_(True)
    device = next(network.parameters()).device
    loader = loader_of(dataset.train, settings)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    if state is not None:
        put_back(state.tensors, network, [optimizer])
    steps = settings.final_epochs * len(loader)
    work = Work(steps, forward_batches(dataset.valid, settings.batch_size), on_batch)
    network.train()
    for index in range(0 if state is None else state.done, settings.final_epochs):
        for step, (inputs, classes) in enumerate(loader, index * len(loader)):
            # Falling to zero, so that the statistics of the batch normalisation settle.
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs.to(device)), classes.to(device)).backward()
            optimizer.step()
            work.trained(step + 1)
        save(index + 1, optimizer)
        on_final_epoch(index)
    network.eval()
    reached = accuracy(network, dataset.valid, settings.batch_size, work.judged)
    network.train()
    return reached


def loader_of(images: Any, settings: SearchSettings) -> Any:
    """Return shuffled batches of images."""
    # A last batch of one image would break batch normalisation.
    return DataLoader(images, settings.batch_size, shuffle=True, drop_last=len(images) >= settings.batch_size)


def bare_trainer(folder: str) -> dict[str, Any]:
    """Return the arguments of a Lightning trainer that writes and prints nothing."""
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
def quiet_lightning() -> Iterator[None]:
    """Silence chatter about loggers and workers that says nothing about the search."""
    loggers = [logging.getLogger(name) for name in ("nni", "pytorch_lightning", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning|torchmetrics|nni)(\..*)?")
        try:
            for logger in loggers:
                # What NNI calls an error of a model or a strategy is raised as well.
                logger.setLevel(logging.CRITICAL if logger.name == "nni" else logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
