# SPDX-License-Identifier: Apache-2.0
"""The file of fusion rules."""

from __future__ import annotations

import json

import pytest

from nni_latency.errors import FileFormatError, MismatchError
from nni_latency.fusion import read_rules, save_rules
from nni_latency.operators import FusionRule, FusionRules, FusionTimes
from nni_latency.platforms import Platform

_RULES = FusionRules(
    Platform("cpu", "onnxruntime", facts={"runtime.version": "1.31"}),
    (
        FusionRule(("conv2d", "batch_norm"), True, folds=True, times=FusionTimes(4e-4, 1e-4, 4e-4, 0.1)),
        FusionRule(("conv2d", "add", "relu"), True, shared=True, source="read from the runtime's model: FusedConv"),
        FusionRule(("add", "relu"), False, times=FusionTimes(1e-4, -1e-6, 2e-4, 1.0)),
    ),
    1e-5,
    {"conv2d + gelu": "there is no gelu"},
    "c1",
    ("hardsigmoid",),
    {"cat": 16},
)


_PAIR = {"kinds": ["conv2d", "relu"], "fused": True}

_CPU = {"id": "cpu", "device": "cpu", "runtime": "torch", "precision": "fp32", "threads": 1}


@pytest.fixture
def path(tmp_path):
    return save_rules(_RULES, tmp_path / "rules.json")


def test_what_is_written_is_what_is_read(path):
    found = read_rules(path)
    assert found == _RULES
    assert found.platform.facts == _RULES.platform.facts


def test_rules_that_do_not_tell_of_layouts_are_read(path):
    content = json.loads(path.read_text())
    del content["plain"], content["blocks"]
    path.write_text(json.dumps(content))
    assert (read_rules(path).plain, read_rules(path).blocks) == ((), {})


def test_rules_of_another_runtime_are_refused(path):
    assert read_rules(path, Platform("another", "onnxruntime")) == _RULES
    for platform in (Platform("cpu", "openvino"), Platform("cpu", "onnxruntime", "int8")):
        with pytest.raises(MismatchError, match=f"not of {platform.runtime} in {platform.precision}"):
            read_rules(path, platform)


def test_rules_of_another_version_are_refused(path):
    newer = Platform("cpu", "onnxruntime", facts={"runtime.version": "1.32"})
    with pytest.raises(MismatchError, match=r"the runtime onnxruntime 1\.31 in fp32, not of onnxruntime 1\.32"):
        read_rules(path, newer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": [{"kinds": ["conv2d"], "fused": True}]}, "rules.0: .*must name two kinds of operators or more"),
        ({"more": 1}, "more is not a field of such a file"),
        ({"format": "nni_latency.lookup_table"}, "is not a file of fusion rules"),
        ({"version": 99}, "reads up to 1"),
        ({"constant": -1.0}, "constant must be at least 0. Got '-1.0'.$"),
        ({"blocks": {"cat": 0}}, "blocks.cat must be greater than 0. Got '0'.$"),
        ({"rules": {}}, "rules must be a list"),
        ({"rules": ["conv2d + relu"]}, "rules.0 must be an object of named fields. Got 'conv2d . relu'.$"),
        ({"rules": [{**_PAIR, "kinds": "conv2d + relu"}]}, "rules.0.kinds must be a list. Got 'conv2d . relu'.$"),
        ({"rules": [{**_PAIR, "kinds": ["conv2d", 1]}]}, "rules.0.kinds.1 must be text. Got '1'.$"),
        ({"rules": [{**_PAIR, "fused": "yes"}]}, "rules.0.fused must be true or false. Got 'yes'.$"),
        ({"rules": [{"kinds": ["conv2d", "relu"]}]}, "rules.0.fused is missing.$"),
        ({"rules": [{**_PAIR, "folded": True}]}, "rules.0.folded is not a field of such a file.$"),
        ({"rules": [{**_PAIR, "times": {"before": 1, "last": "1", "together": 1}}]}, "times.last must be a number"),
        ({"rules": [{**_PAIR, "times": 1e-4}]}, "rules.0.times must be an object of named fields. Got '0.0001'.$"),
        ({"campaign": 7}, "campaign must be text. Got '7'.$"),
        ({"platform": {**_CPU, "threads": "1"}}, "platform.threads must be a whole number. Got '1'.$"),
        (
            {"platform": {**_CPU, "facts": {"cores": [2]}}},
            r"platform.facts.cores must be true or false, a number or text. Got '\[2\]'.$",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_sentence(path, change, message):
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError, match=message):
        read_rules(path)


def test_two_rules_of_the_same_kinds_are_refused(path):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "rules": content["rules"][:1] * 2}))
    with pytest.raises(FileFormatError, match=r"is not valid: .*Got two for conv2d \+ batch_norm"):
        read_rules(path)
