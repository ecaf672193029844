# SPDX-License-Identifier: Apache-2.0
"""``show`` without a file: the tables that ship; and a search that starts from one, without its device."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from narrow import WIDTHS, check_lines

from nni_latency.tables import shipped_tables, validation_path
from nni_latency.validation import read_summary

_PIXEL = "fbnet-cifar-32-b1.pixel-3.unknown.fp32.t1"
_PI = "fbnet-cifar10-32-b1.raspberry-pi-4.tensorflow.fp32.t4"


def test_show_lists_what_ships(run):
    shown = run("show").stdout
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    assert set(lines) == set(shipped_tables())
    for text in ("latency", "0.0 %", "1.000", "1000", "HW-NAS-Bench, ICLR 2021, by HELP: sums of blocks"):
        assert text in lines[_PIXEL]
    assert lines[_PI].count(" ? ") == 4
    assert "this project: whole networks" in lines["fbnet-224-b1.epyc-25-17-1.torch.fp32.t1"]
    assert "nni-latency show pretrained" in shown


def test_list_is_json_and_csv(run):
    rows = {row["table"]: row for row in json.loads(run("show", "--format", "json").stdout)}
    assert set(rows) == set(shipped_tables())
    row = rows["fbnet-cifar-32-b32.titan-x.unknown.fp32.t1"]
    assert (row["space"], row["batch_size"], row["platform"]) == ("fbnet", 32, "titan-x.unknown.fp32.t1")
    scores = read_summary(validation_path(shipped_tables()[row["table"]])).scores
    assert (row["mape"], row["within10"], row["spearman"]) == (scores.mape, scores.within10, scores.spearman)
    assert row["licence"] == "MIT, copyright (c) 2024 HayeonLee"
    assert rows[_PI]["mape"] is None
    table = list(csv.DictReader(io.StringIO(run("show", "--format", "csv").stdout)))
    assert [item["table"] for item in table] == list(rows)
    assert json.loads(table[-1]["arguments"])["preset"] == "cifar10"


@pytest.mark.parametrize("width", WIDTHS)
def test_list_fits_a_narrow_screen(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run("show").stdout
    check_lines(shown, width)
    # Names are whole, so that they can be copied.
    assert set(shipped_tables()) <= set(shown.split())


def test_options_of_a_file_need_one(fails):
    for words in (["--plot", "picture.png"], ["--network", "net.py:Net"]):
        assert "--plot and --network take a FILE" in fails("show", *words)


@pytest.mark.parametrize("name", ["raspberry", "raspberry.json"])
def test_unknown_name_points_to_the_list(fails, name):
    message = fails("show", name)
    assert f"There is no file '{name}'" in message
    assert "no shipped table" in message
    assert "List the tables that ship with: nni-latency show" in message


def test_published_table_is_shown_with_its_scores_remarks_and_licence(run):
    shown = run("show", _PIXEL, "--verbose").stdout
    assert "1000 networks: MAPE 0.0 %, within 10 %: 100.0 %, Spearman 1.000" in shown
    for text in ("exact sums over the layers", "MIT, copyright (c) 2022 GaTech-EIC", "Google Pixel 3", "unpublished"):
        assert text in shown


def test_ranks_that_two_networks_do_not_have_are_not_shown(run, tmp_path):
    path = shipped_tables()[_PIXEL]
    content = json.loads(validation_path(path).read_text(encoding="utf-8"))
    content["scores"]["spearman"] = None
    table = shutil.copy(path, tmp_path / "t.json")
    validation_path(Path(table)).write_text(json.dumps(content), encoding="utf-8")
    shown = run("show", table).stdout
    assert "1000 networks: MAPE 0.0 %" in shown
    assert "Spearman" not in shown


def test_layers_without_an_entry_are_not_measured(run):
    shown = run("show", _PI).stdout
    assert "not measured (default conv)" in shown
    assert "the error of their sums is not known" in shown


def test_validation_of_a_published_table_is_shown_by_its_scores(run, fails):
    path = validation_path(shipped_tables()[_PIXEL])
    shown = run("show", path).stdout
    assert "The file holds the scores of 1000 networks, and not the networks." in shown
    assert "repeatability" not in shown
    assert json.loads(run("show", path, "--format", "json").stdout)["scores"]["n"] == 1000
    assert "name,n,mape,rmspe" in run("show", path, "--format", "csv").stdout
    assert "There are no networks to plot" in fails("show", path, "--plot", "picture.png")


@pytest.mark.parametrize("name", [_PIXEL, _PI])
def test_published_table_predicts_by_its_name(run, name):
    missing = ["--missing", "nearest"] if name == _PI else []
    network = f"fbnet@{','.join(['k3_e3'] * 22)}"
    content = json.loads(run("predict", network, "--estimator", name, *missing, "--format", "json").stdout)
    assert "latency" in json.dumps(content)


def test_validate_says_that_the_device_is_not_here(fails):
    message = fails("validate", _PIXEL)
    assert "The numbers hold for pixel-3, with a runtime that is not known" in message


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [(_PIXEL, "15ms"), (_PI, "200ms")])
def test_search_starts_without_the_device(run, tmp_path, _few_digits, name, target):
    missing = ["--missing", "nearest"] if name == _PI else []
    done = run(
        "search", "--space", "fbnet", "--latency-estimator", name, *missing, "--target", target, "--dataset", "digits",
        "--epochs", 1, "--training", "final_epochs=0,batch_size=32", "--out", "found",
    )  # fmt: skip
    content = json.loads((tmp_path / "found" / "search.json").read_text())
    assert content["predicted"] <= content["target"]
    assert content["measured"] is None
    assert ("The numbers hold for pixel-3" if name == _PIXEL else "tensorflow") in content["not_measured"]
    assert "will not be measured" in done.stderr
