# SPDX-License-Identifier: Apache-2.0
"""The example that predicts real networks: on made-up latencies of a few, without a download."""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from nni_latency.datasets import NetworkFile, PlatformLatencies, given_files, save_networks
from nni_latency.graphs import GraphPredictor, find_families, generate_onnx, shipped_predictor
from nni_latency.measurement import NetworkSummary, Protocol
from nni_latency.platforms import Platform

_SCRIPT = Path(__file__).parents[1] / "examples" / "real_networks.py"
_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

#: A platform of the shipped predictor, a device that it lacks, and a runtime that it lacks.
KNOWN = Platform.parse("xeon-6-167-1.onnxruntime.fp32.t1")
OTHER, STRANGE = (Platform("toy", runtime, facts={"runtime.version": "1.2"}) for runtime in ("openvino", "litert"))
STAND_IN = "epyc-26-2-1.openvino.fp32.t1"


@pytest.fixture(scope="module")
def predictor():
    return GraphPredictor.load(shipped_predictor())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


def members(folder, *names, seed=0):
    """Write a member of each family."""
    found = [(family, seed) for family in find_families(names)]
    paths = generate_onnx(found, folder)
    return [NetworkFile(path.stem, path, family.name, seed) for path, (family, _) in zip(paths, found, strict=True)]


@pytest.fixture(scope="module")
def published(folder):
    return members(folder, "squeezenet", "mobilenetv1")


def invented(predictor, networks, platform, answering, factors, failures=()):
    """Return latencies that are what is predicted times a factor by name."""
    found = {
        item.key: factors[item.name] * predictor.estimate_platforms(item.graph)[answering].value
        for item in networks
        if item.name in factors
    }
    return PlatformLatencies(
        platform,
        1,
        Protocol(),
        "1",
        {key: NetworkSummary(value, value, value, 20, 4, 0.02) for key, value in found.items()},
        failures={item.key: "it is too strange" for item in networks if item.name in failures},
    )


@pytest.fixture(scope="module")
def data(predictor, published, tmp_path_factory):
    """Save two light networks as a day measures them on which all takes half as long again."""
    files = given_files([_LIGHT / f"light_{name}.onnx" for name in ("squeezenet", "shufflenet", "bvlc_alexnet")])
    networks = [*files, *published]
    factors = dict.fromkeys((item.name for item in published), 1.5)
    factors |= {"light_squeezenet": 1.5 / 1.05, "light_shufflenet": 1.5 / 3}
    measured = [
        invented(predictor, networks, KNOWN, KNOWN.id, factors, ["light_bvlc_alexnet"]),
        invented(predictor, networks, OTHER, STAND_IN, {**factors, "light_bvlc_alexnet": 1.5}),
        invented(predictor, networks, STRANGE, STAND_IN, factors),
    ]
    path = tmp_path_factory.mktemp("real") / "real.zip"
    save_networks(path, networks, measured)
    return path


@pytest.fixture(scope="module")
def sources(predictor, published, folder, tmp_path_factory):
    """Save a network of another generator, measured on another day, and one more of a family that was learned from."""
    (more,) = members(folder, "squeezenet", seed=7)
    networks = [NetworkFile("new-00000", _LIGHT / "light_zfnet512.onnx", "new", 0), *published, more]
    factors = {**dict.fromkeys((item.name for item in published), 0.5), "new-00000": 0.5 / 1.15, more.name: 9.0}
    path = tmp_path_factory.mktemp("sources") / "other.zip"
    save_networks(path, networks, [invented(predictor, networks, KNOWN, KNOWN.id, factors)])
    return path


def run(*arguments):
    return CliRunner().invoke(runpy.run_path(str(_SCRIPT))["main"], [str(item) for item in arguments])


@pytest.fixture(scope="module")
def done(data, sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    found = run("--data", data, "--sources", sources, "--out", out)
    assert found.exit_code == 0, found.output
    return found.output, json.loads((out / "real_networks.json").read_text()), out


def test_speed_of_the_day_is_taken_out(done):
    _, figures, _ = done
    first, second = figures["platforms"]
    assert first["speed"] == second["speed"] == pytest.approx(1.5)
    errors = {item["name"]: item["error"] for item in first["networks"]}
    assert errors == {"light_squeezenet": pytest.approx(0.05), "light_shufflenet": pytest.approx(2.0)}
    assert {item["name"]: item["inside"] for item in first["networks"]} == {
        "light_squeezenet": True,
        "light_shufflenet": False,
    }
    assert [item["error"] for item in first["calibration"]] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_kinds_of_test_stand_side_by_side(done, predictor):
    _, figures, _ = done
    known, families, blocks, generated, real = figures["platforms"][0]["tests"]
    assert [item["kind"] for item in (known, families, blocks, generated, real)] == [
        "calibration networks (learned from)",
        "families held out",
        "random blocks held out",
        "generated sources held out: other",
        "real files",
    ]
    assert known["run"] == 2
    assert families["run"] == families["answered"] > 100
    assert min(families["inside"], blocks["inside"]) == pytest.approx(predictor.confidence, abs=0.02)
    assert (generated["run"], generated["median"]) == (1, pytest.approx(0.15))
    assert (generated["speed"], real["speed"]) == (pytest.approx(0.5), pytest.approx(1.5))
    assert (real["run"], real["answered"], real["within10"], real["inside"]) == (2, 2, 0.5, 0.5)
    assert (real["mean"], real["bias"]) == (pytest.approx(1.025), pytest.approx(1.025))
    assert real["repeatability"] == pytest.approx(0.02)


def test_another_device_with_the_same_runtime_answers_and_is_named(done):
    output, figures, _ = done
    second = figures["platforms"][1]
    assert (second["platform"], second["predicted_as"]) == (OTHER.id, STAND_IN)
    assert second["runtime_version"] == "1.2"
    assert f"{OTHER.id}, predicted as {STAND_IN}" in output
    assert f"The predictor has no platform with the runtime of {STRANGE.id}: it is left out." in output
    assert second["tests"][3] == {**second["tests"][3], "run": 0, "median": None}


def test_tables_name_what_cannot_run_and_what_widens_an_interval(done):
    output, figures, out = done
    assert "light_bvlc_alexnet cannot run: it is too strange" in " ".join(output.split())
    alexnet = next(item for item in figures["platforms"][1]["networks"] if item["name"] == "light_bvlc_alexnet")
    assert alexnet["missing"]
    assert alexnet["missing"][0] in output
    assert (out / "real_networks.png").read_bytes().startswith(b"\x89PNG")


def test_names_in_the_picture_do_not_overlap():
    """Twenty networks in a heap, of which five are named."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from nni_latency.estimators import Estimate

    script = runpy.run_path(str(_SCRIPT))
    for error in (1.8, 0.5):
        items = [
            script["Result"](f"a network that has a name {number}", 1e-3 * (1 + number / 50), 0.01,
                             Estimate(error * 1e-3, error * 9e-4, error * 1.1e-3))
            for number in range(20)
        ]  # fmt: skip
        figure = Figure(figsize=(6.4, 6.6), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log", xlim=(0.1, 10), ylim=(0.1, 10))
        script["name_worst"](axes, items, [0.1, 10])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in axes.texts]
        assert len(boxes) == 5
        assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[:place])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_files_are_measured_and_a_second_run_measures_nothing(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(_SCRIPT.parents[1] / "plugins" / "nni_latency_onnxruntime")
    runtime = importlib.import_module("nni_latency_onnxruntime").OnnxRuntime()
    main = runpy.run_path(str(_SCRIPT))["main"]
    named = main.callback.__globals__
    monkeypatch.setitem(named, "load_runtime", lambda _name: runtime)
    few = {family.name: family for family in find_families(["squeezenet", "mobilenetv1"])}
    monkeypatch.setattr(named["graphs"], "families", lambda: few)
    arguments = [_LIGHT / "light_squeezenet.onnx", "--platform", "onnxruntime", "--budget", "20s", "--out", tmp_path]
    found = []
    for _ in range(2):
        done = CliRunner().invoke(main, [str(item) for item in arguments])
        assert done.exit_code == 0, done.output
        found.append(json.loads((tmp_path / "real_networks.json").read_text()))
    assert found[0] == found[1]
    (platform,) = found[0]["platforms"]
    assert platform["networks"][0]["measured"] > 0
    assert len(platform["calibration"]) == 2
