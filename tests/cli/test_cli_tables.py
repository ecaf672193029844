# SPDX-License-Identifier: Apache-2.0
"""``nni-latency table import``, ``export``, ``diff``, ``merge``, ``scale`` and ``subset``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import TINY_OPTIONS

from nni_latency.tables import LookupTable

_KEYS = [
    "Conv-input:32x32x3-output:32x32x16",
    "expanded_conv-input:56x56x24-output:56x56x24-expand:72-kernel:5-stride:1-idskip:1",
    "expanded_conv-input:56x56x24-output:28x28x32-expand:6-kernel:3-stride:2-idskip:0",
    "Logits-input:1x1x1536-output:10",
]


@pytest.fixture
def text():
    """Write the text table of a tiny space; return its path."""
    lines = ["ir_k3_e1 ir_k3_s2 ir_k3_e3 ir_k3_e6 ir_k5_e1 ir_k5_s2 ir_k5_e3 ir_k5_e6 skip"]
    lines += [" ".join(f"{100 * (layer + 1) + place}.5" for place in range(9)) for layer in range(7)]
    Path("lut.txt").write_text("\n".join(lines) + "\n")
    return "lut.txt"


@pytest.fixture
def operators():
    """Write a table of operators; return its path."""
    content = {key: {"mean": 2.0 * place + 1, "std": 0.1, "count": 50} for place, key in enumerate(_KEYS)}
    Path("ofa.json").write_text(json.dumps(content))
    return "ofa.json"


def test_a_table_is_imported_shown_estimated_and_exported(run, text):
    shown = run("table", "import", text, *TINY_OPTIONS, "--unit", "us", "--platform", "pixel-3", "--out", "t.json")
    assert "format text, unit us; 63 entries of fbnet" in shown.stdout
    assert "2 candidates without an entry: stem:conv, head:1504" in shown.stderr
    table = LookupTable.load("t.json")
    assert table.platform.id == "pixel-3.unknown.fp32.t1"
    assert table["layer1"]["k3_e1_g2"].value == 201.5e-6
    assert "k3_e1_g2" in run("show", "t.json").stdout
    answer = run("predict", "fbnet@0,0,0,0,0,0,0", "-e", "t.json", "--format", "json").stdout
    assert json.loads(answer)["latency_s"] == pytest.approx(sum(100.5 + 100 * n for n in range(7)) * 1e-6)
    run("table", "export", "t.json", "--format", "text", "--unit", "us", "--out", "back.txt")
    assert Path("back.txt").read_text() == Path(text).read_text()


def test_a_table_of_operators_is_shown_as_a_list_and_estimates_networks(run, operators):
    run("table", "import", operators, "--space", "none", "--unit", "ms", "--out", "t.json")
    assert "Logits-input:1x1x1536-output:10" in run("show", "t.json").stdout
    command = ["predict", "-e", "t.json", "--format", "json"]
    answer = json.loads(run(*command, "operators@" + ",".join([*_KEYS, _KEYS[0]])).stdout)
    assert answer["latency_s"] == pytest.approx(0.017)
    assert [layer["name"] for layer in answer["layers"]] == [*_KEYS, _KEYS[0]]
    Path("net.txt").write_text("\n".join(_KEYS))
    assert json.loads(run(*command, "operators@net.txt").stdout)["latency_s"] == pytest.approx(0.016)
    # By what it computes, and not by how it is spelt.
    other = _KEYS[2].replace("expand:6", "expand:144")
    assert json.loads(run(*command, f"operators@{other}").stdout)["latency_s"] == pytest.approx(0.005)


def test_operators_that_a_table_lacks_are_named(run, fails, operators):
    run("table", "import", operators, "--space", "none", "--unit", "ms", "--out", "t.json")
    command = ["predict", "-e", "t.json"]
    assert "no entry 'nonsense', and it is no key such as" in fails(*command, "operators@nonsense")
    assert "what it computes is not known" in fails(*command, "operators@Odd-input:1x1x1-output:1x1x1")
    guessed = json.loads(run(*command, "operators@AvgPool2D-input:7x7x8-output:1x1x8", "--format", "json").stdout)
    assert guessed["missing"] == ["guessed by its size: global_average_pool()@1x8x7x7:float32"]
    shown = run(*command, "operators@Logits-input:1x1x8-output:10", "--format", "json").stdout
    assert json.loads(shown)["missing"] == ["predicted: linear(bias=1,out_features=10)@1x8:float32"]
    assert "names no operator" in fails(*command, "operators@,")


def test_every_unmatched_row_is_named(run, fails, text):
    Path("t.csv").write_text("layer,choice,latency_ms\nlayer0,skip,1\nlayer9,skip,2\nlayer1,k9,3\n")
    shown = run("table", "import", "t.csv", *TINY_OPTIONS, "--out", "t.json")
    assert "2 rows without a candidate in the space: line 3 (layer9, skip), line 4 (layer1, k9)" in shown.stderr
    complaint = fails("table", "import", "t.csv", *TINY_OPTIONS, "--strict", "--out", "strict.json")
    assert "2 rows without a candidate" in complaint
    assert not Path("strict.json").exists()


def test_costs_that_are_none_are_left_out_on_request(run, fails):
    Path("t.csv").write_text("layer,choice,latency_ms\nlayer0,skip,1\nlayer1,skip,-2\n")
    complaint = fails("table", "import", "t.csv", *TINY_OPTIONS, "--out", "t.json")
    assert "Got 1 other: layer1:skip = -2 (line 3). Correct them, or leave them out: --invalid leave-out." in complaint
    assert not Path("t.json").exists()
    shown = run("table", "import", "t.csv", *TINY_OPTIONS, "--invalid", "leave-out", "--out", "t.json")
    assert "1 cost left out as not positive: layer1:skip = -2 (line 3)" in shown.stderr


def test_errors_name_the_options_that_were_typed(run, fails, tables):
    run("table", "scale", tables["tiny"], "--factor", 2, "--out", "double.json")
    complaint = fails("table", "merge", tables["tiny"], "double.json", "--out", "merged.json")
    assert "Say which counts with --conflict: 'first', 'last' or 'mean'." in complaint
    assert "--factor must be a positive, finite number. Got 0.0" in fails(
        "table", "scale", tables["tiny"], "--factor", 0, "--out", "zero.json"
    )
    Path("t.json").write_text(json.dumps([[1, 2]]))
    complaint = fails("table", "import", "t.json", "--format", "lists", *TINY_OPTIONS, "--out", "out.json")
    assert "does not say its unit. Give it as --unit; " in complaint
    complaint = fails("predict", "fbnet@k3_e1,k3_e1,skip,skip,skip,skip,skip", "-e", tables["holes"])
    assert "take the nearest entry with --missing nearest, or have it predicted with --missing predict." in complaint


def test_export_says_what_it_leaves_out(run, tables):
    shown = run("table", "export", tables["tiny"], "--format", "lists", "--unit", "ms", "--out", "t.json")
    assert "no place for fixed layers, which are left out: stem:conv, head:1504" in shown.stderr


def test_tables_are_scaled_divided_and_merged(run, tables):
    run("table", "scale", tables["tiny"], "--factor", 2, "--out", "double.json")
    run("table", "subset", tables["tiny"], "--layers", "layer0,layer1", "--out", "a.json")
    run("table", "subset", tables["tiny"], "--choices", "skip", "--out", "b.json")
    assert "Wrote merged.json" in run("table", "merge", "a.json", "b.json", "--out", "merged.json").stdout
    whole, merged = LookupTable.load(tables["tiny"]), LookupTable.load("merged.json")
    assert merged["layer5"]["skip"] == whole["layer5"]["skip"]
    assert LookupTable.load("double.json")["layer5"]["skip"].value == 2 * whole["layer5"]["skip"].value


@pytest.mark.slow
def test_two_tables_are_compared(run, tables):
    run("table", "scale", tables["tiny"], "--factor", 2, "--out", "double.json")
    shown = run("diff", tables["tiny"], "double.json", "--plot", "diff.png").stdout
    assert "median ratio" in shown
    assert Path("diff.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads(run("diff", tables["tiny"], "double.json", "--format", "json").stdout)
    assert (content["ratio"], content["spearman"]) == (pytest.approx(2), pytest.approx(1))
    assert content["ratios"]["layer3"]["skip"] == pytest.approx(2)
    assert "only in the first table: layer0:k3_e1, layer2:skip" in run("diff", tables["tiny"], tables["holes"]).stderr


def test_ranks_of_two_candidates_are_not_compared(run):
    LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 1e-3, "y": 2e-3}}).save("two.json")
    shown = run("diff", "two.json", "two.json").stdout
    assert "none (fewer than three values, or all equal)" in shown
    assert "nan" not in shown
    content = json.loads(run("diff", "two.json", "two.json", "--format", "json").stdout)
    assert content["spearman"] is None


@pytest.mark.slow
def test_a_fallback_and_an_ensemble_have_names(run, fails, tables):
    architecture = "k3_e1,k3_e3,skip,k3_e3,k3_e3,k3_e3,k3_e3"
    command = ["predict", f"fbnet@{architecture}", "--format", "json", "-e"]
    found = json.loads(run(*command, f"fallback:{tables['holes']},{tables['tiny']}").stdout)
    assert found["missing"] == ["layer0:k3_e1", "layer2:skip"]
    assert len(json.loads(run(*command, f"ensemble:{tables['holes']},{tables['tiny']}").stdout)["layers"]) == 9
    assert "takes a table and what is asked" in fails(*command, f"fallback:{tables['holes']}")
    assert "mix two platforms" in fails(*command, f"fallback:{tables['holes']},{tables['elsewhere']}")
    assert "at least two members" in fails(*command, f"ensemble:{tables['holes']}")
    across = f"fallback:{tables['holes']},{tables['elsewhere']},across-platforms"
    assert json.loads(run(*command, across).stdout)["missing"] == ["layer0:k3_e1", "layer2:skip"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["table", "import", "absent.txt", "--unit", "ms", "--out", "t.json"],
            "Cannot read 'absent.txt': No such file",
        ),
        (["table", "import", "lut.txt", *TINY_OPTIONS, "--out", "t.json"], "does not say its unit. Give it as --unit"),
        (
            ["table", "import", "lut.txt", "--unit", "us", "--out", "t.json"],
            "has 7 layers of costs, the space searches 22",
        ),
        (
            ["table", "import", "lut.txt", "--unit", "J", *TINY_OPTIONS, "--out", "t.json"],
            "must be one of s, ms, us, ns. Got 'J'",
        ),
        (
            ["table", "import", "lut.txt", "--unit", "us", *TINY_OPTIONS, "--out", "lut.txt"],
            "is an input of this command",
        ),
        (
            ["table", "import", "lut.txt", "--unit", "us", "--space", "nasnet9", "--out", "t.json"],
            "Unknown space 'nasnet9'",
        ),
        (
            [
                "table",
                "import",
                "lut.txt",
                "--unit",
                "us",
                "--space",
                "none",
                "--space-args",
                "width=1",
                "--out",
                "t.json",
            ],
            "--space none takes no arguments of a space",
        ),
        (
            [
                *("table", "import", "lut.txt", "--unit", "us"),
                *("--space", "none", "--input-size", "32", "--out", "t.json"),
            ],
            "--space none takes no arguments of a space",
        ),
        (["table", "import", "lut.txt", "--unit", "s", *TINY_OPTIONS, "--out", "t.json"], "cannot be in s: they mean"),
        (
            ["table", "import", "lut.txt", "--unit", "us", "--platform", "My Phone", "--out", "t.json"],
            "'device' of a Platform",
        ),
        (
            ["table", "import", "lut.txt", "--unit", "us", "--platform", "a.b", "--out", "t.json"],
            "the name of a device, or its id",
        ),
        (
            ["table", "import", "lut.txt", "--format", "ofa", "--unit", "us", "--out", "t.json"],
            "cannot be read as 'ofa'",
        ),
        (
            ["table", "import", "lut.txt", "--format", "xml", "--out", "t.json"],
            "Unknown format 'xml'. Available: ofa, ofa-yaml",
        ),
        (
            ["table", "export", "absent.json", "--format", "csv", "--unit", "ms", "--out", "t.csv"],
            "There is no file 'absent.json'",
        ),
        (["table", "export", "lut.txt", "--format", "csv", "--unit", "ms", "--out", "t.csv"], "is not whole JSON"),
        (
            ["table", "export", "TINY", "--format", "csv", "--unit", "J", "--out", "t.csv"],
            "must be one of s, ms, us, ns. Got 'J'",
        ),
        (["table", "export", "TINY", "--format", "csv", "--out", "t.csv"], "Missing option '--unit'"),
        (
            ["table", "export", "TINY", "--format", "csv", "--unit", "ms", "--out", "."],
            "it is a folder; name a file in it",
        ),
        (["diff", "TINY", "absent.json"], "There is no file 'absent.json'"),
        (["diff", "TINY", "ENERGY"], "latency cannot be compared with one of energy"),
        (["diff", "TINY", "TINY", "--plot", "lut.txt/x.png"], "Cannot write 'lut.txt/x.png'"),
        (["table", "merge", "TINY", "--out", "t.json"], "At least two tables can be merged. Got 1"),
        (["table", "merge", "TINY", "ELSEWHERE", "--out", "t.json"], "would mix two platforms"),
        (["table", "merge", "TINY", "ENERGY", "--out", "t.json"], "metric: latency against energy"),
        (["table", "scale", "TINY", "--factor", "0", "--out", "t.json"], "must be a positive, finite number. Got 0.0"),
        (["table", "scale", "TINY", "--factor", "much", "--out", "t.json"], "'much' is not a valid float"),
        (["table", "scale", "TINY", "--factor", "2"], "Missing option '-o' / '--out'"),
        (["table", "subset", "TINY", "--out", "t.json"], "Say what to keep, with --layers or --choices"),
        (
            ["table", "subset", "TINY", "--layers", "layer99", "--out", "t.json"],
            "Unknown layer 'layer99'. Available: stem, layer0",
        ),
        (
            ["table", "subset", "TINY", "--choices", "k9", "--out", "t.json"],
            "Unknown choice 'k9'. Available: conv, k3_e1",
        ),
    ],
)
def test_mistakes_are_one_sentence(fails, tables, text, arguments, complaint):
    arguments = [tables.get(item.lower(), item) if item.isupper() else item for item in arguments]
    assert complaint in fails(*arguments)
    assert not Path("t.json").exists()
    assert not Path("t.csv").exists()
