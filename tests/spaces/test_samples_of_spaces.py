# SPDX-License-Identifier: Apache-2.0
"""Drawing, checking and reading samples of any space."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from hub_arguments import SMALL

from nni_latency.errors import InvalidValueError
from nni_latency.spaces import check_sample, draw_samples, make_space, read_sample


@pytest.fixture(scope="module")
def bench():
    """NasBench101, which rejects most draws and derives a nested choice of the others."""
    return make_space("nasbench101", SMALL["nasbench101"])


@pytest.fixture(scope="module")
def mobile():
    return make_space("mobilenetv3", SMALL["mobilenetv3"])


@pytest.fixture(scope="module")
def cells():
    return make_space("darts", SMALL["darts"])


def test_samples_are_valid_and_all_different(bench):
    samples = draw_samples(bench, 30)
    assert len({json.dumps(sample, sort_keys=True) for sample in samples}) == 30
    assert all(bench.contains(dict(sample)) for sample in samples)
    assert all("final" in "".join(sample) for sample in samples)


def test_drawing_depends_on_the_seed_alone(mobile):
    first = draw_samples(mobile, 5, 3)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].tolist()
    assert draw_samples(mobile, 5, 3) == first
    assert np.random.get_state()[1].tolist() == before
    assert draw_samples(mobile, 3, 3) == first[:3]
    assert draw_samples(mobile, 5, 4) != first


def test_a_random_state_goes_on(mobile):
    state = np.random.RandomState(0)
    assert draw_samples(mobile, 2, state) + draw_samples(mobile, 2, state) == draw_samples(mobile, 4, 0)


def test_a_small_space_gives_what_it_has():
    space = make_space("nasbench201")
    tiny = make_space(
        "proxylessnas", {"base_widths": [8] * 9, "num_labels": 2}
    )  # large, but the limit on tries must not bite
    assert len(draw_samples(tiny, 40)) == 40
    assert draw_samples(space, 0) == []


@pytest.mark.slow
def test_samples_survive_json(bench, mobile, cells):
    for space in (bench, mobile, cells):
        for sample in draw_samples(space, 3):
            assert check_sample(space, json.loads(json.dumps(sample))) == sample


def test_what_a_constraint_derives_may_be_left_out(bench):
    sample = draw_samples(bench, 1)[0]
    assert check_sample(bench, {label: value for label, value in sample.items() if label != "cell/final"}) == sample


def test_missing_and_unknown_labels_and_values_are_named(mobile, cells):
    sample = draw_samples(mobile, 1)[0]
    with pytest.raises(InvalidValueError, match=r"no choice for: stem_ks\."):
        check_sample(mobile, {label: value for label, value in sample.items() if label != "stem_ks"})
    with pytest.raises(InvalidValueError, match=r"MobileNetV3Space does not have: stem\. It has: s0_width_mult"):
        check_sample(mobile, {**sample, "stem": 3})
    with pytest.raises(InvalidValueError, match=r"'stem_ks' must be one of 3, 5\. Got 4"):
        check_sample(mobile, {**sample, "stem_ks": 4})
    several = draw_samples(cells, 1)[0]
    with pytest.raises(InvalidValueError, match=r"'normal/input_2_0' must be a list of 0, 1\. Got 1"):
        check_sample(cells, {**several, "normal/input_2_0": 1})
    with pytest.raises(InvalidValueError, match=r"is not one of DARTS: .*length 1"):
        check_sample(cells, {**several, "normal/input_2_0": [0, 1]})


def test_a_constraint_that_is_not_kept_is_named(bench):
    sample = dict(draw_samples(bench, 1)[0])
    sample |= {"cell/num_nodes": 2, "cell/input1": []}
    with pytest.raises(InvalidValueError, match=r"is not one of NasBench101: .*not connected"):
        check_sample(bench, sample)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must be an object of labels and choices. Got list"),
        ("{", r"Cannot read '.*sample\.json' as a saved sample"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_sample_is_refused(mobile, tmp_path, content, message):
    path = tmp_path / "sample.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValueError, match=message):
        read_sample(mobile, path)


def test_a_saved_sample_is_read(mobile, tmp_path):
    sample = draw_samples(mobile, 1)[0]
    path = tmp_path / "sample.json"
    path.write_text(json.dumps(sample))
    assert read_sample(mobile, path) == sample


def test_what_is_no_space_is_refused():
    with pytest.raises(InvalidValueError, match=r"must be an NNI model space\. Got Linear"):
        draw_samples(torch.nn.Linear(1, 1), 1)
