# SPDX-License-Identifier: Apache-2.0
"""``learn device`` on the command line."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from nni_latency.estimators import ActsEstimator
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import BenchmarkPoints, Block, draw_blocks, run_benchmarks
from nni_latency.operators import features_of
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime


def _seconds(op):
    """Return the time of an operator on an invented device."""
    found = features_of(op)
    return 2e-6 + 1e-9 * found.inputs + (3e-11 if op.get("groups", 1) == 1 else 2e-10) * found.flops


def _measure(out, blocks, platform=None):
    runtime = FakeRuntime(_seconds, platform=platform)
    protocol = Protocol(n_warmup=0, rounds=1, time_budget=600.0)
    run_benchmarks(runtime, protocol, out, series=[(block, (1,)) for block in blocks])
    return out


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Measure invented blocks: those of a fit, and those of a test."""
    folder = tmp_path_factory.mktemp("points")
    drawn = draw_blocks(40)
    return (
        _measure(folder / "known.json", drawn[:28]),
        _measure(folder / "unknown.json", drawn[28:]),
        _measure(folder / "elsewhere.json", drawn[:3], Platform("other", "fake")),
    )


@pytest.mark.slow
def test_fit_writes_a_fit_and_pictures(run, points, tmp_path):
    known, unknown, _ = points
    run("learn", "device", known, "--out", "known.json", "--plot", "fit.png")
    printed = run("learn", "device", known, "--out", "fit.json", "--test", unknown, "--plot", "test.png").stdout
    assert "latency = " in printed
    assert "bound by" in printed
    assert "test points" in printed
    assert isinstance(ActsEstimator.load("fit.json"), ActsEstimator)
    for name in ("fit.png", "test.png"):
        with Image.open(name) as picture:
            assert min(picture.size) > 500


@pytest.mark.slow
def test_fit_prints_json(run, points):
    known, unknown, _ = points
    found = json.loads(
        run("learn", "device", known, "--variant", "published", "--test", unknown, "--format", "json").stdout
    )
    assert found["variant"] == "published"
    assert found["points"] == 28
    assert min(found[name] for name in "abcd") >= 0
    assert found["bound"] in ("memory", "compute")
    assert found["test"]["n"] == 12
    loaded = ActsEstimator.load(f"acts.{found['platform']}.json")
    assert loaded.a_ == found["a"]


@pytest.mark.slow
def test_refined_fit_is_better_than_the_published_one(run, points):
    known, unknown, _ = points
    medians = {}
    for variant in ("published", "refined"):
        shown = run(
            "learn", "device", known, "--variant", variant, "--test", unknown, "--format", "json", "--overwrite"
        ).stdout
        medians[variant] = json.loads(shown)["test"]["median"]
    assert medians["refined"] < medians["published"]


def test_fit_refuses_what_teaches_nothing(fails, points, tmp_path):
    known, _, elsewhere = points
    assert "at least 10 points to fit. Got 3" in fails("learn", "device", elsewhere)
    assert "would mix two platforms" in fails("learn", "device", known, elsewhere)
    assert "would mix two platforms" in fails("learn", "device", known, "--test", elsewhere)
    assert "Cannot read the file of points" in fails("learn", "device", "none.json")
    assert "is not a file of benchmark points" in fails(
        "learn", "device", ActsEstimator.load(_fit(known)).save("fit.json")
    )
    assert "Omit it, or the POINTS." in fails("learn", "device", known, "--points", "x.json")
    assert "Two outputs cannot both be 'x.json'" in fails(
        "learn", "device", known, "--out", "x.json", "--plot", "x.json"
    )


def _fit(known):
    loaded = BenchmarkPoints.load(known)
    return ActsEstimator().fit(loaded.workloads, loaded.latencies).save("made.json")


def test_fit_does_not_replace_a_file_by_accident(run, fails, points):
    run("learn", "device", points[0], "--out", "fit.json")
    assert "exists. Choose another file" in fails("learn", "device", points[0], "--out", "fit.json")
    run("learn", "device", points[0], "--out", "fit.json", "--overwrite")


def test_fit_of_one_block_is_refused(fails, tmp_path):
    block = Block.of("conv", 8, channels=4, out=4, kernel=3)
    series = [(block, tuple(range(1, 13)))]
    protocol = Protocol(n_warmup=0, rounds=1, time_budget=600.0)
    run_benchmarks(FakeRuntime(_seconds), protocol, tmp_path / "one.json", series=series)
    assert "All 12 points are of one block" in fails("learn", "device", tmp_path / "one.json")


@pytest.fixture
def _small_set(monkeypatch):
    """Let the command measure small blocks instead of the predefined set."""
    blocks = [
        *(Block.of("conv", 8, channels=4 * size, out=4, kernel=3) for size in range(1, 5)),
        Block.of("head", 4, channels=8, classes=10),
    ]

    def measure(runtime, protocol, out, **options):
        return run_benchmarks(runtime, protocol, out, series=[(block, (1, 2)) for block in blocks], **options)

    monkeypatch.setattr("nni_latency.micro_benchmarks.run_benchmarks", measure)


@pytest.mark.slow
@pytest.mark.usefixtures("_small_set")
def test_blocks_of_this_machine_are_measured_and_fitted(run, fails):
    words = ("learn", "device", "--budget", "60s", "--protocol", "rounds=3")
    printed = run(*words).stdout
    assert "10 points of 5 blocks" in printed
    assert "latency = " in printed
    name = printed.split()[1]
    loaded = BenchmarkPoints.load(name)
    assert name == f"points.{loaded.platform.id}.json"
    assert ActsEstimator.load(f"acts.{loaded.platform.id}.json").platform == loaded.platform
    assert "exists. Choose another file" in fails(*words)


def test_what_cannot_be_measured_is_refused_before_anything_is(fails):
    assert "--budget" in fails("learn", "device", "--budget", "never")
    assert "Unknown device" in fails("learn", "device", "--device", "tpu")
    assert "Unknown field of the protocol 'rouds'" in fails("learn", "device", "--protocol", "rouds=3")
    assert "The 'rounds' of a Protocol must be an int >= 1" in fails("learn", "device", "--protocol", "rounds=many")
