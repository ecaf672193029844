# SPDX-License-Identifier: Apache-2.0
"""Formats of other projects: what goes out comes back, to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.errors import FileFormatError, InvalidValueError, MissingEntryError, UnknownNameError
from nni_latency.estimators import TableEstimator
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import Entry, LookupTable, Residency, SpaceReference, TableLayer, named_operators
from nni_latency.tables.formats import FORMATS, OperatorKey, export_table, import_table, operator_key

TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}

#: Formats that know layers, and hold what an importer gets to the last bit.
_BY_LAYER = ("lists", "text", "csv")

_COSTS = st.floats(1e-7, 10.0, allow_subnormal=False)


@pytest.fixture(scope="module")
def plan():
    return FBNetSpace(**TINY).measure_plan()


def _table(plan, costs):
    """Make a table of the searched layers from a list of costs by place; None leaves a place empty."""
    layers, left = [], list(costs)
    for layer in plan.layers:
        entries = {}
        if layer.searched:
            for choice, candidate in layer.candidates.items():
                cost = left.pop()
                if cost is not None:
                    entries[choice] = Entry(cost, cost, cost, op=candidate.op)
        layers.append(TableLayer(layer.name, tuple(layer.candidates), entries, layer.searched, layer.default))
    return LookupTable(space=plan.space, platform=Platform("pi"), layers=tuple(layers), input_shape=plan.input_shape)


def _costs(plan):
    count = sum(len(layer.candidates) for layer in plan.searched)
    some = st.lists(st.none() | _COSTS, min_size=count, max_size=count)
    # A layer at either end without any cost is taken for one that the space does not choose.
    return some.map(lambda costs: [costs[0] or 1e-3, *costs[1:-1], costs[-1] or 1e-3])


@pytest.mark.parametrize("name", _BY_LAYER)
def test_layers_come_back_to_the_last_bit(tmp_path_factory, plan, name):
    path = tmp_path_factory.mktemp("round") / "file"

    @settings(max_examples=40)
    @given(_costs(plan), st.sampled_from(["s", "ms", "us"]))
    def check(costs, unit):
        table = _table(plan, costs)
        assert export_table(table, name, unit=unit, out=path) == ()
        back = import_table(path, plan, file_format=name, unit=unit, check_unit=False)
        assert back.table.layers == table.layers
        assert (back.unmatched, back.left_out) == ((), ())

    check()


@pytest.mark.parametrize(
    ("metric", "unit"), [("power", "W"), ("power", "mW"), ("weighted", "1"), ("throughput", "1/s")]
)
@pytest.mark.parametrize("name", _BY_LAYER)
def test_layers_of_every_metric_come_back(tmp_path, plan, name, metric, unit):
    table = replace(_table(plan, np.random.default_rng(0).uniform(0.1, 10, 200).tolist()), metric=metric)
    export_table(table, name, unit=unit, out=tmp_path / "file")
    back = import_table(tmp_path / "file", plan, file_format=name, unit=unit, metric=metric)
    assert back.table.layers == table.layers


@given(value=_COSTS, spread=st.floats(0, 0.5), count=st.integers(0, 1000), unit=st.sampled_from(["s", "ms", "us"]))
@pytest.mark.parametrize("name", ["ofa", "ofa-yaml"])
def test_operator_keys_come_back(tmp_path_factory, name, value, spread, count, unit):
    path = tmp_path_factory.mktemp("round") / "file"
    op = OpSpec.of("linear", [(1, 96)], out_features=7, bias=True)
    width = spread * value if count else 0.0
    entry = Entry(value, value - width, value + width, count, 0, op)
    entries = named_operators([("Logits-input:1x1x96-output:7", entry)])
    table = LookupTable(
        space=SpaceReference("operators"), platform=Platform("unknown", "unknown"), operators=entries, input_shape=(1,)
    )
    export_table(table, name, unit=unit, out=path)
    (found,) = import_table(path, file_format=name, unit=unit, check_unit=False).table.entries
    assert (found.value, found.n_samples, found.op, found.names) == (value, count, op, entries[0].names)
    assert (found.low, found.high) == pytest.approx((entry.low, entry.high), rel=1e-9, abs=1e-20)


@pytest.mark.parametrize("name", ["npy", "nni"])
def test_formats_of_nni_come_back_as_floats_of_their_unit(tmp_path, plan, name):
    costs = np.random.default_rng(0).uniform(1e-4, 1e-2, 200).tolist()
    table = _table(plan, costs)
    remarks = export_table(table, name, unit="us", out=tmp_path / "file")
    back = import_table(tmp_path / "file", plan, file_format=name, unit="us").table
    if name == "npy":
        assert remarks == ()
    for mine, theirs in zip(table.layers, back.layers, strict=True):
        assert set(theirs.entries) == set(mine.entries)
        for choice, entry in mine.entries.items():
            alike = [
                layer.entries[choice].value
                for layer in table.layers
                if choice in layer.entries and layer.entries[choice].op == entry.op
            ]
            expected = sum(alike) / len(alike) if name == "nni" else entry.value
            assert theirs.entries[choice].value == pytest.approx(expected, rel=1e-14)


def test_entries_that_share_a_key_are_named(tmp_path, plan):
    table = _table(plan, [0.001 * (place + 1) for place in range(200)])
    remarks = " ".join(export_table(table, "ofa", unit="ms", out=tmp_path / "file"))
    assert "has no key for" in remarks
    assert "layer0:k3_e1," in remarks


def test_calibration_goes_into_the_numbers(tmp_path):
    table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    measured = LookupTable(
        space=table.space,
        platform=table.platform,
        layers=table.layers,
        input_shape=(4,),
        calibration=1.25,
        residency=Residency(0.1, 0.01),
    )
    remarks = export_table(measured, "csv", unit="ms", out=tmp_path / "t.csv")
    assert "1.25" in remarks[0]
    assert "small networks" in remarks[1]
    assert "batch of 4" in remarks[2]
    assert import_table(tmp_path / "t.csv").table["a"]["y"].value == pytest.approx(0.0025)


def test_csv_keeps_intervals_samples_and_fixed_layers(tmp_path, plan):
    head = plan.layers[-1]
    entry = Entry(0.003, 0.0025, 0.0035, 40, 3, head.candidates[head.default].op)
    table = LookupTable(
        space=plan.space,
        platform=Platform("pi"),
        layers=tuple(
            TableLayer(
                layer.name,
                tuple(layer.candidates),
                {head.default: entry} if layer is head else {},
                layer.searched,
                layer.default,
            )
            for layer in plan.layers
        ),
        input_shape=plan.input_shape,
    )
    export_table(table, "csv", unit="us", out=tmp_path / "t.csv")
    assert import_table(tmp_path / "t.csv", plan).table.layers == table.layers


def test_csv_may_be_layers_by_candidates_with_semicolons(tmp_path):
    (tmp_path / "t.csv").write_text("layer;x;y\na;1,5;2\n".replace(",", "."), encoding="utf-8-sig")
    table = import_table(tmp_path / "t.csv", unit="ms").table
    assert table["a"]["x"].value == 0.0015
    assert table.space.name == "unknown"


def test_tables_of_no_space_have_layers_of_their_own(tmp_path):
    (tmp_path / "t.txt").write_text("ir_k3_e1 ir_k3_s2\n10.5 20\n30 -\n")
    table = import_table(tmp_path / "t.txt", unit="ms").table
    assert [layer.name for layer in table.layers] == ["layer0", "layer1"]
    assert table.layers[0].choices == ("k3_e1", "k3_e1_g2")
    assert table.missing == (("layer1", "k3_e1_g2"),)


def test_lists_take_names_from_choices(tmp_path):
    (tmp_path / "t.json").write_text("[null, [1.5, 2], [3], null]")
    table = import_table(tmp_path / "t.json", unit="ms", choices=["x", "y"]).table
    assert table.layers[1].choices == ("x", "y")
    assert table.missing == (("layer1", "y"),)


def test_one_row_of_lut_txt_serves_every_layer_of_that_shape(tmp_path):
    plan = FBNetSpace().measure_plan()
    row = "{{'op_name': {!r}, 'op_data_shape': (56, 56, 24, 24, 1), 'op_dtype': 'float', 'op_latency': {}}}\n"
    (tmp_path / "lut.txt").write_text(row.format("ir_k3_e1", 3000.0) + row.format("skip", 2) + row.format("shift", 9))
    done = import_table(tmp_path / "lut.txt", plan, unit="us")
    found = {(layer.name, choice) for layer in done.table.layers for choice in layer.entries}
    assert found == {(f"layer{n}", choice) for n in (2, 3, 4) for choice in ("k3_e1", "skip")}
    assert done.unmatched == ("line 3 (56x56x24-24-s1, shift)",)


def test_lut_npy_may_hold_the_dictionaries_of_lut_txt(tmp_path):
    rows = [{"op_name": "a", "op_data_shape": (8, 8, 4, 4, 1), "op_dtype": "float", "op_latency": 2.5}]
    np.save(tmp_path / "lut.npy", np.array(rows, dtype=object), allow_pickle=True)
    (entry,) = import_table(tmp_path / "lut.npy", unit="ms").table.entries
    assert (entry.names, entry.value) == (("8x8x4-4-s1:a",), 0.0025)


def test_lut_npy_may_be_an_array_of_numbers(tmp_path, plan):
    np.save(tmp_path / "lut.npy", np.full((len(plan.searched), len(CANDIDATES)), 0.25))
    assert import_table(tmp_path / "lut.npy", plan, unit="ms").table["layer0"]["skip"].value == 0.00025


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        # ProxylessNAS counts by how much a block widens, Once-for-All the channels inside.
        ("expanded_conv-input:8x8x16-output:4x4x24-expand:6-kernel:3-stride:2-idskip:0", "inverted_residual", 6),
        ("expanded_conv-input:8x8x16-output:4x4x24-expand:96-kernel:3-stride:2-idskip:0", "inverted_residual", 6),
        ("expanded_conv-input:8x8x16-output:8x8x16-expand:1-kernel:3-stride:1-idskip:1", "expanded_conv", None),
        ("expanded_conv-input:8x8x16-output:4x4x24-expand:40-kernel:3-stride:2-idskip:0", "expanded_conv", None),
        ("Conv_1-input:7x7x192-output:7x7x1152", "conv_block", None),
        ("AvgPool2D-input:7x7x1152-output:1x1x1152", "global_average_pool", None),
    ],
)
def test_keys_become_operators(text, kind, expected):
    op = OperatorKey.parse(text).operator()
    assert op.kind == kind
    assert op.get("expansion") == expected
    again = operator_key(op)
    assert OperatorKey.parse(again).operator() == op


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("Conv", "no key of the form"),
        ("Conv-input:0x8x3-output:8x8x4", "size or a number that no operator has"),
        ("Conv-input:8x8x3-output:8x8x99999999999", "size or a number that no operator has"),
        (f"Conv-input:8x8x{'9' * 5000}-output:8x8x4", "size or a number that no operator has"),
        (f"Conv-input:8x8x3-output:8x8x4-kernel:{'9' * 5000}", "size or a number that no operator has"),
        ("expanded_conv-input:8x8x16-output:4x4x24-expand:6-kernel:3", "lacks a number"),
        ("expanded_conv-input:8x8x16-output:8x8x24-expand:6-kernel:3-stride:2-idskip:0", "contradicts itself"),
        ("expanded_conv-input:8x8x16-output:8x8x24-expand:6-kernel:3-stride:0-idskip:0", "contradicts itself"),
        ("AvgPool2D-input:7x7x1152-output:1x1x8", "contradicts itself"),
    ],
)
def test_keys_that_say_nothing_are_refused(key, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        OperatorKey.parse(key).operator()


def test_rows_whose_key_says_nothing_are_named_and_the_rest_is_read(tmp_path):
    (tmp_path / "t.json").write_text('{"Conv-input:8x8x3-output:8x8x4": 1, "strange": {"mean": 2}}')
    done = import_table(tmp_path / "t.json", unit="ms", file_format="ofa")
    assert done.table.coverage == 1
    assert "'strange' is no key of the form" in done.unmatched[0]


def test_an_operator_of_another_name_keeps_its_entry(tmp_path):
    (tmp_path / "t.json").write_text('{"Mystery-input:8x8x3-output:8x8x4-kernel:3": 1}')
    table = import_table(tmp_path / "t.json", unit="ms").table
    (entry,) = table.entries
    assert (entry.op.kind, entry.features) == ("unknown", None)
    assert entry.names == ("Mystery-input:8x8x3-output:8x8x4-kernel:3",)
    with pytest.raises(MissingEntryError, match=r"no operator of a known kind from which relu\(\)@1x8"):
        TableEstimator(table).estimate_op(OpSpec.of("relu", [(1, 8)]))


def test_names_of_one_operator_have_their_mean(tmp_path):
    key = "expanded_conv-input:8x8x16-output:4x4x24-expand:{}-kernel:3-stride:2-idskip:0"
    (tmp_path / "t.json").write_text(json.dumps({key.format(6): 2, key.format(96): 4}))
    table = import_table(tmp_path / "t.json", unit="ms").table
    assert [(entry.value, entry.names) for entry in table.entries] == [(0.003, (key.format(6), key.format(96)))]
    export_table(table, "ofa", unit="ms", out=tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == {
        key.format(6): {"mean": 3.0},
        key.format(96): {"mean": 3.0},
    }


@pytest.mark.parametrize("name", ["lists", "text", "npy"])
def test_a_table_of_operators_goes_into_no_format_of_layers(tmp_path, name):
    (tmp_path / "t.json").write_text('{"Conv-input:8x8x3-output:8x8x4": 1}')
    table = import_table(tmp_path / "t.json", unit="ms").table
    with pytest.raises(InvalidValueError, match=rf"The format '{name}' holds layers .* Use ofa, ofa-yaml, nni, csv\."):
        export_table(table, name, unit="ms")
    export_table(table, "csv", unit="ms", out=tmp_path / "t.csv")
    assert import_table(tmp_path / "t.csv").table.layers[0].name == "conv_block"


def test_unknown_format_lists_what_there_is():
    table = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1}})
    with pytest.raises(UnknownNameError, match=r"Unknown format 'xml'. Available: ofa, ofa-yaml, lists"):
        export_table(table, "xml", unit="s")


def test_a_format_without_a_place_for_anything_is_refused(tmp_path):
    table = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1}})
    with pytest.raises(InvalidValueError, match="has no entry whose operator it has a key for"):
        export_table(table, "ofa", unit="s", out=tmp_path / "t")
    with pytest.raises(InvalidValueError, match="no names like 'a b'"):
        export_table(
            LookupTable.from_latencies({"a": ["a b"]}, {"a": {"a b": 1}}), "text", unit="s", out=tmp_path / "t"
        )
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_exported_files_are_recognised(tmp_path, plan, name):
    export_table(_table(plan, [0.001] * 200), name, unit="ms", out=tmp_path / "file")
    back = import_table(tmp_path / "file", plan, unit="ms")
    assert back.format == {"ofa-yaml": "ofa"}.get(name, name)


def test_what_looks_like_nothing_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("dear diary,\ntoday I measured\n")
    with pytest.raises(FileFormatError, match="looks like none of the formats"):
        import_table(tmp_path / "t.txt", unit="ms")
