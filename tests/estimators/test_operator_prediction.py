# SPDX-License-Identifier: Apache-2.0
"""Operators that were not measured, predicted from those that were; tables of operators as estimators."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency import load_estimator
from nni_latency.errors import MissingEntryError
from nni_latency.estimators import OperatorPredictor, TableEstimator
from nni_latency.estimators._operator_predictor import describe
from nni_latency.operators import Features, OpSpec, capture_operators, family_of, work_of
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, SpaceReference


def conv(channels, out, size, kernel=1, groups=1):
    return OpSpec.of(
        "conv2d", [(1, channels, size, size)], out_channels=out, kernel_size=kernel, stride=1, groups=groups, bias=False
    )


def seconds(op):
    """Return the time of a machine that has a bend: large windows run faster per multiply-add."""
    work, _ = work_of(op)
    bend = 0.6 if op.get("kernel_size", 1) == 5 else 1.0
    return 4e-6 + bend * work.macs * 2e-11 + 3e-10 * (work.inputs + work.outputs + work.params)


def some_convs(generator, count):
    found = {}
    while len(found) < count:
        channels, out, size = (
            int(generator.choice(options)) for options in ((8, 16, 24, 48, 96), (16, 32, 64), (7, 14, 28))
        )
        kernel = int(generator.choice((1, 3, 5)))
        depthwise = bool(generator.randint(2)) and kernel > 1
        op = conv(channels, channels if depthwise else out, size, kernel, channels if depthwise else 1)
        found[op.op_key] = op
    return list(found.values())


@pytest.fixture(scope="module")
def predictor():
    ops = some_convs(np.random.RandomState(0), 100)
    noise = np.random.RandomState(1).normal(0, 0.02, len(ops))
    return OperatorPredictor(ops, [seconds(op) * math.exp(error) for op, error in zip(ops, noise, strict=True)])


def test_unseen_operators_are_predicted_well(predictor):
    known = {op.op_key for op in predictor.ops}
    unseen = [op for op in some_convs(np.random.RandomState(2), 140) if op.op_key not in known]
    assert len(unseen) > 40
    found = [predictor.estimate_op(op) for op in unseen]
    errors = [item.value / seconds(op) - 1 for item, op in zip(found, unseen, strict=True)]
    assert np.median(np.abs(errors)) < 0.05
    assert np.mean([item.low <= seconds(op) <= item.high for item, op in zip(found, unseen, strict=True)]) >= 0.85
    assert all(item.low < item.value < item.high for item in found)


def test_the_spread_of_members_left_out_is_reported(predictor):
    assert set(predictor.spreads) == {"conv2d pointwise", "conv2d dense", "conv2d depthwise"}
    assert sum(count for count, _ in predictor.spreads.values()) == 100
    assert all(0 < spread < 0.1 for _, spread in predictor.spreads.values())


@pytest.mark.parametrize("factor", [4, 16, 64])
def test_far_away_a_prediction_stays_in_proportion_to_the_work(predictor, factor):
    op = conv(96 * factor, 64 * factor, 28)
    found = predictor.estimate_op(op)
    assert 0.4 < found.value / seconds(op) < 2.5
    near = predictor.estimate_op(conv(96, 64, 28))
    assert found.high / found.low > near.high / near.low


@given(count=st.integers(1, 8), seed=st.integers(0, 50))
def test_few_operators_give_sane_predictions_too(count, seed):
    ops = some_convs(np.random.RandomState(seed), count)
    few = OperatorPredictor(ops, [seconds(op) for op in ops])
    for op in some_convs(np.random.RandomState(seed + 1), 5):
        found = few.estimate_op(op)
        assert 0 < found.low <= found.value <= found.high < math.inf
        assert 0.02 < found.value / seconds(op) < 50


def test_a_kind_that_was_never_seen_is_not_predicted(predictor):
    assert predictor.estimate_op(OpSpec.of("relu", [(1, 4)])) is None
    # A family that was not seen, of a kind that was, is: less surely.
    grouped = conv(96, 96, 14, 3, groups=4)
    assert family_of(grouped) == "conv2d grouped"
    found = predictor.estimate_op(grouped)
    assert found.high / found.low > 4


def test_strange_operators_are_described_by_their_shapes():
    assert work_of(OpSpec.of("mystery", [(2, 3), (4,)], out=(5, 6))) == (
        Features(memory=160, inputs=10, outputs=30),
        False,
    )
    ops = [OpSpec.of("mystery", [(2, 2**k)], mode="up", factor=2.0, sizes=(2, 3)) for k in range(4)]
    strange = OperatorPredictor(ops, [1e-6 * (k + 1) for k in range(4)])
    known, other = (strange.estimate_op(OpSpec.of("mystery", [(2, 6)], mode=mode)) for mode in ("up", "down"))
    assert other.high / other.low > known.high / known.low


def test_parameters_among_the_inputs_are_numbers_and_no_names():
    described = describe(OpSpec.of("mul", [(1, 8, 4, 4), (8, 1, 1)], learned="+8x1x1"))
    assert not [name for name in described if name.startswith("learned")]
    assert (described["inputs"], described["params"], described["second"]) == (128, 8, 8)


@pytest.fixture(scope="module")
def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    ).eval()


def table_of(network, **options):
    ops = {op.op_key: op for _, op in capture_operators(network, torch.zeros(1, 3, 8, 8))}
    entries = tuple(Entry(seconds(op), 0.9 * seconds(op), 1.2 * seconds(op), 4, 0, op, 1, 1) for op in ops.values())
    return LookupTable(
        space=SpaceReference("mine"),
        platform=Platform("a", "torch"),
        input_shape=(1, 3, 8, 8),
        operators=entries,
        **options,
    )


def test_measured_operators_have_their_entries_and_others_are_named(network, tmp_path):
    estimator = load_estimator(str(table_of(network).save(tmp_path / "t.json")))
    assert isinstance(estimator, TableEstimator)
    assert "mine" in repr(estimator)
    whole = estimator.estimate(network, torch.zeros(1, 3, 8, 8))
    assert whole.missing == ()
    assert whole.value == pytest.approx(sum(entry.value for entry in estimator.table.entries))
    larger = estimator.estimate(network, torch.zeros(1, 3, 16, 16))
    assert larger.value > whole.value
    assert len(larger.missing) == 4
    assert all(name.startswith("predicted: ") for name in larger.missing)
    assert (larger.high - larger.low) / larger.value > (whole.high - whole.low) / whole.value


def test_a_kind_without_entries_is_guessed_by_its_size_and_named(network):
    estimator = TableEstimator(table_of(network))
    small, large = (estimator.estimate_op(OpSpec.of("affine_grid", [(1, 2, 3)], out=(1, k, k, 2))) for k in (8, 800))
    assert small.missing == ("guessed by its size: affine_grid(out=1x8x8x2)@1x2x3:float32",)
    assert large.value > 10 * small.value
    assert large.high / large.low > 4
    strict = TableEstimator(table_of(network), missing="error")
    with pytest.raises(MissingEntryError, match=r"no entry for the operator tanh\(\)@1x4"):
        strict.estimate(nn.Tanh(), torch.zeros(1, 4))
