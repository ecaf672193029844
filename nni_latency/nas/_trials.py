# SPDX-License-Identifier: Apache-2.0
"""A multi-trial search with NNI: each network that keeps the limit is trained separately, and the best one goes on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nni_latency.errors import MismatchError, UnreachableTargetError
from nni_latency.nas import _nni
from nni_latency.nas._checkpoint import Checkpoint, SearchState, put_back, tensors_of
from nni_latency.nas._datasets import Dataset, split
from nni_latency.nas._profiler import LatencyProfiler, sample_of
from nni_latency.nas._search import SearchResult, Trial, steps_of
from nni_latency.nas._settings import SearchSettings
from nni_latency.nas._training import OnBatch, quiet_lightning, train_found, train_on
from nni_latency.platforms import torch_threads
from nni_latency.spaces import check_sample, network_of


def run_trials(
    space: Any,
    dataset: Dataset,
    strategy: Any,
    settings: SearchSettings,
    *,
    profiler: LatencyProfiler,
    trials: int,
    checkpoint: Checkpoint | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    on_final_epoch: Callable[[int], None] = lambda index: None,
    on_batch: OnBatch = lambda share: None,
    on_final_batch: OnBatch = lambda share: None,
) -> SearchResult:
    """Search a network with a multi-trial strategy in an NNI experiment and train it.

    Every trial makes a network with new weights and trains it for `settings.epochs` on four fifths of the
    training images; the rest say how good it is. The best network learns on from all of them. Trials run one
    after the other in this process.

    Parameters
    ----------
    space : ModelSpace
        The space; it is not changed.
    dataset : Dataset
        Training and validation images.
    strategy : Strategy
        A multi-trial strategy of NNI with its filter.
    settings : SearchSettings
        How long and how fast; the epochs are those of one trial.
    profiler : LatencyProfiler
        The costs of the space.
    trials : int
        Most trials.
    checkpoint : Checkpoint, optional
        Where the search saves itself after every trial. If the file is there, the strategy draws the same networks
        again, and those that were trained are not trained again; its seed must therefore be set.
    on_trial, on_final_epoch : callable, optional
        Called after every trial, and every epoch of the final training.
    on_batch, on_final_batch : callable, optional
        Called after every batch with the share of the search, or of the final training, that is done.

    Returns
    -------
    SearchResult

    Raises
    ------
    UnreachableTargetError
        If the strategy ends without any network that passes its filter.
    MismatchError
        If the checkpoint is of another search, or the strategy draws other networks than before.
    LatencyError
        Whatever a trial raises: it ends the search.
    """
    judge = _Judge(space, dataset, profiler, settings, on_trial, checkpoint, lambda share: on_batch(share / trials))
    torch.manual_seed(settings.seed)
    with (
        quiet_lightning(),
        torch_threads(settings.threads),
        tempfile.TemporaryDirectory(prefix="nni-latency-") as folder,
    ):
        if not judge.is_over:
            _run(space, strategy, judge, folder, trials)
        if judge.best is None:
            raise UnreachableTargetError(
                "The strategy ended without a network in the range asked for. Widen the range, or try another strategy."
            )
        found, network = judge.best
        torch.manual_seed(settings.seed)
        accuracy = train_found(
            network, dataset, settings, on_final_epoch,
            checkpoint=checkpoint, sample=found.sample, history=judge.history, on_batch=on_final_batch,
        )  # fmt: skip
    return SearchResult(found.sample, network, found.latency, accuracy, tuple(judge.history))


def _run(space: Any, strategy: Any, judge: _Judge, folder: str, trials: int) -> None:
    experiment = _nni.NasExperiment(space, _nni.FunctionalEvaluator(judge), strategy)
    experiment.config.experiment_working_directory = Path(folder)
    experiment.config.execution_engine = _nni.SequentialEngineConfig()
    experiment.config.model_format = _nni.ModelFormatConfig("simplified")
    experiment.config.max_trial_number = trials
    try:
        experiment.run()
    finally:
        experiment.stop()
    if judge.error is not None:
        raise judge.error


class _Judge:
    """Trains the network of a trial and reports it to NNI; keeps the best one."""

    def __init__(
        self,
        space: Any,
        dataset: Dataset,
        profiler: LatencyProfiler,
        settings: SearchSettings,
        on_trial: Callable[[Trial], None],
        checkpoint: Checkpoint | None,
        on_batch: OnBatch,
    ) -> None:
        learned, held_out = split(dataset.train, settings.seed)
        before = None if checkpoint is None else checkpoint.state
        self.history: list[Trial] = []
        self.error: BaseException | None = None
        self.is_over = before is not None and before.sample is not None
        self._space = space
        self._checkpoint = checkpoint
        self._known = [replace(trial, sample=check_sample(space, trial.sample)) for trial in steps_of(before, Trial)]
        self.best = self._best_of(before) if before is not None and self._known else None
        if self.is_over:
            self.history = self._known
        self._dataset = replace(dataset, train=learned, valid=held_out)
        self._profiler = profiler
        self._settings = replace(settings, final_epochs=settings.epochs)
        self._on_trial = on_trial
        #: Called with the trials that are done, the part of the running one included.
        self._on_batch = on_batch

    def __call__(self, model: Any) -> None:
        """Judge the network of the running trial."""
        if self.error is not None:
            return
        try:
            accuracy = self._judge(dict(sample_of(_nni.nni.get_current_parameter())))
        except BaseException as error:  # NNI would note a failed trial, even an interrupted one, and go on
            self.error = error
            raise
        _nni.nni.report_final_result(accuracy)

    def _best_of(self, before: SearchState) -> tuple[Trial, nn.Module]:
        """Return the best network that was trained before, with its weights."""
        best = max(self._known, key=lambda trial: trial.accuracy)
        network = network_of(self._space, best.sample).anew()
        put_back(before.tensors, network)
        return best, network

    def _judge(self, sample: dict[str, Any]) -> float:
        if len(self.history) < len(self._known):
            return self._judged_before(self._known[len(self.history)], sample)
        begin = time.perf_counter()
        # So that a network learns the same whichever was tried before.
        torch.manual_seed(self._settings.seed)
        network = network_of(self._space, sample).anew()

        def on_batch(share: float) -> None:
            self._on_batch(len(self.history) + share)

        accuracy = train_on(network, self._dataset, self._settings, lambda index: None, on_batch=on_batch)
        latency = self._profiler.profile(sample)
        trial = Trial(len(self.history), accuracy, latency, time.perf_counter() - begin, sample)
        self.history.append(trial)
        if self.best is None or accuracy > self.best[0].accuracy:
            self.best = trial, network
        if self._checkpoint is not None:
            history = tuple(map(asdict, self.history))
            self._checkpoint.save(SearchState("search", len(history), history, tensors_of(self.best[1])))
        self._on_trial(trial)
        return accuracy

    def _judged_before(self, trial: Trial, sample: dict[str, Any]) -> float:
        if trial.sample != sample:
            raise MismatchError(
                f"The strategy draws another network for trial {trial.index + 1} than before the interruption, so "
                "the search cannot go on from its checkpoint."
            )
        self.history.append(trial)
        self._on_trial(trial)
        return trial.accuracy
