# SPDX-License-Identifier: Apache-2.0
"""``nni-latency validate``."""

from __future__ import annotations

import json

import pytest
from matplotlib.image import imread
from tiny import TINY, TINY_OPTIONS, stored_rounds

from nni_latency.cli import _remote_options
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import build_table
from nni_latency.testing import FakeRuntime
from nni_latency.validation import draw_networks


def _seconds(op):
    """Make up a time that every operator has to itself."""
    return 1e-6 * (1 + sum(map(ord, op.op_key)) % 997)


class _Invented:
    """An invented machine under the commands, and a table of it that is exact."""

    def __init__(self, table, patch):
        self.table, self.latencies, self.runs, self.stop_after = table, _seconds, 0, None
        patch.setattr(_remote_options, "make_runtime", lambda *arguments: self.runtime())

    def runtime(self):
        return FakeRuntime(self.latencies, drift=self._drift, platform=Platform.current("cpu"))

    def _drift(self):
        self.runs += 1
        if self.stop_after is not None and self.runs > self.stop_after:
            raise KeyboardInterrupt
        return 1.0


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    out = tmp_path_factory.mktemp("exact") / "exact.json"
    runtime = FakeRuntime(_seconds, platform=Platform.current("cpu"))
    build_table(FBNetSpace(**TINY).measure_plan(), runtime, Protocol(n_warmup=0, rounds=2, time_budget=1e9), out)
    return out


@pytest.fixture
def machine(exact, monkeypatch):
    return _Invented(exact, monkeypatch)


@pytest.fixture
def validate(run, machine):
    """Validate the exact table on the invented machine, as quickly as can be."""

    def invoke(*options, code=0):
        return run("validate", machine.table, "--protocol", "rounds=2", "--networks", 3, *options, code=code)

    return invoke


@pytest.fixture
def altered(machine, tmp_path):
    """Save the table with a change, and validate that one."""

    def alter(**changes):
        content = json.loads(machine.table.read_text())
        content.update(changes)
        machine.table = tmp_path / "altered.json"
        machine.table.write_text(json.dumps(content))

    return alter


@pytest.fixture(scope="module")
def validated(run, built, tmp_path_factory):
    """Validate the table of this machine on this machine, in a worker process."""
    out = tmp_path_factory.mktemp("validated") / "v.json"
    result = run(
        "validate",
        built[0],
        *TINY_OPTIONS,
        "--networks",
        4,
        "--protocol",
        "rounds=3",
        "--budget",
        "10min",
        "--out",
        out,
        "--require",
        "within10=0",
    )
    return out, result


@pytest.mark.slow
def test_validation_of_this_machine_writes_its_files(validated):
    out, _ = validated
    content = json.loads(out.read_text())
    assert content["platform"]["id"] == Platform.current("cpu").id
    assert [item["name"] for item in content["networks"]][-2:] == ["random 3", "random 4"]
    assert all(item["measured"] > 0 and item["n_samples"] > 1 for item in content["networks"])
    assert imread(out.with_suffix(".png")).std() > 0.02


@pytest.mark.slow
def test_validation_of_this_machine_says_what_it_did(validated):
    out, result = validated
    assert f"Wrote {out} and {out.with_suffix('.png')}" in result.stdout
    assert "Measuring" in result.stderr


@pytest.mark.slow
def test_scores_and_worst_cases_are_printed(validate):
    shown = validate().stdout
    for text in ("Worst cases", "MAPE", "RMSPE", "Spearman", "predicted against measured", "repeatability"):
        assert text in shown


@pytest.fixture(scope="module")
def printed(run, exact, tmp_path_factory):
    """Validate the exact table with requirements that it meets; return the folder and the JSON that was printed."""
    folder = tmp_path_factory.mktemp("printed")
    command = ["validate", exact, "--protocol", "rounds=2", "--networks", 3, "--seed", 5, "--format", "json"]
    for requirement in ("within10=1", "mape=0.001", "spearman=0.99"):
        command += ["--require", requirement]
    with pytest.MonkeyPatch.context() as patch:
        _Invented(exact, patch)
        result = run(*command, "--out", folder / "v.json", "--plot", folder / "pictures" / "v.png")
    return folder, json.loads(result.stdout)


@pytest.mark.slow
def test_exact_table_has_no_error(printed):
    scores = printed[1]["scores"]
    assert scores["worst"] == pytest.approx(0.0, abs=1e-6)
    assert scores["within5"] == 1.0


@pytest.mark.slow
def test_json_is_what_is_written(printed):
    folder, content = printed
    assert content == json.loads((folder / "v.json").read_text())
    assert (folder / "pictures" / "v.png").exists()


@pytest.mark.slow
def test_networks_and_seed_are_those_asked_for(printed):
    plan = FBNetSpace(**TINY).measure_plan()
    listed = {item["name"]: item["selection"] for item in printed[1]["networks"]}
    assert listed == draw_networks(plan, 3, seed=5)


def test_files_are_named_after_the_table(validate, tmp_path):
    validate()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["exact.validation.json", "exact.validation.png"]


def test_requirement_that_is_missed_ends_with_code_1_and_says_by_how_much(validate, altered, tmp_path):
    altered(calibration=1.5)
    requirements = ["--require", "mape=0.0", "--require", "within10=0.5", "--require", "worst=0.6"]
    result = validate(*requirements, "--no-normalise", "--out", "v.json", code=1)
    assert "Not reached: mape <= 0; it is 0.5." in result.stderr
    assert "Not reached: within10 >= 0.5; it is 0." in result.stderr
    assert "worst" not in result.stderr
    # The files are written all the same.
    assert json.loads((tmp_path / "v.json").read_text())["scores"]["bias"] == pytest.approx(0.5)
    assert (tmp_path / "v.png").exists()


@pytest.mark.slow
def test_slower_machine_is_told_and_taken_out(validate, machine, tmp_path):
    machine.latencies = lambda op: 1.3 * _seconds(op)
    shown = " ".join(validate("--out", "v.json").stdout.split())
    assert "The machine is 30.0 % slower than predicted for the space's reference networks" in shown
    content = json.loads((tmp_path / "v.json").read_text())
    assert content["speed"] == pytest.approx(1 / 1.3)
    assert content["scores"]["worst"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_slower_machine_is_an_error_where_it_is_not_taken_out(validate, machine):
    machine.latencies = lambda op: 1.3 * _seconds(op)
    content = json.loads(validate("--format", "json", "--no-normalise").stdout)
    assert content["speed"] == 1.0
    assert content["scores"]["bias"] == pytest.approx(1 / 1.3 - 1)


@pytest.mark.slow
def test_interrupted_validation_is_resumed(validate, machine, tmp_path):
    machine.stop_after = 250
    result = validate("--protocol", "rounds=20", "--protocol", "half_width=0", "--out", "v.json", code=130)
    assert "Run the same command again to resume" in result.stderr
    kept = stored_rounds()
    assert kept >= 1
    assert not (tmp_path / "v.json").exists()
    machine.stop_after = None
    result = validate("--protocol", "rounds=20", "--protocol", "half_width=0", "--out", "v.json")
    assert "resuming after" in result.stderr
    assert len(json.loads((tmp_path / "v.json").read_text())["drift"]) == 20


@pytest.mark.slow
def test_validation_may_begin_anew(validate, tmp_path):
    validate("--out", "v.json")
    assert "resuming after 2 rounds" in validate("--out", "v.json", "--overwrite").stderr
    assert "resuming" not in validate("--out", "v.json", "--fresh", "--overwrite").stderr
    assert len(json.loads((tmp_path / "v.json").read_text())["drift"]) == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--require", "nonsense"], "A requirement must be a score and its limit, such as within10=0.95."),
        (["--require", "within20=0.9"], "Unknown score 'within20'. Available: within5, within10, spearman"),
        (["--device", "cuda:7"], "Unknown device 'cuda:7'. Available: cpu"),
        (["--networks", "-1"], "-1 is not in the range x>=0"),
        (["--budget", "soon"], "A duration must be a positive number"),
        (["--protocol", "half_width=1"], "The 'half_width' of a Protocol must be a number in [0, 1). Got 1."),
        (["--batch-size", "4"], "measured with batch size 1, not with 4"),
        (["--space-args", "width=0.5"], "width=0.25 in the table, width=0.5 requested"),
        (["--space", "nasnet"], "the space 'fbnet', not to 'nasnet'"),
        (["--plot", "."], "it is a folder; name a file in it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_refused_before_anything_is_measured(fails, exact, tmp_path, options, complaint):
    assert complaint in fails("validate", exact, *options)
    assert list(tmp_path.iterdir()) == []


def _never(*arguments, **options):
    raise AssertionError("nothing is to be measured")


def test_table_of_another_platform_is_refused_before_anything_is_measured(fails, machine, altered, monkeypatch):
    monkeypatch.setattr("nni_latency.tables.measure_networks", _never)
    altered(platform={**json.loads(machine.table.read_text())["platform"], "device": "pi"})
    complaint = fails("validate", machine.table)
    assert "latency on pi." in complaint
    assert Platform.current("cpu").device in complaint


@pytest.mark.parametrize(("table", "complaint"), [("energy", "energy"), ("holes", "k3_e1")])
def test_table_that_can_not_be_validated_is_refused_before_anything_is_measured(
    fails, machine, tables, monkeypatch, table, complaint
):
    monkeypatch.setattr("nni_latency.tables.measure_networks", _never)
    assert complaint in fails("validate", tables[table])


def test_unknown_table_is_refused(fails):
    assert "absent.json" in fails("validate", "absent.json")


@pytest.mark.parametrize("out", ["folder", "file/v.json"], ids=["folder", "under a file"])
def test_place_that_can_not_be_written_is_refused_before_anything_is_measured(fails, exact, tmp_path, out):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    assert "Cannot write 'f" in fails("validate", exact, "--out", out)
    assert (tmp_path / "file").read_text() == "mine"
    assert list((tmp_path / "folder").iterdir()) == []


def test_measurement_that_fails_is_told_in_a_sentence(run, machine, monkeypatch):
    def broken(*arguments, **options):
        raise MeasurementError("The clock stands still.")

    monkeypatch.setattr("nni_latency.tables.measure_networks", broken)
    result = run("validate", machine.table, code=2)
    assert result.stderr.endswith("\nError: The clock stands still.\n")
    assert result.stderr.count("\n") == 2
