# SPDX-License-Identifier: Apache-2.0
"""Reports: one record, printed as a table, JSON or CSV, on any screen and into any pipe."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from narrow import check_lines, printed

from nni_latency.cli import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.cli._messages import is_quiet, is_verbose
from nni_latency.cli._report import Pairs, fits, table_of
from nni_latency.operators import parse_op_keys
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, SpaceReference, shipped_tables

ROWS = [
    {"name": f"a_long_name_of_layer_{number}", "kind": "convolution", "cost": number / 8, "share": 0.1 * number}
    for number in range(1, 4)
]
COLUMNS = [
    Column("layer", "name"),
    Column("what it is", "kind"),
    *(Column(f"latency {number}", "cost", "{:.3f} ms".format) for number in range(5)),
    Column("share", "share", "{:.0%}".format),
]


KEYS = [
    "conv2d(bias=1,groups=1,kernel_size=3,out_channels=8,stride=1)@1x3x8x8:float32",
    "relu()@1x8x8x8:float32",
    "relu()@2x3x8x8:float32",
]


@pytest.fixture
def operators(tmp_path):
    """Save a table of three operators."""
    entries = tuple(Entry(0.001, 0.001, 0.001, op=op) for op in parse_op_keys(" ".join(KEYS)))
    header = {"space": SpaceReference("operators"), "platform": Platform("pi"), "input_shape": (1,)}
    return LookupTable(operators=entries, **header).save(tmp_path / "operators.json")


def _print(report, *arguments, columns=None):
    @click.command(cls=ReportingCommand)
    def command():
        print_report(report)

    return CliRunner(env={"COLUMNS": columns and str(columns)}).invoke(command, arguments).stdout


@pytest.mark.parametrize("columns", [40, 60, 80, 200, None])
def test_table_keeps_headers_and_first_column_at_any_width(columns):
    shown = _print(Report(Grid(ROWS, COLUMNS, "A title", by="share")), columns=columns)
    assert "…" not in shown
    assert "..." not in shown
    assert all(len(line) <= (columns or 10_000) for line in shown.splitlines())
    assert all(header in shown for header in ("layer", "share", "latency"))
    assert shown.count("30%") == 1
    if columns in (None, 200):
        assert "a_long_name_of_layer_3" in shown
        assert shown.count("A title") == 1


def test_the_values_of_a_column_have_one_unit():
    rows = [{"name": "a", "low": 2e-6, "high": 0.002, "n": 7, "age": 90.0}, {"name": "b", "low": 0.001, "n": 12}]
    columns = [
        Column("name", "name"),
        Column("from", "low", metric="latency"),
        Column("to", "high", metric="latency", absent="-"),
        Column("runs", "n", metric="count"),
        Column("age", "age", metric="duration"),
    ]
    lines = [line.strip("┃│").split() for line in _print(Report(Grid(rows, columns))).splitlines()]
    header = " ".join(lines[1]).replace("┃", "|")
    assert header == "name | from [ms] | to [ms] | runs | age [min]"
    assert [" ".join(line).replace("│", "|") for line in lines[3:5]] == [
        "a | <0.01 | 2.00 | 7 | 1.50",
        "b | 1.00 | | 12 |",
    ]


@pytest.mark.parametrize(("width", "framed"), [(88, True), (80, False)])
def test_lines_go_before_a_name_is_broken(width, framed):
    name = "xeon-6-167-1.onnxruntime.fp32.t1"
    cells = [["platform", *["latency"] * 5], [name, *["123456"] * 5]]
    shown = printed(table_of(cells, [True, *[False] * 5], "", width), width)
    assert name in shown
    assert ("│" in shown) == framed
    check_lines(shown, width)


def test_what_does_not_fit_as_columns_is_a_list_and_never_two_tables():
    headers = ["layer", *(f"latency_{number}" for number in range(12))]
    cells = [headers, *([f"layer{row}", *["0.123456"] * 12] for row in range(3))]
    texts = [True, *[False] * 12]
    assert not fits(cells, texts, 80)
    shown = printed(table_of(cells, texts, "A title", 80), 80)
    assert [shown.count(text) for text in ("A title", "latency_3", "layer1")] == [1, 3, 1]
    check_lines(shown, 80)


def test_sentences_are_folded_between_words_and_paths_are_whole():
    path = "/a/folder" * 12
    shown = _print(
        Report(Grid([], COLUMNS[:1]), after=[f"Wrote {path} and more words than there is room for"]), columns=40
    )
    assert path in shown
    check_lines(shown, 40)


def test_a_pipe_is_as_wide_as_needed():
    long = "word " * 100
    shown = _print(Report(Grid([{"name": long.strip()}], COLUMNS[:1]), after=[long]))
    assert shown.count(long.strip()) == 2


def test_three_formats_come_from_the_same_rows():
    report = Report(Grid(ROWS, COLUMNS))
    assert json.loads(_print(report, "--format", "json")) == ROWS
    rows = list(csv.DictReader(io.StringIO(_print(report, "--format", "csv"))))
    assert [{**row, "cost": float(row["cost"]), "share": float(row["share"])} for row in rows] == ROWS


def test_values_stand_side_by_side_where_they_are_few():
    rows = [
        {"l": layer, "c": choice, "v": cost} for layer, choice, cost in [("a", "x", 1), ("a", "y", None), ("b", "x", 3)]
    ]
    columns = [Column("layer", "l"), Column("choice", "c"), Column("cost", "v", str, "missing")]
    lines = _print(Report(Grid(rows, columns, across=True), before=[Pairs("Facts", {"one": 1})])).splitlines()
    assert [line.split() for line in lines[:2]] == [["Facts"], ["one", "1"]]
    assert any("x" in line and "y" in line for line in lines)
    assert any("a" in line and "1" in line and "missing" in line for line in lines)


def test_the_rest_is_counted_unless_everything_is_asked_for():
    report = Report(Grid(ROWS, COLUMNS, most=1, by="share"))
    assert "and 2 more" in _print(report)
    assert "30.0 %" in _print(report)
    assert "more" not in _print(report, "--verbose")
    assert "nothing here" in _print(Report(Grid([], COLUMNS, nothing="nothing here")))


def test_quiet_and_verbose_hold_for_the_group_and_for_the_command(run, fails, tables):
    command = ["predict", "fbnet@skip,skip,skip,skip,skip,skip,skip", "--missing", "nearest"]
    command += ["--latency-estimator", tables["holes"]]
    assert "taken from the nearest entry" in run(*command).stderr
    assert run(*command, "--quiet").stderr == ""
    assert run("--quiet", *command).stderr == ""
    assert "exclude each other" in fails("plugins", "--quiet", "--verbose")
    assert not is_quiet()
    assert not is_verbose()
    assert "Traceback" in run("show", "none.json", "--verbose", code=2).stderr


def test_what_cannot_be_written_is_told_and_a_closed_pipe_is_not():
    shown = "import sys; from nni_latency.cli import main; main(sys.argv[1:])"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", shown, "plugins"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "Error: The output cannot be written: No space left on device.\n"
    command = f'"{sys.executable}" -c "{shown}" plugins | true'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_folder_in_the_place_of_a_file_is_told(fails, tmp_path):
    (tmp_path / "folder.json").mkdir()
    assert "folder.json" in fails("show", "folder.json")
    assert "folder.json" in fails("predict", "fbnet@fbnet-a", "-e", "folder.json")


@pytest.mark.slow
def test_a_million_threads_are_refused(fails):
    assert "must be from 1 to 1024" in fails("build-lut", "--threads", 1_000_000)


def test_show_takes_a_shipped_table_a_plugin_and_a_predictor(run, tables):
    name = next(iter(shipped_tables()))
    assert json.loads(run("show", name, "--format", "json").stdout)["entries"]
    assert "ModuleEstimator(latency on" in run("show", "module").stdout
    rows = list(csv.DictReader(io.StringIO(run("show", tables["tiny"], "--format", "csv").stdout)))
    assert {"layer", "choice", "latency_s", "low_s", "high_s"} <= set(rows[0])


def test_operators_are_taken_as_they_are_printed(run, fails, tmp_path, operators):
    keys = KEYS[:2]
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "keys.txt").write_text("\n".join(keys))
    asked = [",".join(keys), " ".join(keys), json.dumps(keys), " ".join(f"'{key}'" for key in keys)]
    for text in (*asked, "keys.json", "keys.txt"):
        command = ["predict", "-e", operators, f"operators@{text}", "--format", "json"]
        assert [row["name"] for row in json.loads(run(*command).stdout)["layers"]] == keys
    message = fails("predict", "-e", operators, "operators@nope")
    assert "'nope'" in message
    assert message.startswith("TableEstimator(operators")


def test_predict_takes_onnx_files_with_open_sizes(run, fails, operators):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    sizes = ["n", 3, "h", "w"]
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sizes)
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sizes)
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out])), "net.onnx")
    command = ["predict", "net.onnx", "--latency-estimator", operators, "--format", "json"]
    (row,) = json.loads(run(*command, "--input", "3,8,8", "--batch-size", 2).stdout)["layers"]
    assert row["operator"].startswith("relu()@2x3x8x8")
    assert "Give the shapes of its inputs" in fails(*command)
    assert "has the shape ?x3x?x?, in which the file fixes 3. Got 1x4x8x8" in fails(*command, "--input", "4,8,8")
    assert "The inputs of 'net.onnx' are x. Got y" in fails(*command, "--input", "y=3,8,8")
