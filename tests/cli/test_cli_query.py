# SPDX-License-Identifier: Apache-2.0
"""``nni-latency query``."""

from __future__ import annotations

import json

import nni_latency_service.commands._query as query_command
import pytest
from fake_machines import HERE, machines, onnx_bytes
from measured_graphs import FAST, SLOW, fitted
from nni_latency_service.query import LatencyQuery
from tiny import TINY_KWARGS

from nni_latency.database import DatabaseStore
from nni_latency.errors import MissingDependencyError

pytest.importorskip("onnx", reason="the package onnx is not installed")


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return fitted(3).save(tmp_path_factory.mktemp("predictor") / "graph.safetensors")


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes())
    return path


@pytest.fixture
def database(tmp_path, net):
    """Measure a network on an invented platform."""
    store = DatabaseStore(str(tmp_path / "m.sqlite"))
    LatencyQuery(store, machines=machines()[0]).ask(net, HERE.id)
    store.close()
    return tmp_path / "m.sqlite"


def test_a_record_is_told_with_where_it_comes_from(run, net, database):
    shown = run("query", net, "--platform", HERE.id, "--database", database).stdout
    assert "record" in shown
    assert "campaign" in shown
    assert "repeatability 0.0 %" in shown
    found = json.loads(
        run("query", net, "--platform", "fake-device", "--database", database, "--format", "json").stdout
    )
    [answer] = found["answers"]
    assert (answer["source"], answer["platform"], answer["n_visits"]) == ("record", HERE.id, 5)
    assert run("query", found["key"], "--database", database).stdout.count(HERE.id) >= 1


def test_a_record_needs_no_runtime(run, fails, net, database, monkeypatch):
    def load_runtime(*_args, **_options):
        raise MissingDependencyError("It is not installed.")

    monkeypatch.setattr(query_command.loading, "load_runtime", load_runtime)
    asked = ["--platform", HERE.id, "--database", database]
    assert "record" in run("query", net, *asked).stdout
    assert fails("query", "relu()@1x8x4x4:float32", *asked).endswith("It is not installed.")
    assert fails("query", net, "--platform", "fake", "--database", database) == "It is not installed."


def test_a_remark_on_every_platform_is_made_once(run, predictor):
    lines = run("query", "tanh()@1x8x4x4:float32", "-e", predictor).stdout.splitlines()
    assert any(FAST.id in line for line in lines)
    assert any(SLOW.id in line for line in lines)
    assert lines.count("Operators never learned from: tanh.") == 1
    assert not any("Not known to the predictor" in line for line in lines)


@pytest.mark.slow
def test_all_platforms_are_told_the_fastest_first(run, net, database, predictor):
    words = ["query", net, "--database", database, "-e", predictor, "--format", "json"]
    answers = json.loads(run(*words).stdout)["answers"]
    assert {answer["source"] for answer in answers} == {"record", "prediction"}
    assert [answer["value"] for answer in answers] == sorted(answer["value"] for answer in answers)


def test_a_network_is_measured_once_in_a_runtime_of_this_machine(run):
    words = ["query", "relu()@1x8x4x4:float32", "--platform", "torch", "--budget", "2s", "--format", "json"]
    answers = [json.loads(run(*words).stdout)["answers"][0] for _ in range(2)]
    assert [answer["source"] for answer in answers] == ["measurement", "record"]
    assert answers[0]["campaign"] == answers[1]["campaign"]


@pytest.mark.slow
def test_an_architecture_of_a_space_is_asked_about(run, predictor):
    words = ["query", "fbnet@0,1,2,0,1,2,0", *TINY_KWARGS, "-e", predictor, "--platform", FAST.id]
    assert json.loads(run(*words, "--format", "json").stdout)["answers"][0]["source"] == "prediction"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Missing argument 'NET|KEY'."),
        (["nope.onnx"], "Cannot read the ONNX file 'nope.onnx'"),
        (["nothing"], "or the key of an operator, a kernel or a graph."),
        (["relu()@1x8:float32", "--measure", "always"], "Measuring needs one platform. Name it with --platform"),
        (["relu()@1x8:float32", "--platform", "board"], "Unknown platform 'board'"),
        (["relu()@1x8:float32", "--within", "300%"], "A share must be above 0 and at most 1"),
        (["0" * 32, "--platform", "torch"], "It was asked for by its key alone"),
    ],
)
def test_what_is_wrong_is_one_sentence(fails, words, sentence):
    assert sentence in fails("query", *words)


def test_without_a_record_and_a_predictor_nothing_is_told(fails, monkeypatch):
    monkeypatch.setattr(query_command, "load_predictors", lambda _names: {})
    assert "is neither recorded nor predicted" in fails("query", "relu()@1x8:float32")


def test_a_network_of_ones_own_is_asked_about(run, tmp_path, predictor):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())\n"
    )
    words = [
        "query",
        "net.py:Net",
        "--input",
        "3,8,8",
        "--platform",
        FAST.id,
        "-e",
        predictor,
        "--format",
        "json",
    ]
    assert json.loads(run(*words).stdout)["answers"][0]["source"] == "prediction"


def test_the_predictor_that_ships_is_asked_where_one_does():
    assert set(query_command.load_predictors(())) <= {"pretrained"}
