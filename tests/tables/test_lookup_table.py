# SPDX-License-Identifier: Apache-2.0
"""Tables: by hand, saved and loaded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, OutputError, UnknownNameError
from nni_latency.measurement import Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import Entry, LookupTable, Residency, SpaceReference, TableLayer
from nni_latency.units import METRIC_UNITS

_SPACE = {"a": ["x", "y"], "b": ["x", "z"]}
_TABLE = LookupTable.from_latencies(_SPACE, {"a": {"x": 1.0, "y": 2.0}, "b": {"z": 3.0}})

# Names may be anything that a file can hold: quotes, line breaks, emoji, right-to-left text, nothing at all.
_names = st.text(max_size=12)
_costs = st.floats(1e-12, 1e12)
_ops = st.one_of(
    st.none(),
    st.builds(lambda n: OpSpec.of("relu", [(n, 8)]), st.integers(1, 99)),
    st.builds(
        lambda kernel, bias: OpSpec.of(
            "conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=kernel, stride=1, groups=1, bias=bias
        ),
        st.sampled_from([1, 3, (1, 7)]),
        st.booleans(),
    ),
)


@st.composite
def _entries(draw):
    low, value, high = sorted(draw(st.tuples(_costs, _costs, _costs)))
    return Entry(value, low, high, draw(st.integers(0, 999)), draw(st.integers(0, 9)), draw(_ops))


@st.composite
def _layers(draw, name):
    choices = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    measured = draw(st.lists(st.sampled_from(choices), unique=True))
    searched = draw(st.booleans())
    entries = {choice: draw(_entries()) for choice in measured}
    failures = {choice: draw(_names) for choice in choices if choice not in measured and draw(st.booleans())}
    return TableLayer(name, tuple(choices), entries, searched, None if searched else choices[0], failures)


@st.composite
def _tables(draw):
    names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    scalars = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _names
    )
    facts = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _names)
    return LookupTable(
        space=SpaceReference(draw(_names), draw(st.dictionaries(_names, scalars, max_size=3))),
        platform=Platform(
            "pi", "torch", threads=draw(st.integers(1, 64)), facts=draw(st.dictionaries(_names, facts, max_size=3))
        ),
        layers=tuple(draw(_layers(name)) for name in names),
        input_shape=tuple(draw(st.lists(st.integers(1, 999), min_size=1, max_size=4))),
        metric=draw(st.sampled_from(list(METRIC_UNITS))),
        protocol=draw(st.one_of(st.none(), st.builds(Protocol, n_run=st.integers(1, 99), outlier=st.floats(0, 0.4)))),
        calibration=draw(_costs),
        rounds=draw(st.integers(0, 9999)),
        duration=draw(st.floats(0, 1e6)),
        residency=draw(st.one_of(st.none(), st.builds(Residency, st.floats(0, 0.99), _costs))),
        reference=draw(st.one_of(st.none(), _costs)),
        drift=tuple(draw(st.lists(_costs, max_size=3))),
        conditions={"before": draw(st.dictionaries(_names, facts, max_size=2))},
        remarks=tuple(draw(st.lists(_names, max_size=2))),
    )


@given(_tables())
def test_what_is_saved_is_loaded(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("tables") / "t.json"
    loaded = LookupTable.load(table.save(path))
    assert loaded == table
    assert dict(loaded.platform.facts) == dict(table.platform.facts)
    assert [dict(layer.failures) for layer in loaded.layers] == [dict(layer.failures) for layer in table.layers]
    assert [list(layer.entries) for layer in loaded.layers] == [list(layer.entries) for layer in table.layers]


@given(_tables())
def test_saving_again_gives_the_same_file(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("tables")
    one, other = table.save(folder / "one.json"), LookupTable.load(folder / "one.json").save(folder / "other.json")
    assert one.read_bytes() == other.read_bytes()


def test_saved_table_has_a_line_for_every_layer(tmp_path):
    lines = _TABLE.save(tmp_path / "t.json").read_text().splitlines()
    assert sum('"value": ' in line for line in lines) == len(_TABLE.layers)


def test_save_reports_a_folder_that_takes_no_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write"):
        _TABLE.save(tmp_path / "file" / "t.json")


def test_coverage_and_missing_tell_what_has_no_cost():
    assert _TABLE.coverage == 0.75
    assert _TABLE.missing == (("b", "x"),)


def test_from_latencies_keeps_the_numbers():
    entry = _TABLE["b"]["z"]
    assert (entry.value, entry.low, entry.high, entry.n_samples, entry.op) == (3.0, 3.0, 3.0, 0, None)


def test_from_latencies_takes_platform_metric_and_batch_size():
    table = LookupTable.from_latencies(_SPACE, {}, platform=Platform("pi"), metric="energy", batch_size=8)
    assert (table.platform.device, table.metric, table.batch_size, table.coverage) == ("pi", "energy", 8, 0.0)


def test_from_latencies_takes_a_model_space():
    space = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25)
    table = LookupTable.from_latencies(space, {"layer0": {"skip": 1e-3}})
    assert table.space == space.reference
    assert table["layer0"].choices == CANDIDATES
    assert table["layer0"]["skip"].op == space.measure_plan().layers[1].candidates["skip"].op


def test_from_latencies_takes_choices_that_are_numbers():
    table = LookupTable.from_latencies({"width": [16, 32]}, {"width": {16: 1.0, 32: 2.0}})
    assert table["width"]["32"].value == 2.0


def test_from_latencies_names_a_layer_that_is_not_there():
    with pytest.raises(UnknownNameError, match=r"Unknown layer 'c'\. Available: a, b\."):
        LookupTable.from_latencies(_SPACE, {"c": {"x": 1.0}})


def test_from_latencies_names_a_choice_that_is_not_there():
    with pytest.raises(UnknownNameError, match=r"Unknown choice of 'a' 'z'\. Available: x, y\."):
        LookupTable.from_latencies(_SPACE, {"a": {"z": 1.0}})


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf, "fast", None])
def test_from_latencies_refuses_what_is_no_cost(cost):
    with pytest.raises(InvalidValueError, match=rf"The cost of 'a', choice 'x' must be .*Got {cost!r}\."):
        LookupTable.from_latencies(_SPACE, {"a": {"x": cost}})


@pytest.mark.parametrize("metric", ["latency", "energy", "throughput"])
def test_from_latencies_refuses_a_cost_of_zero(metric):
    with pytest.raises(InvalidValueError, match=rf"The {metric} of 'a': x must be positive\. Got 0\."):
        LookupTable.from_latencies(_SPACE, {"a": {"x": 0}}, metric=metric)


def test_from_latencies_takes_a_count_of_no_bytes():
    table = LookupTable.from_latencies(_SPACE, {"a": {"x": 0}}, metric="parameter_memory")
    assert table["a"]["x"].value == 0


def test_from_latencies_refuses_a_space_without_choices():
    with pytest.raises(InvalidValueError, match=r"has no choices: there is nothing to search"):
        LookupTable.from_latencies({}, {})


def test_from_latencies_refuses_what_is_no_space():
    with pytest.raises(InvalidValueError, match=r"must be an NNI model space or a mapping.*Got int"):
        LookupTable.from_latencies(7, {})


def test_table_refuses_a_layer_twice():
    layer = _TABLE.layers[0]
    with pytest.raises(
        InvalidValueError, match=r"layers of different names, at least one, or operators\. Got .*\['a', 'a'\]"
    ):
        LookupTable(space=_TABLE.space, platform=_TABLE.platform, layers=(layer, layer), input_shape=(1,))


@pytest.mark.parametrize("calibration", [0.0, -1.0, math.nan, math.inf])
def test_table_refuses_a_calibration_that_is_no_factor(calibration):
    with pytest.raises(InvalidValueError, match=r"'calibration' of a table must be positive"):
        LookupTable(
            space=_TABLE.space,
            platform=_TABLE.platform,
            layers=_TABLE.layers,
            input_shape=(1,),
            calibration=calibration,
        )


def test_table_is_iterated_by_the_names_of_layers():
    assert list(_TABLE) == ["a", "b"]
    assert {layer: list(_TABLE[layer]) for layer in _TABLE} == {"a": ["x", "y"], "b": ["z"]}


def test_layer_and_entry_list_what_there_is():
    with pytest.raises(UnknownNameError, match=r"Unknown layer 'c'\. Available: a, b\."):
        _TABLE["c"]
    with pytest.raises(UnknownNameError, match=r"Unknown entry of 'b' 'x'\. Available: z\."):
        _TABLE["b"]["x"]
