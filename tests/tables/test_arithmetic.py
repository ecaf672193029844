# SPDX-License-Identifier: Apache-2.0
"""Scaling, parts and merging of tables, and comparing two."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError
from nni_latency.estimators import TableEstimator
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasuredNetwork,
    Residency,
    SpaceReference,
    TableLayer,
    as_throughput,
    compare_tables,
    fold_calibration,
    merge_tables,
    scale_table,
    subset_table,
)

_CHOICES = ("x", "y", "z")
_COSTS = st.lists(st.floats(1e-4, 1.0), min_size=9, max_size=9)


def _table(costs, **changes):
    layers = tuple(
        TableLayer(name, _CHOICES, {c: Entry(v, 0.9 * v, 1.2 * v, 5) for c, v in zip(_CHOICES, row, strict=True)})
        for name, row in zip("abc", (costs[:3], costs[3:6], costs[6:]), strict=True)
    )
    table = LookupTable(
        space=SpaceReference("fake"),
        platform=Platform("pi"),
        layers=layers,
        input_shape=(1, 3),
        calibration=1.1,
        reference=0.5,
    )
    return replace(table, **changes)


_TABLE = _table([0.1 * (n + 1) for n in range(9)])
_ALL = [[a, b, c] for a in range(3) for b in range(3) for c in range(3)]


@given(_COSTS, st.floats(1e-3, 1e3))
@pytest.mark.parametrize("metric", ["latency", "throughput", "activation_memory"])
def test_scaling_scales_every_network(metric, costs, factor):
    table = _table(costs, metric=metric, residency=None if metric == "activation_memory" else Residency(0.3, 0.5))
    mine, scaled = TableEstimator(table), TableEstimator(scale_table(table, factor))
    assert scaled.predict(_ALL) == pytest.approx(mine.predict(_ALL) * factor)


@given(_COSTS)
@pytest.mark.parametrize("metric", ["latency", "throughput", "activation_memory"])
def test_folding_the_calibration_changes_no_network(metric, costs):
    table = _table(costs, metric=metric)
    folded = fold_calibration(table)
    assert folded.calibration == 1
    assert TableEstimator(folded).predict(_ALL) == pytest.approx(TableEstimator(table).predict(_ALL))


def test_folding_the_calibration_of_operators_keeps_the_sums_of_networks():
    networks = (MeasuredNetwork(3.0, 3.0, 3.0, sample={}, entries=2.0),)
    entry = Entry(2.0, 2.0, 2.0, op=OpSpec.of("relu", [(1, 8)]))
    space, platform = SpaceReference("operators"), Platform("a", "b")
    table = LookupTable(
        space=space, platform=platform, input_shape=(1,), operators=(entry,), networks=networks, calibration=1.5
    )
    folded = fold_calibration(table)
    assert [network.entries for network in folded.networks] == [entry.value for entry in folded.operators] == [3.0]
    with pytest.raises(InvalidValueError, match="Throughput needs a table with the layers of a space"):
        as_throughput(table)


def test_scaling_keeps_the_record():
    scaled = scale_table(_TABLE, 2)
    assert (scaled.reference, scaled.remarks) == (1.0, ("Scaled by 2.",))
    assert scale_table(replace(_TABLE, metric="energy"), 2).reference == 0.5


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_factors_that_are_none_are_refused(factor):
    with pytest.raises(InvalidValueError, match="'factor' of a table must be a positive, finite number"):
        scale_table(_TABLE, factor)


@given(_COSTS, st.sets(st.sampled_from(_CHOICES), min_size=1, max_size=2), st.sampled_from(["choices", "layers"]))
def test_parts_merge_into_the_whole(costs, some, by):
    table = _table(costs)
    if by == "layers":
        some = {dict(zip(_CHOICES, "abc", strict=True))[name] for name in some}
    rest = {*(_CHOICES if by == "choices" else "abc")} - some
    merged = merge_tables([subset_table(table, **{by: some}), subset_table(table, **{by: rest})])
    assert merged.layers == table.layers


def test_a_part_keeps_the_space_and_fixed_layers():
    fixed = TableLayer("head", ("h",), {"h": Entry(1, 1, 1)}, searched=False, default="h")
    part = subset_table(replace(_TABLE, layers=(*_TABLE.layers, fixed)), layers=["b"], choices=["y"])
    assert [layer.choices for layer in part.layers] == [*[_CHOICES] * 3, ("h",)]
    assert [list(layer.entries) for layer in part.layers] == [[], ["y"], [], ["h"]]


@pytest.mark.parametrize("wanted", [{"layers": ["q"]}, {"choices": ["q"]}])
def test_parts_that_are_not_there_are_refused(wanted):
    with pytest.raises(UnknownNameError, match=r"Unknown .* 'q'. Available:"):
        subset_table(_TABLE, **wanted)


def test_a_part_without_entries_is_refused():
    with pytest.raises(InvalidValueError, match="No entry of the table is left"):
        subset_table(subset_table(_TABLE, choices=["x"]), choices=["y"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"platform": Platform("pixel")}, "two platforms .*pi.torch.* against pixel"),
        ({"space": SpaceReference("other")}, "fake against other"),
        ({"metric": "energy"}, "metric: latency against energy"),
        ({"input_shape": (8, 3)}, r"input_shape: \(1, 3\) against \(8, 3\)"),
        ({"layers": _TABLE.layers[:2]}, "other layers or candidates"),
    ],
)
def test_tables_of_something_else_do_not_merge(change, named):
    with pytest.raises(MismatchError, match=named):
        merge_tables([_TABLE, replace(_TABLE, **change)])


@pytest.mark.parametrize(("conflict", "expected"), [("first", 0.1), ("last", 0.3), ("mean", 0.2)])
def test_disagreement_is_settled_as_asked(conflict, expected):
    other = scale_table(_TABLE, 3)
    merged = merge_tables([_TABLE, other], conflict=conflict)
    assert merged["a"]["x"].value == pytest.approx(expected)
    assert f"9 disagreed: {conflict} counts" in merged.remarks[1]
    assert "200.0 % slower" in merged.remarks[-1]


def test_disagreement_names_both():
    with pytest.raises(InvalidValueError, match=r"about 9 entries: a:x: table 1 says 0.1, table 2 says 0.3"):
        merge_tables([_TABLE, scale_table(_TABLE, 3)])


def test_entries_of_another_calibration_are_levelled():
    first, second = subset_table(_TABLE, layers=["a"]), subset_table(_TABLE, layers=["b", "c"])
    merged = merge_tables([first, replace(second, calibration=2.2)])
    assert merged["b"]["x"].value == pytest.approx(2 * _TABLE["b"]["x"].value)


def test_one_table_is_not_merged():
    with pytest.raises(InvalidValueError, match="At least two tables"):
        merge_tables([_TABLE])


@given(_COSTS, st.floats(0.01, 100))
def test_a_scaled_table_compares_by_its_factor(costs, factor):
    found = compare_tables(_table(costs), scale_table(_table(costs), factor))
    assert found.ratio == pytest.approx(factor)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert len(set(costs)) < 9 or found.spearman == pytest.approx(1)


def _exact(table):
    return table.with_entries(lambda entry: replace(entry, low=entry.value, high=entry.value))


def test_agreement_of_a_comparison_leaves_out_the_median_ratio():
    table = _exact(_TABLE).with_entries(lambda entry: entry.with_error(0.01))
    entries = dict(table["a"].entries)
    entries["x"] = entries["x"].scaled(1.1)
    other = replace(table, layers=(replace(table["a"], entries=entries), *table.layers[1:]))
    assert compare_tables(table, scale_table(other, 2)).agreement == pytest.approx(8 / 9)
    assert compare_tables(table, scale_table(table, 2)).agreement == 1.0


def test_agreement_without_intervals_is_unknown():
    assert math.isnan(compare_tables(_exact(_TABLE), scale_table(_exact(_TABLE), 2)).agreement)


def test_a_comparison_names_what_one_alone_has():
    found = compare_tables(subset_table(_TABLE, choices=["x", "y"]), subset_table(_TABLE, choices=["y", "z"]))
    assert found.only_first == (("a", "x"), ("b", "x"), ("c", "x"))
    assert found.only_second == (("a", "z"), ("b", "z"), ("c", "z"))
    assert list(found.ratios["a"]) == ["y"]


def test_tables_of_two_platforms_compare_and_say_so():
    found = compare_tables(_TABLE, replace(_TABLE, platform=Platform("pixel"), input_shape=(8, 3)))
    assert found.differences == ("id: pi.torch.fp32.t1 against pixel.torch.fp32.t1", "input 1x3 against 8x3")


def test_tables_without_anything_in_common_do_not_compare():
    with pytest.raises(MismatchError, match="table of latency cannot be compared with one of energy"):
        compare_tables(_TABLE, replace(_TABLE, metric="energy"))
    other = LookupTable.from_latencies({"q": ["x"]}, {"q": {"x": 1}})
    with pytest.raises(MismatchError, match=r"no candidate in common: .* layers a, b, c, .* has q"):
        compare_tables(_TABLE, other)
