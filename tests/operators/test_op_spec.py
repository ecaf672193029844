# SPDX-License-Identifier: Apache-2.0
"""One operator, its attributes and its key."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, parse_op_keys

_names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
_values = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(),
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
    st.text(max_size=8),
)
_shapes = st.lists(st.lists(st.integers(1, 512), min_size=1, max_size=4), min_size=1, max_size=3)
specs = st.builds(
    lambda kind, shapes, dtype, attributes: OpSpec.of(kind, shapes, dtype=dtype, **attributes),
    _names,
    _shapes,
    st.sampled_from(["float32", "float16"]),
    st.dictionaries(_names.filter(lambda name: name not in ("kind", "dtype", "cls")), _values, max_size=4),
)
_OP = OpSpec.of("conv2d", [(1, 3, 32, 32)], out_channels=8, kernel_size=3, bias=False)


def test_of_sorts_attributes_and_makes_tuples():
    op = OpSpec.of("pool", [[1, 2]], stride=2, kernel_size=[3, 3])
    assert op.attributes == (("kernel_size", (3, 3)), ("stride", 2))
    assert op.input_shapes == ((1, 2),)


@pytest.mark.parametrize("attributes", [(("b", 1), ("a", 2)), (("a", 1), ("a", 2))])
def test_op_spec_refuses_unsorted_and_double_attributes(attributes):
    with pytest.raises(InvalidValueError, match=r"sorted by name, each once"):
        OpSpec("x", ((1,),), attributes)


def test_of_refuses_sizes_that_are_not_whole():
    with pytest.raises(InvalidValueError, match=r"sizes of 'pool' must be whole numbers\. Got \[\(1, 2\.5\)\]"):
        OpSpec.of("pool", [(1, 2.5)])
    assert OpSpec.of("pool", [(1, 2.0)]).input_shapes == ((1, 2),)


def test_op_spec_gives_its_attributes():
    assert _OP["out_channels"] == 8
    assert _OP.get("groups", 1) == 1
    with pytest.raises(KeyError, match=r"groups"):
        _OP["groups"]


def test_op_key_is_readable():
    assert _OP.op_key == "conv2d(bias=0,kernel_size=3,out_channels=8)@1x3x32x32:float32"


def test_op_key_is_the_same_in_another_process():
    code = (
        "from nni_latency.operators import OpSpec\n"
        "print(OpSpec.of('conv2d', [(1, 3, 32, 32)], out_channels=8, kernel_size=3, bias=False).op_key)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == _OP.op_key


@given(specs, specs)
def test_op_key_is_equal_exactly_for_equal_operators(one, other):
    assert (one.op_key == other.op_key) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": (3,)}, {"a": 3}),
        ({"a": (1, 2)}, {"a": "1x2"}),
        ({"a": "1"}, {"a": 1}),
        ({"a": "1,b=2"}, {"a": 1, "b": 2}),
        ({"a": "x", "b": "y"}, {"a": "x,b=y"}),
        ({"a": ""}, {"a": ()}),
    ],
)
def test_op_key_tells_values_apart_that_look_alike(one, other):
    assert OpSpec.of("x", [(1,)], **one).op_key != OpSpec.of("x", [(1,)], **other).op_key


@pytest.mark.parametrize(
    "key",
    [
        f"relu()@1x{'9' * 5000}:float32",
        f"relu()@1x{2**63}:float32",
        "relu()@1xx3:float32",
        f"linear(bias=0,out_features={'9' * 5000})@1x3:float32",
        f"linear(bias=0,out_features={'9' * 400})@1x3:float32",
        f"pool(kernel_size=[{'9' * 5000}])@1x3:float32",
        f"pool(kernel_size=3x{2**63})@1x3:float32",
        'pool(name="\\x")@1x3:float32',
    ],
)
def test_key_with_a_number_that_no_operator_has_is_refused(key):
    with pytest.raises(InvalidValueError, match="a number or a text that cannot be read"):
        parse_op_keys(key)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 3.4028234663852886e38, 1.5, -1e-30])
def test_numbers_of_a_key_are_read_as_they_were_written(value):
    op = OpSpec.of("clamp", [(1, 3)], max=value)
    assert parse_op_keys(op.op_key) == [op]


def test_numbers_that_are_no_floats_have_a_key():
    assert OpSpec.of("x", [(1,)], a=10**400).op_key == f"x(a={10**400})@1:float32"


def test_op_key_is_equal_for_numbers_that_are_equal():
    assert OpSpec.of("x", [(1,)], a=True).op_key == OpSpec.of("x", [(1,)], a=1).op_key
    assert OpSpec.of("x", [(1,)], a=2.0).op_key == OpSpec.of("x", [(1,)], a=2).op_key


@given(specs)
def test_op_spec_survives_json(op):
    stored = json.loads(json.dumps(op.as_dict(), allow_nan=False))
    attributes = stored.pop("attributes")
    assert OpSpec.of(**stored, **attributes) == op


@pytest.mark.parametrize(("value", "key"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")])
def test_numbers_that_json_lacks_are_kept(value, key):
    op = OpSpec.of("clamp", [(1, 3)], max=value)
    assert op.op_key == f"clamp(max={key})@1x3:float32"
    assert op.as_dict()["attributes"] == {"max": key}
    assert parse_op_keys(op.op_key) == [op] == [pickle.loads(pickle.dumps(op))]
    assert OpSpec.of("clamp", [(1, 3)], max=0).replace(max=value) == op


def test_replace_changes_one_attribute_and_nothing_else():
    changed = _OP.replace(out_channels=16)
    assert changed["out_channels"] == 16
    assert changed.replace(out_channels=8) == _OP


def test_op_spec_is_hashable():
    assert len({_OP, _OP.replace(out_channels=8), _OP.replace(out_channels=9)}) == 2
