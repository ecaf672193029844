# SPDX-License-Identifier: Apache-2.0
"""Every built-in estimator keeps the contract of estimators."""

from __future__ import annotations

import functools
import inspect
import re

import numpy as np
import pytest
import torch
from acts_points import draw_blocks, noisy, time_of
from torch import nn
from whole_network import WholeNetwork

from nni_latency import energy, estimators, graphs, kernels, load_estimator
from nni_latency.errors import MissingEntryError
from nni_latency.estimators import (
    ActsEstimator,
    Estimate,
    Estimator,
    GraphEstimator,
    KernelEstimator,
    LayerEstimator,
    MeasuredNetworkEstimator,
    ModuleEstimator,
    PredictedRest,
    TableEstimator,
    TransferEstimator,
    make_ensemble,
    with_fallback,
)
from nni_latency.operators import FusionRule, FusionRules, capture_operators, features_of
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace, choices_of
from nni_latency.tables import (
    Entry,
    LookupTable,
    Residency,
    SpaceReference,
    scale_table,
    subset_table,
)
from nni_latency.testing import FakeRuntime, check_estimator

_SPACE = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25)
_INPUTS = _SPACE.example_inputs()
_MODEL = _SPACE.freeze(dict.fromkeys(_SPACE.simplify(), "k5_e6"))
_OTHER = _SPACE.freeze(dict.fromkeys(_SPACE.simplify(), "k3_e3"))
_HERE = Platform("pi")


def _seconds(op):
    """Return the time of an operator on an invented device [s]."""
    features = features_of(op)
    return 1e-5 + 1e-10 * (features.macs or 0) + 1e-10 * features.outputs


def _table(power=1.0):
    latencies = {
        layer.name: {choice: _seconds(candidate.op) ** power for choice, candidate in layer.candidates.items()}
        for layer in _SPACE.measure_plan().layers
    }
    return LookupTable.from_latencies(_SPACE, latencies, platform=_HERE)


class _ByWork(LayerEstimator):
    metric, platform = "latency", _HERE

    def estimate_op(self, op):
        return Estimate(*[_seconds(op)] * 3)


def _operator_table():
    ops = {op.op_key: op for _, op in capture_operators(_OTHER, _INPUTS)}
    entries = tuple(Entry(s := _seconds(op), 0.9 * s, 1.2 * s, 4, 0, op, 1, 1) for op in ops.values())
    table = LookupTable(
        space=SpaceReference("mine"),
        platform=_HERE,
        input_shape=(1, 3, 32, 32),
        operators=entries,
        calibration=1.1,
        residency=Residency(0.3, 1e-4),
    )
    return load_estimator(table)


def _acts(variant):
    blocks = draw_blocks(40)
    return ActsEstimator(variant=variant).fit(blocks, noisy([time_of(block) for block in blocks]), platform=_HERE)


def _measuring(kind):
    return kind(runtime=FakeRuntime(_seconds), store="memory")


def _predicted_rest():
    """Know the operators of another network, from which those of the model are predicted."""
    estimator = _measuring(ModuleEstimator)
    estimator.estimate(_OTHER, _INPUTS)
    return PredictedRest(
        estimator, [op for network in (_OTHER, _MODEL) for _, op in capture_operators(network, _INPUTS)]
    )


def _transfer():
    """Adapt to a device whose costs lie between those of the known ones."""
    choices = choices_of(_SPACE)
    networks = np.random.default_rng(0).integers([len(row) for row in choices.values()], size=(40, len(choices)))
    latencies = {power: TableEstimator(_table(power)).predict(networks) for power in (0.9, 1.0, 1.02, 1.1)}
    known = {f"device {power}": latencies[power] for power in (0.9, 1.0, 1.1)}
    estimator = TransferEstimator(_SPACE, platform=_HERE).fit_sources(networks, known)
    return estimator.fit(networks[:5], latencies[1.02][:5])


class _Kernels:
    """Knows what every kernel costs: what its operators do, and the first two of them together less."""

    metric, platform = "latency", _HERE

    def estimate_fused(self, ops):
        seconds = sum(map(_seconds, ops)) * (0.8 if len(ops) > 1 else 1.0)
        return Estimate(seconds, 0.9 * seconds, 1.1 * seconds)


def _kernels():
    rules = FusionRules(_HERE, (FusionRule(("conv2d", "batch_norm"), True),))
    return KernelEstimator(rules, _Kernels(), constant=1e-6)


_ESTIMATORS = {
    "kernels": _kernels,
    "table": lambda: TableEstimator(_table()),
    "table with nearest entries": lambda: TableEstimator(subset_table(_table(), choices=["k5_e3"]), missing="nearest"),
    "operator table": _operator_table,
    "acts refined": lambda: _acts("refined"),
    "acts published": lambda: _acts("published"),
    "module": lambda: _measuring(ModuleEstimator),
    "graph": lambda: _measuring(GraphEstimator),
    "network": lambda: _measuring(MeasuredNetworkEstimator),
    "predicted rest": _predicted_rest,
    "transfer": _transfer,
    "fallback": lambda: with_fallback(subset_table(_table(), choices=["k3_e1", "k3_e6", "k5_e3"]), _ByWork()),
    "network fallback": lambda: with_fallback(subset_table(_table(), choices=["k3_e1"]), WholeNetwork(0.25)),
    "ensemble": lambda: make_ensemble([TableEstimator(_table()), TableEstimator(scale_table(_table(), 1.5))]),
    "network ensemble": lambda: make_ensemble([TableEstimator(_table()), WholeNetwork(0.2)]),
}


@functools.cache
def _made(name):
    return _ESTIMATORS[name]()


@pytest.mark.parametrize("name", _ESTIMATORS)
def test_estimator_keeps_the_contract(name):
    check_estimator(_made(name), _MODEL, _INPUTS)


def _concrete(kind):
    for below in kind.__subclasses__():
        yield from _concrete(below)
    if kind.__module__.startswith("nni_latency.estimators.") and not inspect.isabstract(kind):
        yield kind


def test_every_built_in_estimator_is_held_to_the_contract():
    public = {kind.__name__ for kind in _concrete(Estimator) if not kind.__name__.startswith("_")}
    assert public == {type(_made(name)).__name__ for name in _ESTIMATORS}


class _Strange(nn.Module):
    """Has operators of kinds that no estimator knows, one of them without an input."""

    def forward(self, inputs):
        turn = inputs.mean((2, 3))[:, None, :].expand(-1, 2, -1)
        grid = torch.nn.functional.affine_grid(turn, list(inputs.shape), align_corners=False)
        return torch.special.erfcx(grid).sum() + torch.hamming_window(8, device=inputs.device)


@pytest.mark.parametrize("name", _ESTIMATORS)
def test_operators_of_unknown_kinds_are_costed_or_missing(name):
    """What an estimator cannot guess, because it knows the candidates of a space alone, it says to be missing."""
    try:
        answer = _made(name).estimate(_Strange(), torch.zeros(1, 3, 8, 8))
    except MissingEntryError:
        assert name in ("table", "transfer", "ensemble", "network ensemble")
    else:
        assert 0 < answer.low <= answer.value <= answer.high < float("inf")


#: What a method of this name returns: one thing with its interval, many values, or several arrays of them.
_RESULTS = {
    "estimate": {"Estimate"},
    "estimate_all": {"list[Estimate]"},
    "estimate_platforms": {"dict[str, Estimate]"},
    "estimate_": {"Estimate", "Estimate | None", "Cost", "Cost | None"},
    "predict": {"Array", "NDArray[np.float64]"},
    "predict_all": {"Array"},
    "predict_": {
        f"tuple[{', '.join([array] * count)}]" for array in ("Array", "NDArray[np.float64]") for count in (2, 3)
    },
    "measure": {"None"},
}


def _costing_methods():
    """List the methods of public classes that say what something costs."""
    found = []
    for room in (energy, estimators, graphs, kernels):
        for kind in filter(inspect.isclass, (getattr(room, name) for name in room.__all__)):
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                verb = next(
                    (verb for verb in ("estimate", "predict", "measure") if re.match(f"{verb}(_|$)", name)), None
                )
                if verb and method.__module__.startswith("nni_latency."):
                    found.append(pytest.param(name, verb, method, id=f"{kind.__name__}.{name}"))
    return found


@pytest.mark.parametrize(("name", "verb", "method"), _costing_methods())
def test_verbs_mean_the_same_everywhere(name, verb, method):
    assert method.__annotations__["return"] in _RESULTS.get(name, _RESULTS.get(f"{verb}_"))
    given = [item for item in inspect.signature(method).parameters.values() if item.name != "self"]
    if name == "predict":
        assert all(item.default is not item.empty for item in given[1:]), "predict takes rows, and options"
    if name == "estimate":
        assert [item.name for item in given] == ["model", "example_inputs"]
    if name == "measure":
        assert method.__qualname__ == "MeasuringEstimator.measure"


def test_predict_returns_the_values_of_estimates():
    sizes = [len(row) for row in choices_of(_SPACE).values()]
    networks = np.random.default_rng(1).integers(sizes, size=(3, len(sizes)))
    for estimator in (TableEstimator(_table()), _made("transfer")):
        expected = [estimator.estimate_sample(network).value for network in networks]
        assert estimator.predict(networks) == pytest.approx(expected)
        assert estimator.predict(networks[0]) == pytest.approx(expected[0])
