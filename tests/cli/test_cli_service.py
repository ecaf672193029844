# SPDX-License-Identifier: Apache-2.0
"""``nni-latency serve``, ``keys`` and ``query --url`` on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nni_latency_service import ApiKeys
from nni_latency_service.query import LatencyClient

from nni_latency.database import DatabaseStore, PredictorVersion, add_predictor

pytest.importorskip("onnx", reason="the package onnx is not installed")


def test_keys_are_added_listed_and_removed(run, fails, tmp_path):
    path = tmp_path / "keys.json"
    text = run("serve", "keys", "add", path, "alice", "--role", "measure").stdout.strip()
    found = ApiKeys.load(path).find(text)
    assert (found.name, found.role) == ("alice", "measure")
    assert "must be new" in fails("serve", "keys", "add", path, "alice")
    assert "alice" in run("serve", "keys", "list", path).stdout
    assert "Removed the key of alice" in run("serve", "keys", "remove", path, "alice").stdout
    assert "Unknown key 'alice'" in fails("serve", "keys", "remove", path, "alice")
    assert "There are no keys" in run("serve", "keys", "list", path).stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--host", "0.0.0.0"], "Other machines reach '0.0.0.0', and anybody could measure. Make keys with"),
        (["--keys", "nope.json"], "nope.json"),
        (["--database", "memory"], "A service keeps what it measures"),
        (["--platform", "nope"], "Unknown runtime 'nope'"),
        (["--database", "mysql://x"], "A database must be a file"),
        (["--port", "99999"], "99999"),
        (["--remote", "farm:127.0.0.1:1"], "No farm answers at tcp://127.0.0.1:1: Connection refused."),
        (["--remote", "farm:http://x"], "The address of a farm must be a host and a port"),
        (["--remote", "farm:8.8.8.8"], "A farm on 8.8.8.8 can be reached from other machines"),
        (["--remote", "farm:127.0.0.1:1#a.b.c.t1"], "Give --remote farm:127.0.0.1:1 alone."),
        (["--remote", "none:x"], "Unknown remote 'none'"),
        (["--remote", "x"], "Other machines are given as NAME:ADDRESS"),
    ],
)
def test_what_is_wrong_is_one_sentence(fails, words, sentence):
    assert sentence in fails("serve", *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "http://127.0.0.1:1"], "The service http://127.0.0.1:1 does not answer"),
        (["--url", "nowhere"], "The URL of a service must look like http://127.0.0.1:8765"),
        (["--url", "http://127.0.0.1:1", "--budget", "1s"], "--budget has no effect with --url: the service has its"),
    ],
)
def test_a_service_that_is_not_there_is_one_sentence(fails, words, sentence):
    assert sentence in fails("query", "relu()@1x8x4x4:float32", *words)


@pytest.mark.slow
def test_a_service_runs_until_it_is_interrupted(run, fails, tmp_path):
    words = ["serve", "--port", "0", "--database", str(tmp_path / "m.sqlite"), "--platform", "torch", "--budget", "2s"]
    with subprocess.Popen(
        [sys.executable, "-m", "nni_latency", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        try:
            url = process.stdout.readline().split()[-1]
            assert LatencyClient(url).health()["status"] == "ok"
            asked = ["query", "relu()@1x8x4x4:float32", "--url", url]
            assert "measurement" in run(*asked, "--platform", "torch", "--measure", "always").stdout
            assert "record" in run(*asked).stdout
            assert "Unknown platform 'board'" in fails(*asked, "--platform", "board")
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=180)
    assert process.returncode in (0, 130)
    assert "Traceback" not in said


def test_too_little_to_learn_from_is_said(run, fails, tmp_path):
    words = ["learn", "graph", "--from-database", "--database", tmp_path / "m.sqlite"]
    assert "0 new latencies, and another version needs 20" in run(*words).stdout
    assert "0 new latencies, and another version needs 7" in run(*words, "--training", "at_least=7").stdout
    assert "There is no version yet" in run(*words, "--list").stdout
    assert "Unknown version of 'evolving' '3'" in fails(*words, "--take", 3)
    assert "There is no version of the predictor to draw" in fails(*words, "--list", "--plot", "a.png")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--list", "--out", "a.bin"], "Unknown predictor with a version 'evolving'. Available: none."),
        (["--platform", "board"], "Unknown platform with kernels 'board'. Available: none."),
        (["--remote", "farm:127.0.0.1:1"], "No farm answers at tcp://127.0.0.1:1: Connection refused."),
        (["--remote", "farm:127.0.0.1:1#a.b.fp32.t1"], "Give --remote farm:127.0.0.1:1 alone."),
        (["--dataset", "shipped"], "--dataset has no effect with --from-database. Omit it."),
        (["--runtime", "torch"], "--runtime has no effect with --from-database. Omit it."),
        (["--database", "memory"], "Versions are kept in a database."),
        (["--training", "at_least=0"], "The field 'at_least' of --training must be a whole number >= 1. Got 0."),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(fails, tmp_path, words, sentence):
    assert sentence in fails("learn", "graph", "--from-database", "--database", tmp_path / "m.sqlite", *words)


def test_the_versions_of_all_predictors_are_listed_taken_and_saved(run, fails, tmp_path):
    store = DatabaseStore(tmp_path / "m.sqlite")
    for name, current in (("evolving", False), ("evolving", True), ("evolving:board", True), ("other", True)):
        version = PredictorVersion(name, 0, 1.7e9, "1", 20, 5, 100, {"all": 0.1}, current)
        add_predictor(store.database, version, f"file of {name}".encode())
    store.close()
    words = ["learn", "graph", "--from-database", "--database", tmp_path / "m.sqlite"]
    rows = json.loads(run(*words, "--list", "--format", "json").stdout)["versions"]
    assert [(row["name"], row["number"]) for row in rows] == [("evolving", 1), ("evolving", 2), ("evolving:board", 3)]
    assert "Version 1 answers from now on." in run(*words, "--take", 1).stdout
    assert "Wrote version 3 to k.json" in run(*words, "--platform", "board", "--list", "--out", "k.json").stdout
    assert Path("k.json").read_bytes() == b"file of evolving:board"
    assert "'k.json' exists" in fails(*words, "--list", "--out", "k.json")
    assert "Unknown version of 'evolving' '4'. Available: 1, 2, 3." in fails(*words, "--take", 4)
