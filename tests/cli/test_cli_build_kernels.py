# SPDX-License-Identifier: Apache-2.0
"""``learn kernels`` on the command line, on an invented device."""

from __future__ import annotations

import json
import zlib

import pytest
from PIL import Image

from nni_latency.cli import _remote_options
from nni_latency.kernels import KernelPredictors, Prior
from nni_latency.operators import work_of
from nni_latency.testing import FakeRuntime


def _seconds(op):
    found = work_of(op)[0]
    return 1e-6 + 3e-10 * (found.inputs + found.outputs)


@pytest.fixture(autouse=True)
def _invented(monkeypatch):
    monkeypatch.setattr(_remote_options, "make_runtime", lambda options: FakeRuntime(_seconds))


QUICK = (
    *("learn", "kernels", "--kernel", "add_relu,concat_block"),
    *("--sampling", "init_sample_num=10,iteration=0"),
)


def test_predictors_are_built_drawn_and_reported(run):
    shown = run(*QUICK, "--plot", "k.png", "--require", "mape=5")
    assert "Wrote fake-device.fake.fp32.t1.kernels.json and k.png" in shown.stdout
    assert "within 10 %" in shown.stdout
    assert "Iteration 0: 20 kernels, each predicted by the others" in shown.stderr
    found = KernelPredictors.load("fake-device.fake.fp32.t1.kernels.json")
    assert set(found.predictors) == {"add", "concat_block"}
    with Image.open("k.png") as picture:
        assert picture.size[0] > 500
    again = run(*QUICK, "--out", "again.json")
    assert "The database holds all that the budget allows" in again.stderr


def test_kernels_of_the_database_become_a_version(run):
    run(*QUICK, "--sampling", "init_sample_num=20")
    learned = run("learn", "graph", "--from-database", "--training", "at_least=1")
    assert "evolving:fake-device.fake.fp32.t1: Version 1 has learned from" in learned.stdout


@pytest.mark.slow
def test_json_holds_scores_by_group(run):
    content = json.loads(run(*QUICK, "--format", "json").stdout)
    assert {row["group"] for row in content["groups"]} == {"add", "concat_block"}
    assert content["overall"]["n"] == 20


@pytest.mark.slow
def test_kernels_that_were_never_learned_from_have_a_score_of_their_own(run):
    shown = run(*QUICK, "--sampling", "test_sample_num=5")
    assert "of 10 not learned from" in " ".join(shown.stderr.split())
    assert "Of 10 kernels not learned from," in " ".join(shown.stdout.split())
    assert (
        json.loads(run(*QUICK, "--sampling", "test_sample_num=5", "--format", "json", "--overwrite").stdout)["tested"][
            "n"
        ]
        == 10
    )


@pytest.mark.slow
def test_what_is_not_reached_ends_with_code_1(run, monkeypatch):
    def unpredictable(op):
        return 1e-3 * (1 + zlib.crc32(op.op_key.encode()) % 100)

    monkeypatch.setattr(_remote_options, "make_runtime", lambda options: FakeRuntime(unpredictable))
    shown = run(*QUICK, "--require", "mape=0.001", code=1)
    assert "Not reached: mape <= 0.001; it is" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "conv_bn_rleu"), "Unknown kernel 'conv_bn_rleu'"),
        (("--prior", "no.json"), "Cannot read the prior 'no.json': No such file"),
        (("--sampling", "init_sample_num=3"), "The 'init_sample_num' of a Sampling must be an int >= 10. Got 3."),
        (("--sampling", "samples=3"), "Unknown field of the sampling 'samples'. Available: init_sample_num,"),
        (("--sampling", "seed=3"), "Unknown field of the sampling 'seed'"),
        (("--family", "vgg"), "--family has no effect without --dataset. Omit it."),
        (("--dataset", "shipped", "--budget", "1s"), "--budget has no effect with --dataset, which measures nothing"),
        (("--require", "within20=0.9"), "Unknown score 'within20'"),
        (("--budget", "soon"), "A duration must be a positive number"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(run, arguments, message):
    result = run("learn", "kernels", *arguments, code=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_empty_prior_draws_anywhere(run):
    Prior().save("empty.json")
    run(*QUICK, "--prior", "empty.json", "--out", "k.json")
    assert len(KernelPredictors.load("k.json").kernels) == 20
