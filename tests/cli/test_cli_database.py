# SPDX-License-Identifier: Apache-2.0
"""``nni-latency db``: what is there, sharing and clearing it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from nni_latency.cli import main
from nni_latency.database import DatabaseStore
from nni_latency.measurement import CampaignHeader, Failure, Protocol, Record, Subject
from nni_latency.platforms import Platform

HERE, THERE = Platform("device-1", facts={"torch": "2.0"}), Platform("device-2")
NOW = 1.7e9


def _fill(path, platform=HERE, kind="networks", n_records=2, *, fresh=False, begin=0):
    store = DatabaseStore(str(path))
    with store.campaign(CampaignHeader(kind, {"space": "tiny"}, platform, Protocol()), fresh=fresh) as log:
        log.admit(Subject("net", dict, digest="digest-net"))
        log.admit(Subject("stem", dict, (1,), "candidate", "digest-stem"))
        for number in range(begin, begin + n_records):
            samples = {"latency": (0.001 * (number + 1),)}
            log.append(Record(0.5, (), samples, ("net",), number, 0, 0.1, NOW + number))
        log.append(Record(0.5, ((0.25, 0.75),), {}, ("net", "stem"), begin, 1, 0.1, NOW + begin))
        log.fail(Failure("broken", "it raised"))
        log.note("before", {"load": 0.5})
    store.close()
    return log.identifier


@pytest.fixture
def path(tmp_path):
    """Make a database of two campaigns: five and four samples."""
    path = tmp_path / "m.sqlite"
    _fill(path)
    _fill(path, THERE, "layers", 1)
    return path


def _info(run, path):
    return {(item["platform"], item["kind"]): item for item in _json(run, path, "info")["kinds"]}


def _json(run, path, *arguments):
    return json.loads(run("db", *arguments, "--database", path, "--format", "json").stdout)


def _lines(run, path, *arguments):
    shown = run("db", "query", "--database", path, *arguments, "--format", "json").stdout
    return json.loads(shown)


def _campaigns(path):
    store = DatabaseStore(str(path))
    found = list(store.campaigns())
    store.close()
    return found


def test_info_counts_by_platform_and_kind(run, path):
    first = _info(run, path)[HERE.id, "networks"]
    assert {name: first[name] for name in ("campaigns", "subjects", "records", "samples", "failures")} == {
        "campaigns": 1,
        "subjects": 2,
        "records": 3,
        "samples": 4,
        "failures": 1,
    }
    assert _info(run, path)[THERE.id, "layers"]["samples"] == 3
    shown = run("db", "info", "--database", path).stdout
    assert HERE.id in shown
    assert "layers" in shown


def test_info_of_an_empty_database_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_DATABASE", str(tmp_path / "empty.sqlite"))
    DatabaseStore(str(tmp_path / "empty.sqlite")).close()
    assert "Nothing has been measured yet." in run("db", "info").stdout


def test_query_selects_by_platform_kind_subject_and_time(run, path):
    everything = _lines(run, path)
    assert [(line["kind"], line["subject"], line["records"]) for line in everything] == [
        ("networks", "net", 3),
        ("networks", "stem", 1),
        ("layers", "net", 2),
        ("layers", "stem", 1),
    ]
    assert everything[0]["latency"] == 0.0015
    assert everything[1]["latency"] is None
    assert [line["kind"] for line in _lines(run, path, "--subject", "digest-st")] == ["networks", "layers"]
    assert len(_lines(run, path, "--platform", THERE.id)) == 2
    assert len(_lines(run, path, "--kind", "networks")) == 2
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(NOW + 1))
    assert [line["records"] for line in _lines(run, path, "--since", since)] == [1]
    assert _lines(run, path, "--since", "7d") == []
    assert "latency [ms] " in run("db", "query", "--database", path, "--subject", "net").stdout
    assert "Nothing was found." in run("db", "query", "--database", path, "--subject", "%").stdout


def test_a_platform_of_which_nothing_is_known_is_named(fails, path):
    for words in (["query"], ["export", "--out", "a.csv"], ["prune"]):
        said = fails("db", *words, "--database", path, "--platform", "nowhere")
        assert "Unknown platform 'nowhere'. Available: " in said
    said = fails("db", "query", "--database", path, "--since", "yesterday")
    assert "A moment must be a date such as 2026-11-01, or a duration such as 7d" in said


def test_export_writes_every_sample_once_in_both_formats(run, path, tmp_path):
    for name in ("out.csv", "out.parquet"):
        assert "7 samples" in run("db", "export", "--database", path, "--out", tmp_path / name).stdout
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [float(row["value"]) for row in rows] == [row["value"] for row in table]
    assert [row["value"] for row in table] == [0.001, 0.002, 0.25, 0.75, 0.001, 0.25, 0.75]
    assert table[0] == {
        "platform": HERE.id,
        "kind": "networks",
        "campaign": _campaigns(path)[0].identifier,
        "subject": "net",
        "digest": "digest-net",
        "metric": "latency",
        "part": None,
        "run": 0,
        "round": 0,
        "process": 0,
        "at": NOW,
        "reference": 0.5,
        "value": 0.001,
    }
    assert [(row["subject"], row["part"]) for row in table[2:4]] == [("net", 0), ("stem", 1)]
    run("db", "export", "--database", path, "--out", tmp_path / "one.csv", "--platform", THERE.id, "--kind", "layers")
    assert (tmp_path / "one.csv").read_text().count("\n") == 4


def test_export_refuses_other_endings_and_files_that_exist(fails, path, tmp_path):
    assert "must end in .parquet or .csv" in fails("db", "export", "--database", path, "--out", tmp_path / "out.xls")
    (tmp_path / "out.csv").touch()
    assert "replace it with --overwrite" in fails("db", "export", "--database", path, "--out", tmp_path / "out.csv")


def test_merge_makes_one_database_without_doubles(run, fails, path, tmp_path):
    other, out = tmp_path / "other.sqlite", tmp_path / "all.sqlite"
    other.write_bytes(path.read_bytes())
    identifier = _fill(other, begin=5)
    new = _fill(other, kind="solved")
    shown = run("db", "merge", path, other, "--out", out).stdout
    assert "added 5 records of 2 campaigns; already there: 0." in shown
    assert "added 6 records of 2 campaigns; already there: 5." in shown
    found = {item.identifier: item for item in _campaigns(out)}
    assert sorted(record.round for record in found[identifier].records) == [0, 0, 1, 5, 5, 6]
    assert found[identifier].failures == (Failure("broken", "it raised"),)
    assert found[identifier].conditions == {"before": {"load": 0.5}}
    assert found[new] == next(item for item in _campaigns(other) if item.identifier == new)
    assert "exists. Choose another file" in fails("db", "merge", path, "--out", out)
    assert sorted(_info(run, out)) == [(HERE.id, "networks"), (HERE.id, "solved"), (THERE.id, "layers")]
    assert _info(run, out)[HERE.id, "networks"]["samples"] == 8


_KILLED = """
import os, sys
from nni_latency.database import DatabaseStore
from nni_latency.measurement import CampaignHeader, Protocol
from nni_latency.platforms import Platform
store = DatabaseStore(sys.argv[1])
with store.campaign(CampaignHeader("old", {}, Platform("device-3"), Protocol())):
    os._exit(0)
"""


def test_merge_over_a_database_whose_process_was_killed_keeps_nothing_of_it(run, path, tmp_path):
    out = tmp_path / "all.sqlite"
    subprocess.run([sys.executable, "-c", _KILLED, out], check=True)
    assert out.with_name("all.sqlite-wal").stat().st_size
    run("db", "merge", path, "--out", out, "--overwrite")
    assert sorted(_info(run, out)) == sorted(_info(run, path))


def test_merge_knows_the_same_records_by_another_campaign(run, path, tmp_path):
    copy = tmp_path / "copy.sqlite"
    _fill(copy)
    shown = run("db", "import", "--database", path, copy).stdout
    assert "added 0 records of 0 campaigns; already there: 3." in shown
    assert len(_campaigns(path)) == 2


def test_import_twice_changes_nothing(run, path, tmp_path):
    mine = tmp_path / "mine.sqlite"
    assert "5 records of 2 campaigns" in run("db", "import", "--database", mine, path).stdout
    before = _campaigns(mine)
    assert "0 records of 0 campaigns" in run("db", "import", "--database", mine, path).stdout
    assert _campaigns(mine) == before == _campaigns(path)


@pytest.mark.parametrize("content", ["", "{}\n", "hello\n", '{"format": "nni_latency.lookup_table"}\n'])
def test_import_of_another_file_is_one_sentence(fails, tmp_path, content):
    (tmp_path / "x.jsonl").write_text(content)
    sentence = fails("db", "import", "--database", tmp_path / "mine.sqlite", tmp_path / "x.jsonl")
    assert "is not a database" in sentence
    assert (tmp_path / "x.jsonl").read_text() == content


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("y\n", 1)])
def test_prune_lists_what_goes_and_asks(path, answer, left):
    command = ["db", "prune", "--database", str(path), "--kind", "layers"]
    dry = CliRunner().invoke(main, [*command, "--dry-run"])
    assert "1 campaign with 3 samples." in dry.stdout
    asked = CliRunner().invoke(main, command, input=answer)
    assert asked.stdout.startswith(dry.stdout)
    assert "Remove 1 campaign? [y/N]" in asked.stdout
    assert len(_campaigns(path)) == left


def test_prune_keeps_the_latest_and_lets_the_version_grow(run, path):
    latest = _fill(path, fresh=True)
    store = DatabaseStore(str(path))
    before = store.version()
    run("db", "prune", "--database", path, "--keep-latest", "1", "--yes")
    assert store.version() > before
    store.close()
    assert [item.identifier for item in _campaigns(path) if item.header.kind == "networks"] == [latest]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--older-than", "90d"], 2),
        (["--platform", THERE.id], 1),
        (["--kind", "networks"], 1),
        (["--kind", "networks", "--platform", THERE.id], 2),
        (["--kind", "networks", "--keep-latest", "1"], 2),
    ],
)
def test_prune_removes_what_meets_every_condition(run, path, arguments, left):
    run("db", "prune", "--database", path, *arguments, "--yes")
    assert len(_campaigns(path)) == left


def test_prune_leaves_what_is_being_measured(run, path):
    store = DatabaseStore(str(path))
    with store.campaign(CampaignHeader("networks", {"space": "tiny"}, HERE, Protocol())) as log:
        shown = run("db", "prune", "--database", path, "--kind", "networks", "--yes").stdout
    store.close()
    assert f"{log.identifier} is being measured and was kept." in shown
    assert len(_campaigns(path)) == 2


def test_prune_takes_platforms_along(run, path):
    run("db", "prune", "--database", path, "--platform", THERE.id, "--yes")
    store = DatabaseStore(str(path))
    with store.database.reading() as connection:
        names = connection.exec_driver_sql("SELECT name FROM platforms").scalars().all()
    store.close()
    assert names == [HERE.id]


def test_prune_without_a_condition_is_refused(fails, path):
    sentence = fails("db", "prune", "--database", path, "--yes")
    assert sentence == "Say what to remove, with --older-than, --keep-latest, --platform or --kind."


@pytest.mark.parametrize("command", [["info"], ["query"], ["prune", "--kind", "x"]])
def test_database_that_is_not_there_is_one_sentence(fails, tmp_path, command):
    sentence = fails("db", *command, "--database", tmp_path / "none.sqlite")
    assert "there is no such file" in sentence
    assert "with its process" in fails("db", *command, "--database", "memory")
