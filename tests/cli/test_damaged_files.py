# SPDX-License-Identifier: Apache-2.0
"""Files that no reader expected: each is answered, or refused in one sentence that names it."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import struct

import numpy as np
import onnx
import pytest
from measured_graphs import fitted
from onnx import helper
from tiny import TINY_OPTIONS
from written_files import DATA, KEPT, write_files, write_search

from nni_latency.database import DatabaseStore
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject
from nni_latency.platforms import Platform
from nni_latency.units import format_column

_FLOAT = onnx.TensorProto.FLOAT


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    """Save a small graph predictor."""
    return fitted(2).save(tmp_path_factory.mktemp("predictor") / "graph")


def _strict(text):
    """Read JSON as the standard has it: without NaN and Infinity."""

    def refuse(number):
        raise AssertionError(number)

    return json.loads(text, parse_constant=refuse)


def _network(path, nodes, *weights):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", _FLOAT, [1, 3, 8, 8])], [value("y", _FLOAT, None)], [*weights]
    )  # fmt: skip
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


def _scalar(name, number):
    return onnx.numpy_helper.from_array(np.float32(number), name)


def _database(path):
    store = DatabaseStore(str(path))
    with store.campaign(CampaignHeader("layers", {}, Platform("device-1"), Protocol()), fresh=False) as log:
        log.admit(Subject("net", dict, (1,), "network", "digest"))
        log.append(Record(0.5, (), {"latency": (0.001,)}, ("net",), 0, 0, 0.1, 1.7e9))
    store.close()
    return path


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE platforms SET name = CAST(x'ff80' AS TEXT)",
        "UPDATE campaigns SET kind = CAST(x'ff80' AS TEXT)",
        "UPDATE campaigns SET written = 'yesterday'",
    ],
)
def test_a_database_with_text_that_is_none_is_refused_by_name(invoke, tmp_path, change):
    path = _database(tmp_path / "damaged.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    for command in ("info", "query"):
        done = invoke(["db", command, "--database", path, "--format", "json"])
        assert isinstance(done.exception, SystemExit | None), done.exception
        assert done.exit_code == 0 or "damaged.sqlite" in done.stderr


def test_a_database_whose_schema_is_no_text_is_refused(fails, tmp_path):
    path = _database(tmp_path / "damaged.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE T\xff\xfe\xfd\xfc"))
    assert "damaged.sqlite" in fails("db", "info", "--database", path)


def test_an_attribute_of_the_wrong_type_is_named(fails, tmp_path, predictor):
    weights = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    path = _network(tmp_path / "net.onnx", [helper.make_node("Conv", ["x", "w"], ["y"], strides=2.5)], weights)
    message = fails("predict", path, "-e", predictor)
    assert "net.onnx', an operator Conv, is not valid: its attribute 'strides' must be of the type INTS" in message


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (-math.inf, 6.0), (-math.inf, math.inf)])
def test_a_clip_without_an_end_is_predicted_and_queried(run, tmp_path, predictor, low, high):
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    path = _network(tmp_path / "net.onnx", nodes, _scalar("low", low), _scalar("high", high))
    assert _strict(run("predict", path, "-e", predictor, "--format", "json").stdout)["platforms"]
    query = (
        "query",
        path,
        "-e",
        predictor,
        "--measure",
        "never",
        "--database",
        "new.sqlite",
        "--format",
        "json",
    )
    assert _strict(run(*query).stdout)["answers"]


@pytest.mark.parametrize("command", [["predict", "-e"], ["query", "-e"]], ids=["predict", "query"])
def test_a_clip_to_nothing_is_refused(fails, tmp_path, predictor, command):
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    path = _network(tmp_path / "net.onnx", nodes, _scalar("low", math.nan), _scalar("high", 6.0))
    assert "net.onnx', an operator Clip, is not valid" in fails(*command, predictor, path)


def test_a_number_of_thousands_of_digits_in_a_key_is_refused(fails, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({f"Conv-input:32x32x{'3' * 5000}-output:32x32x16": {"mean": 1.0}}))
    message = fails("table", "import", path, "--space", "none", "--unit", "ms", "--out", "out.json")
    assert "table.json' holds no costs" in message
    assert "has a size or a number that no operator has" in message


def test_an_array_whose_header_does_not_end_is_refused(fails, tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (7, 9".ljust(117) + b"\n"
    path = tmp_path / "table.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(7 * 9 * 8))
    message = fails("table", "import", path, *TINY_OPTIONS, "--unit", "ms", "--out", "out.json")
    assert "table.npy" in message
    assert "header" in message


def test_half_a_character_in_a_name_is_refused(fails, tmp_path):
    content = json.loads(write_search(tmp_path / "search.json").read_text())
    content["choices"] = {"\ud800layer": "k3_e1"}
    (tmp_path / "search.json").write_text(json.dumps(content))
    assert "'search.json' is not JSON that can be read: " in fails("show", "search.json")


def test_scores_of_enormous_numbers_are_json_and_columns_of_them_are_printed(run, tmp_path):
    content = json.loads((DATA / "validation_1.json").read_text())
    for place, network in enumerate(content["networks"]):
        for name, value in network.items():
            if isinstance(value, float):
                network[name] = 1.7e308 if name.startswith("predicted") and place % 2 else value
            elif name == "halves":
                network[name] = [1.7e308, 1e-308]
    (tmp_path / "validation.json").write_text(json.dumps(content))
    assert _strict(run("show", "validation.json", "--format", "json").stdout)["networks"]
    texts, unit = format_column([1.7e308, 1.7e308], "s")
    assert unit == "h"
    assert texts[0] == texts[1] == f"{1.7e308 / 3600:.0f}"


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Read every kind of file that is JSON."""
    found = {}
    for name, path in write_files(tmp_path_factory.mktemp("files")).items():
        with contextlib.suppress(ValueError):
            found[name] = json.loads(path.read_text())
    assert len(found) >= len(KEPT) + 5
    return found


def test_a_field_that_is_missing_is_named_and_no_bare_error(invoke, documents, tmp_path):
    path = tmp_path / "incomplete.json"
    for name, document in documents.items():
        for field in document:
            path.write_text(json.dumps({key: value for key, value in document.items() if key != field}))
            done = invoke(["show", path, "--format", "json"])
            assert isinstance(done.exception, SystemExit | None), (name, field, done.exception)
            assert done.exit_code == 0 or ("incomplete.json" in done.stderr and done.exit_code == 2), (name, field)


def test_a_table_of_operators_is_shown_and_one_of_a_newer_version_refused(fails, run, tmp_path):
    assert run("show", DATA / "operators_1_names.json").stdout
    content = json.loads((DATA / "operators_1.json").read_text())
    (tmp_path / "table.json").write_text(json.dumps({**content, "version": 99}))
    assert "has version 99" in fails("show", "table.json")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "FILE.onnx"),
        ("predict", "resnet18", "-e", "FILE.safetensors"),
        ("predict", "fbnet@fbnet-c", "-e", "FILE"),
        ("show", "FILE.json"),
        ("show", "FILE.zip"),
        ("learn", "graph", "--dataset", "FILE.zip", "--out", "out"),
        ("table", "merge", "FILE.json", "other.json", "--out", "out"),
        ("table", "import", "FILE.csv", *TINY_OPTIONS, "--unit", "ms", "--out", "out"),
    ],
)
def test_a_pointer_of_git_lfs_is_named_as_such(fails, tmp_path, words):
    name = next(word for word in words if word.startswith("FILE"))
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n")
    assert f"'{name}' is a Git LFS pointer, not the file itself. Run: git lfs pull" in fails(*words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "NAME.onnx"),
        ("predict", "resnet18", "-e", "NAME"),
        ("show", "NAME"),
        ("learn", "graph", "--dataset", "NAME", "--out", "out"),
        ("table", "import", "NAME", *TINY_OPTIONS, "--unit", "ms", "--out", "out"),
        ("build-lut", *TINY_OPTIONS, "--out", "NAME"),
        ("build-lut", *TINY_OPTIONS, "--out", "NAME/out"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(fails, words):
    message = fails(*(word.replace("NAME", "n" * 300) for word in words))
    assert "File name too long" in message or "no file" in message, message
