# SPDX-License-Identifier: Apache-2.0
"""Probes are the networks that their names say."""

from __future__ import annotations

import pytest
import torch

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.fusion import PROBES, Probe, operator_names, parse_probes
from nni_latency.operators import FusionRule, FusionRules, Inputs, trace
from nni_latency.platforms import Platform


def _operators(subject):
    shape = subject.inputs
    inputs = shape.tensors if isinstance(shape, Inputs) else torch.empty(shape, device="meta")
    return trace(subject.build(), inputs).operators


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_networks_of_a_probe_run_what_it_names(probe):
    before, last, together = map(_operators, probe.networks)
    rule = FusionRule(probe.kinds, True)
    assert FusionRules(Platform("cpu"), (rule,)).find([item.op for item in together[:-1]], together[-1].op) is rule
    assert len(together) == len(probe.kinds) == len(before) + 1
    assert len(last) == 1
    # What was measured apart is what runs together.
    assert [item.op for item in (*before, *last)] == [item.op for item in together]
    assert {item.name: place for place, item in enumerate(together)} | {"branch": 0} == operator_names(probe.whole)


def test_probes_of_one_name_are_there_once():
    assert len(set(PROBES)) == len(PROBES)
    assert len({probe.whole.key for probe in PROBES}) == len(PROBES)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("conv2d", InvalidValueError, "two operators or more"),
        ("conv2d+convolution", UnknownNameError, "Unknown operator 'convolution'"),
        ("conv2d+layer_norm", InvalidValueError, "all take feature maps, or tokens"),
        ("add+max_pool2d+add", InvalidValueError, "must all take one shape"),
        ("", UnknownNameError, "Unknown operator ''"),
    ],
)
def test_probes_that_cannot_be_are_refused(text, error, message):
    with pytest.raises(error, match=message):
        parse_probes(text)


def test_only_normalisation_behind_weights_is_folded():
    assert Probe(("conv2d depthwise", "batch_norm")).folds
    assert not Probe(("relu", "batch_norm")).folds
    assert not Probe(("conv2d", "relu")).folds


def test_a_runtime_is_asked_about_two_branches():
    probe = Probe(("conv2d", "add", "relu"))
    found = [(item.name, item.sources) for item in _operators(probe.asked)]
    assert found == [("branch", ()), ("parts.0", ()), ("parts.1", (1, 0)), ("parts.2", (2,))]
    assert [item.name for item in _operators(Probe(("relu", "add")).asked)] == ["parts.0", "parts.1"]
