# SPDX-License-Identifier: Apache-2.0
"""``nni-latency build-lut`` and ``show``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny import TINY, TINY_OPTIONS, stored_rounds

from nni_latency.database import open_store
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable


def test_build_writes_a_whole_table(built):
    out, _ = built
    table = LookupTable.load(out)
    assert table.coverage == 1.0
    assert table.space == FBNetSpace(**TINY).reference
    assert table.platform.id == Platform.current("cpu").id


def test_build_says_what_it_did(built):
    out, result = built
    table = LookupTable.load(out)
    assert f"Wrote {out}" in result.stdout
    assert f"{table.rounds} rounds in" in result.stdout
    assert "coverage 100.0 %" in result.stdout


def test_build_shows_its_progress_on_standard_error(built):
    assert "Measuring 65 candidates of fbnet(" in built[1].stderr
    assert "left" in built[1].stderr


@pytest.mark.slow
def test_build_takes_the_protocol_from_its_options(run):
    run(
        "build-lut", *TINY_OPTIONS, "--protocol", "rounds=2", "--protocol", "n_warmup=0", "--protocol", "n_run=2",
        "--protocol", "outlier=0.1", "--seed", 3,
        "--out", "t.json",
    )  # fmt: skip
    protocol = LookupTable.load("t.json").protocol
    assert (protocol.rounds, protocol.n_warmup, protocol.n_run, protocol.outlier, protocol.seed) == (2, 0, 2, 0.1, 3)
    assert LookupTable.load("t.json").rounds == 2


@pytest.mark.slow
def test_build_names_the_file_after_space_and_platform(run, tmp_path):
    run("build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", "--protocol", "processes=1", "--batch-size", 2)
    (out,) = tmp_path.glob("*.json")
    assert out.name == f"fbnet-w0.25-d0.25-32x32-b2.{Platform.current('cpu').id}.json"
    assert LookupTable.load(out).batch_size == 2


def test_build_refuses_to_replace_a_table(fails, built):
    before = built[0].read_bytes()
    complaint = fails("build-lut", *TINY_OPTIONS, "--budget", "1s", "--out", built[0])
    assert f"{str(built[0])!r} exists" in complaint
    assert "--overwrite" in complaint
    assert built[0].read_bytes() == before


@pytest.mark.slow
def test_build_replaces_a_table_if_told_to(run, tables, tmp_path):
    out = tmp_path / "t.json"
    out.write_bytes(tables["tiny"].read_bytes())
    run("build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", "--protocol", "processes=1", "--out", out, "--overwrite")
    assert LookupTable.load(out).rounds == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--space", "nosuch"], "Unknown space 'nosuch'. Available:"),
        (["--device", "tpu"], "Unknown device 'tpu'. Available: cpu"),
        (["--runtime", "tflite"], "Unknown runtime 'tflite'. Available: "),
        (["--space-args", "preset=mnist"], "Unknown preset 'mnist'. Available: imagenet, cifar, cifar10."),
        (["--space-args", "widht=1"], "got an unexpected keyword argument 'widht'. It takes: num_classes, input_size,"),
        (["--space-args", "width=wide"], "The 'width' of FBNetSpace must be a number in (0, 8]. Got 'wide'."),
        (["--space-args", "width=0"], "The 'width' of FBNetSpace must be a number in (0, 8]. Got 0."),
        (["--input-size", "0"], "--input-size must be an int >= 1. Got 0."),
        (["--budget", "soon"], "A duration must be a positive number"),
        (["--protocol", "outlier=0.7"], "The 'outlier' of a Protocol must"),
        (["--precision", "int4"], "'int4' is not one of"),
        (["--threads", "0"], "0 is not in the range x>=1"),
        (["--batch-size", "0"], "Batch sizes must be whole numbers >= 1, separated by commas. Got '0'."),
        (["--batch-size", "x"], "Batch sizes must be whole numbers >= 1, separated by commas. Got 'x'."),
        (["--batch-size", "1,,2"], "Batch sizes must be whole numbers >= 1, separated by commas. Got '1,,2'."),
        (["--batch-size", "1,2"], "--out names one file, but --batch-size asks for several tables."),
        (
            ["--metric", "beauty"],
            "'beauty' is not one of 'latency', 'throughput', 'energy', 'power', 'parameter_memory'",
        ),
        (["--metric", "energy", "--meter", "abacus"], "Unknown meter 'abacus'. Available: constant"),
        (["--metric", "energy", "--meter", "constant:0"], "takes a positive power in watts, as in constant:15"),
        (["--protocol", "half_width=1"], "The 'half_width' of a Protocol must be a number in [0, 1). Got 1."),
        (["--protocol", "timeout=never"], "The 'timeout' of a Protocol must be a number in (0, inf). Got 'never'."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_build_refuses_bad_options(fails, tmp_path, options, complaint):
    assert complaint in fails("build-lut", *options, "--out", "t.json")
    assert list(tmp_path.iterdir()) == []


def test_build_refuses_a_place_under_a_file(fails, tmp_path):
    (tmp_path / "file").write_text("mine")
    complaint = fails("build-lut", *TINY_OPTIONS, "--out", "file/t.json")
    assert "Cannot write 'file/t.json'" in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_build_refuses_a_folder(fails, tmp_path):
    assert "is a folder; name a file in it" in fails("build-lut", *TINY_OPTIONS, "--out", tmp_path)


_HOLD = """
import sys
from pathlib import Path
from nni_latency.files import locked
with locked(Path(sys.argv[1]), "building"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_build_refuses_a_table_that_another_process_builds(fails, run, tmp_path):
    out = tmp_path / "t.json"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / ".t.json.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        complaint = fails(
            "build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", "--protocol", "processes=1", "--out", out
        )
        holder.communicate("")
    assert f"Another process is building {str(out)!r}" in complaint
    assert not out.exists()
    run("build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", "--protocol", "processes=1", "--out", out)


def _start(out, budget):
    command = [sys.executable, "-m", "nni_latency", "build-lut", *TINY_OPTIONS, "--budget", budget, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def _wait_for_rounds(process, count):
    """Wait until the database holds so many rounds."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        if any(True for _ in open_store().campaigns()) and stored_rounds() >= count:
            return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no {count} rounds: {process.communicate()}")


@pytest.mark.slow
def test_interrupted_build_is_resumed(run, tmp_path):
    out = tmp_path / "t.json"
    with _start(out, "10min") as process:
        _wait_for_rounds(process, 3)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "Run the same command again to resume" in stderr
    assert not out.exists()
    kept = stored_rounds()
    assert kept >= 3
    result = run("build-lut", *TINY_OPTIONS, "--budget", "10min", "--protocol", f"rounds={kept + 2}", "--out", out)
    assert f"resuming after {kept} rounds" in result.stderr
    assert LookupTable.load(out).rounds == kept + 2


@pytest.mark.slow
def test_build_measures_again_if_told_to(run):
    command = [
        "build-lut",
        *TINY_OPTIONS,
        "--protocol",
        "rounds=1",
        "--database",
        "d.sqlite",
        "--out",
        "t.json",
        "--overwrite",
    ]
    run(*command)
    assert "resuming" in run(*command).stderr
    assert "resuming" not in run(*command, "--fresh").stderr
    assert len(list(open_store("d.sqlite").campaigns())) == 2


def test_show_prints_the_table(run, built):
    shown = run("show", built[0]).stdout
    for text in ("layer6", "k5_e6", "coverage", "100.0 %", Platform.current("cpu").id):
        assert text in shown


def test_show_marks_missing_candidates(run, tables):
    shown = run("show", tables["holes"]).stdout
    assert shown.count("missing") == 2
    assert "96.9 %" in shown


def test_show_prints_json(run, built):
    facts = json.loads(run("show", built[0], "--format", "json").stdout)
    assert facts["space"] == {"name": "fbnet", "arguments": dict(FBNetSpace(**TINY).reference.arguments)}
    assert facts["platform"] == Platform.current("cpu").id
    assert facts["coverage"] == 1.0
    assert facts["missing"] == []
    assert facts["protocol"]["time_budget"] == 600.0


def test_show_names_missing_candidates_in_json(run, tables):
    facts = json.loads(run("show", tables["holes"], "--format", "json").stdout)
    assert facts["missing"] == ["layer0:k3_e1", "layer2:skip"]


def test_show_prints_other_metrics_with_their_unit(run, tables):
    assert "energy [uJ]" in run("show", tables["energy"]).stdout


def test_show_prints_the_unit_of_the_table(run, tables):
    shown = run("show", tables["tiny"]).stdout
    assert "latency [us]" in shown
    assert "latency [s]" in shown


@pytest.mark.slow
def test_build_prints_a_path_with_brackets(run, tmp_path):
    (tmp_path / "[red]").mkdir()
    assert (
        "Wrote [red]/t.json"
        in run(
            "build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", "--protocol", "processes=1", "--out", "[red]/t.json"
        ).stdout
    )


def test_show_refuses_a_file_that_is_not_there(fails):
    assert "There is no file 'absent.json'" in fails("show", "absent.json")


def _altered(tables, tmp_path, change):
    content = json.loads(tables["tiny"].read_text())
    change(content)
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(content))
    return path


def _entry(content):
    layer = next(layer for layer in content["layers"] if layer["name"] == "layer1")
    return layer["entries"]["k3_e1"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e-3, 0.0, "fast"])
def test_commands_refuse_a_latency_that_is_no_positive_number(fails, tables, tmp_path, number):
    path = _altered(tables, tmp_path, lambda content: _entry(content).update(value=number))
    for command in (
        ["show", path],
        ["predict", "fbnet@0,0,0,0,0,0,0", "-e", path],
        ["search", "--target", "3ms", "--latency-estimator", path],
    ):
        complaint = fails(*command)
        assert str(path) in complaint
        assert "k3_e1" in complaint
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["altered.json"]


def test_commands_refuse_a_truncated_table(fails, tables, tmp_path):
    path = tmp_path / "cut.json"
    path.write_bytes(tables["tiny"].read_bytes()[:500])
    for command in (["show", path], ["predict", "fbnet@fbnet-a", "-e", path]):
        complaint = fails(*command)
        assert str(path) in complaint
        assert "JSON" in complaint


def test_commands_refuse_a_newer_table(fails, tables, tmp_path):
    path = _altered(tables, tmp_path, lambda content: content.update(version=99))
    for command in (["show", path], ["predict", "fbnet@fbnet-a", "-e", path]):
        complaint = fails(*command)
        assert "version 99" in complaint
        assert "written by another version of nni_latency: use that version, or" in complaint


def test_commands_refuse_a_file_of_another_kind(fails, tmp_path):
    (tmp_path / "sample.json").write_text('{"layer0": "skip"}')
    assert "sample.json" in fails("show", "sample.json")
