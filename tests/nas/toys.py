# SPDX-License-Identifier: Apache-2.0
"""What the tests of the glue share: spaces that learn in a blink, and searches in them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyPenalty, LatencyProfiler, architecture_parameters
from nni_latency.tables import LookupTable

with quiet_nni():
    from nni.nas.evaluator.pytorch import Classification, DataLoader
    from nni.nas.experiment import NasExperiment
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

#: Latencies [s] of `Toy`: the fastest candidate stands at another place in every layer.
LATENCIES = {
    "a": {"x": 2e-3, "y": 3e-3, "z": 1e-3},
    "b": {"x": 1e-3, "y": 2e-3},
    "c": {"x": 4e-3, "y": 1e-3, "z": 3e-3, "w": 2e-3},
}
FASTEST = {"a": "z", "b": "x", "c": "y"}

#: Architecture parameters of `Toy`, drawn by hypothesis.
SCORES = st.tuples(*(st.lists(st.floats(-8, 8), min_size=len(row), max_size=len(row)) for row in LATENCIES.values()))


class Toy(ModelSpace):
    """Three layers with unequal numbers of candidates, all of which compute alike."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(LayerChoice({name: _block() for name in choices}, label=label) for label, choices in LATENCIES.items())
        )
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.layers(inputs))


class Listed(ModelSpace):
    """Layers whose candidates are lists, so that NNI's samples hold indices."""

    def __init__(self):
        super().__init__()
        self.first = LayerChoice([_block(), _block(), _block()], label="first")
        self.second = LayerChoice([_block(), _block()], label="second")
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.second(self.first(inputs)))


class Shared(ModelSpace):
    """Two layers under one label."""

    def __init__(self):
        super().__init__()
        self.first = LayerChoice({"x": _block(), "y": _block()}, label="both")
        self.second = LayerChoice({"x": _block(), "y": _block()}, label="both")
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.second(self.first(inputs)))


class Fixed(ModelSpace):
    """A space that has nothing to choose."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(inputs)


def _block():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def scaled(factors):
    """Return the latencies with every layer's order kept and its numbers changed."""
    return {
        label: {choice: seconds * factor for choice, seconds in LATENCIES[label].items()}
        for label, factor in zip(LATENCIES, factors, strict=True)
    }


def reversed_latencies():
    """Return other latencies: what was fast is slow."""
    return {label: {choice: 6e-3 - cost for choice, cost in row.items()} for label, row in LATENCIES.items()}


def table_of(space, latencies=None):
    return LookupTable.from_latencies(space, LATENCIES if latencies is None else latencies)


def profiler_of(space, latencies=None):
    return LatencyProfiler(space, latency_estimator=table_of(space, latencies))


def penalty_of(space, latencies=None, **options):
    return LatencyPenalty(profiler_of(space, latencies), 3e-3, **options)


def pictures(count=64, seed=1):
    """Return numbers in two classes that can be separated in part."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    noise = torch.randn(count, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) + noise > 0).long())


def latency_of(sample, latencies=LATENCIES):
    """Return the latency of a network [s]."""
    return sum(latencies[label][choice] for label, choice in sample.items())


def expected_latency(probabilities, latencies=LATENCIES):
    """Return the mean latency [s] of probabilities as a strategy exports them."""
    return sum(float(share) * latencies[label][c] for label, row in probabilities.items() for c, share in row.items())


def evaluator_for(epochs, folder, *, dataset=None, batch_size=16, learning_rate=1e-2, callbacks=()):
    dataset = dataset or pictures()
    return Classification(
        num_classes=2,
        learning_rate=learning_rate,
        train_dataloaders=DataLoader(dataset, batch_size, shuffle=True),
        val_dataloaders=DataLoader(dataset, batch_size, shuffle=True),
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
    )


def run_experiment(space, strategy, evaluator, folder, **config):
    experiment = NasExperiment(space, evaluator, strategy)
    experiment.config.experiment_working_directory = Path(folder)
    for name, value in config.items():
        setattr(experiment.config, name, value)
    try:
        experiment.run()
        return dict(experiment.export_top_models(1, formatter="dict")[0])
    finally:
        experiment.stop()


def search(space, strategy, *, epochs=3, callbacks=(), seed=0):
    """Run an NNI experiment on the toy data; return what it exports."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        return run_experiment(space, strategy, evaluator_for(epochs, folder, callbacks=callbacks), folder)


def module_of(space, strategy, folder):
    """Return the training module of a one-shot strategy, made for a space and not trained."""
    supernet = strategy.mutate_model(space)
    made = strategy.configure_oneshot_module(evaluator_for(1, folder).module)
    made.set_model(supernet)
    return made


def with_scores(module, target, scores):
    """Set the target and the architecture parameters of a training module; return it."""
    module.penalty.baseline = target
    with torch.no_grad():
        for alpha, row in zip(dict(architecture_parameters(module.model)).values(), scores, strict=True):
            alpha.copy_(torch.tensor(row))
    return module


def seeded(kind, seed=0):
    """Make a space with the same initial weights every time."""
    torch.manual_seed(seed)
    return kind()
