# SPDX-License-Identifier: Apache-2.0
"""The file format: what is wrong with a file is said in one sentence that names it."""

from __future__ import annotations

import json

import pytest

from nni_latency.errors import FileFormatError
from nni_latency.measurement import Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, SpaceReference, TableLayer, table_schema

_OP = OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=3, stride=1, groups=1, bias=False)
_TABLE = LookupTable(
    space=SpaceReference("fake", {"width": 1.0}),
    platform=Platform("pi", "torch"),
    layers=(TableLayer("a", ("x", "y"), {"x": Entry(0.5, 0.25, 1.0, 9, 1, _OP)}),),
    input_shape=(1, 3, 8, 8),
    protocol=Protocol(),
)


@pytest.fixture
def path(tmp_path):
    return _TABLE.save(tmp_path / "t.json")


def _change(path, *places, to):
    content = json.loads(path.read_text())
    *way, last = places
    inner = content
    for place in way:
        inner = inner[place]
    inner[last] = to
    path.write_text(json.dumps(content))


_ENTRY = ("layers", 0, "entries", "x")

#: Where, what instead, and what the message must say.
_SPOILT = {
    "nan": ((*_ENTRY, "value"), float("nan"), r"layers\.0\.entries\.x\.value must be a finite number"),
    "infinite": ((*_ENTRY, "high"), float("inf"), r"entries\.x\.high must be a finite number"),
    "negative": (
        (*_ENTRY, "value"),
        -0.5,
        r"entries\.x: The value of Entry must be a finite number >= 0\. Got -0\.5",
    ),
    "zero": (_ENTRY, {"value": 0.0, "low": 0.0, "high": 1.0}, r"The latency of 'a': x must be positive\. Got 0"),
    "zero below its interval": ((*_ENTRY, "value"), 0.0, r"entries\.x: .* enclose its value 0\.0"),
    "text": ((*_ENTRY, "value"), "0.5", r"entries\.x\.value must be a number"),
    "bare interval": ((*_ENTRY, "low"), 0.75, r"entries\.x: The interval of Entry must enclose"),
    "unknown field": ((*_ENTRY, "mean"), 0.5, r"entries\.x\.mean is not a field of such a file\."),
    "stranger": (
        ("layers", 0, "entries", "q"),
        {"value": 1.0, "low": 1.0, "high": 1.0},
        r"Entries of 'a' are not among its choices: q",
    ),
    "default": (("layers", 0, "default"), "q", r"default 'q' of 'a' is not among its choices"),
    "double choice": (("layers", 0, "choices"), ["x", "x"], r"choices .*different"),
    "no choices": (
        ("layers", 0),
        {"name": "a", "choices": [], "entries": {}},
        r"layers\.0\.choices must have 1 or more items",
    ),
    "no layers": (("layers",), [], r"layers of different names, at least one, or operators"),
    "attributes": ((*_ENTRY, "op", "attributes"), {}, r"In 'a:x': .*kernel_size"),
    "shapes": ((*_ENTRY, "op", "input_shapes"), [[1, 3]], r"In 'a:x': "),
    "unit": (("unit",), "ms", r"metric 'latency' does not go with unit 'ms'"),
    "metric": (("metric",), "speed", r"metric 'speed' does not go with unit 's'"),
    "device": (("platform", "device"), "My PC", r"'device' of a Platform must be lower-case.*Got 'My PC'"),
    "threads": (("platform", "threads"), 0, r"platform\.threads must be greater than 0"),
    "protocol value": (("protocol", "n_run"), 0, r"'n_run' of a Protocol must be an int >= 1\. Got 0"),
    "protocol field": (("protocol", "n_runs"), 3, r"n_runs"),
    "calibration": (("calibration",), 0.0, r"calibration must be greater than 0"),
    "input shape": (("input_shape",), [], r"input_shape must have 1 or more items"),
    "version 0": (("version",), 0, r"version must be 1\. Got '0'"),
    "version text": (("version",), "2", r"version must be 1\. Got '2'"),
    "failed stranger": (("layers", 0, "failures"), {"q": "why"}, r"Entries of 'a' are not among its choices: q"),
    "failed and measured": (("layers", 0, "failures"), {"x": "why"}, r"'a' have both an entry and a failure: x"),
    "residency": (("residency",), {"saving": 1.0, "scale": 1.0}, r"residency\.saving must be less than 1"),
    "scale": (("residency",), {"saving": 0.5, "scale": 0.0}, r"residency\.scale must be greater than 0"),
    "reference": (("reference",), 0.0, r"reference must be greater than 0"),
    "drift": (("drift",), [1.0, -1.0], r"drift\.1 must be greater than 0"),
}


@pytest.mark.parametrize("fault", _SPOILT)
def test_spoilt_field_is_named(path, fault):
    places, value, message = _SPOILT[fault]
    _change(path, *places, to=value)
    with pytest.raises(FileFormatError, match=rf"(?s)^The table '.*t\.json' is not valid: .*{message}"):
        LookupTable.load(path)


def test_entry_of_an_unknown_kind_has_no_features(path):
    _change(path, *_ENTRY, "op", "kind", to="no_such_kind")
    assert LookupTable.load(path)["a"]["x"].features is None


def test_layer_twice_is_a_fault_of_the_file(path):
    content = json.loads(path.read_text())
    content["layers"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"t\.json' is not valid: .*different names"):
        LookupTable.load(path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.98])
def test_truncated_file_says_so(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(FileFormatError, match=r"t\.json' is not whole JSON \(line \d+: .*cut off while it was copied"):
        LookupTable.load(path)


def test_empty_file_is_not_whole(path):
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"is not whole JSON"):
        LookupTable.load(path)


def test_other_version_says_what_to_do(path):
    _change(path, "version", to=2)
    with pytest.raises(
        FileFormatError, match=r"has version 2, this nni_latency reads up to 1\. It.*that version, or build"
    ):
        LookupTable.load(path)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "3", "null", '"text"', '{"format": "pyperf"}', "[[1, 2], [3, 4]]", '{"version": 1}']
)
def test_foreign_json_is_no_table(path, content):
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"is not a lookup table: its format must be 'nni_latency\.lookup_table'"):
        LookupTable.load(path)


def test_file_that_is_no_text_says_so(path):
    path.write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(FileFormatError, match=r"Cannot read the table .*it is not text"):
        LookupTable.load(path)


def test_absent_file_says_so(tmp_path):
    with pytest.raises(FileFormatError, match=r"Cannot read the table '.*nowhere\.json': No such file"):
        LookupTable.load(tmp_path / "nowhere.json")


def test_folder_is_no_table(tmp_path):
    with pytest.raises(FileFormatError, match=r"Cannot read the table .*Is a directory"):
        LookupTable.load(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}"], ids=["nested", "digits"])
def test_hostile_json_is_refused_like_any_other(path, content):
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"t\.json"):
        LookupTable.load(path)


def test_fields_of_hand_written_tables_may_be_left_out(path):
    content = json.loads(path.read_text())
    for name in ("protocol", "rounds", "duration", "calibration"):
        del content[name]
    content["layers"][0]["entries"]["x"] = {"value": 1, "low": 0, "high": 2}
    path.write_text(json.dumps(content))
    table = LookupTable.load(path)
    assert (table.calibration, table.protocol, table["a"]["x"].high) == (1.0, None, 2.0)


def test_published_schema_describes_every_field_of_a_saved_table(path):
    def fields(schema, value):
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        return set(value) <= set(schema["properties"])

    schema = table_schema()
    definitions = schema["$defs"]
    content = json.loads(path.read_text())
    assert fields(schema, content)
    assert fields(definitions["TableLayer"], content["layers"][0])
    assert fields(definitions["Entry"], content["layers"][0]["entries"]["x"])
