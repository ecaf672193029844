# SPDX-License-Identifier: Apache-2.0
"""Files that are cut, altered or hostile: one sentence, and nothing is executed."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError
from nni_latency.spaces import FBNetSpace
from nni_latency.tables.formats import FORMATS, export_table, import_table, read_plain_pickle

TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}


class _Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def _npy(body, kind="|O", shape="(1,)"):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


@pytest.fixture
def refused(tmp_path):
    """Import a file that must be refused; return the sentence."""

    def check(content, **options):
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises((FileFormatError, InvalidValueError)) as caught:
            import_table(path, **{"unit": "ms", **options})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return check


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_npy_runs_nothing(tmp_path, refused, protocol):
    mark = tmp_path / "mark"
    layers = np.array([{"skip": 1.0, "evil": _Evil(f"touch {mark}")}], dtype=object)
    if protocol == 4:
        file = io.BytesIO()
        np.save(file, layers, allow_pickle=True)
        content = file.getvalue()
    else:
        content = _npy(pickle.dumps(layers, protocol=protocol))
    sentence = refused(content)
    assert "nothing was executed" in sentence
    assert "posix.system" in sentence or "instruction" in sentence
    assert not mark.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n(tR.",
        b"(ios\nsystem\nS'true'\n.",
        b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01u\x82\x01.",
        b"cnumpy\nndarray\n)\x81.",
        b"Pid\n.",
    ],
)
def test_every_way_to_call_something_is_refused(refused, body):
    assert "nothing was executed" in refused(_npy(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b".",
        b"]",
        b"K\x01K\x02.",
        b"]q\x00h\x00a.",
        b"h\x07.",
        b"r\xff\xff\xff\xff.",
        b"(((.",
        b"}(K\x01u.",
        b"cnumpy\ndtype\n(]tR.",
        b"cnumpy.core.multiarray\nscalar\n(NNtR.",
        b"cnumpy\nndarray\n(tR.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"]" * 5000 + b"a" * 4999 + b".",
    ],
)
def test_pickles_that_make_no_table_are_refused(refused, body):
    assert "file" in refused(_npy(body))


#: Instructions of a pickle, of which many random sequences are a program.
_INSTRUCTIONS = [
    *(b"N", b"\x88", b"K\x07", b"G?\xf8\0\0\0\0\0\0", b"X\1\0\0\0a", b"C\1a", b"]", b"}", b")", b"(", b"a", b"e"),
    *(b"s", b"u", b"t", b"l", b"d", b"\x85", b"\x86", b"\x87", b"q\0", b"h\0", b"\x94", b"R", b"b"),
    *(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"ccollections\nOrderedDict\n"),
    *(b"cnumpy.core.multiarray\nscalar\n", b"cnumpy.core.multiarray\n_reconstruct\n"),
]


def _is_plain(value, depth=30):
    if depth and isinstance(value, (list, tuple)):
        return all(_is_plain(item, depth - 1) for item in value)
    if depth and isinstance(value, dict):
        return _is_plain([*value, *value.values()], depth - 1)
    if depth and type(value).__name__ == "PlainArray":
        return _is_plain(value.items, depth - 1)
    return value is None or type(value) in (bool, int, float, str, bytes)


@given(st.binary(max_size=60) | st.lists(st.sampled_from(_INSTRUCTIONS), max_size=14).map(b"".join))
@example(b"cnumpy\ndtype\n")
@example(b"((t")
@example(b"]q\x00h\x00a")
@example(b"}q\x00K\x01h\x00s")
def test_no_pickle_does_anything_but_fail_or_give_plain_values(body):
    with contextlib.suppress(FileFormatError):
        assert _is_plain(read_plain_pickle(body + b"."))


def test_values_that_stand_in_many_places_are_looked_at_once():
    body = b"]q\x00K\x01a" + b"".join(b"(" + bytes([104, n]) * 40 + b"lq" + bytes([n + 1]) for n in range(18)) + b"."
    begin = time.monotonic()
    assert len(read_plain_pickle(body)) == 40
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_are_read_as_python_reads_them(protocol):
    value = [{"skip": 1.5, "k3": 2}, {"a": None, "b": True, "c": (1, 2, 3, 4), "d": 10**20}, []]
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numbers_of_numpy_are_read(protocol):
    value = [np.float64(1.25), np.float32(0.5), np.int64(-3)]
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol)) == [1.25, 0.5, -3]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x93NUMPY\x01\x00", "header"),
        (b"\x93NUMPY\x09\x00\x10\x00", "header"),
        (_npy(b"\0" * 8, "<f8", "(1000000000, 1000000000)"), "whole"),
        (_npy(b"\0" * 8, "<f8", "(1,)"), "layers by candidates"),
        (_npy(b"", "[('a', 'O')]"), "header"),
    ],
)
def test_arrays_that_are_cut_or_of_another_form_are_refused(refused, content, complaint):
    assert complaint in refused(content)


def test_yaml_runs_nothing(tmp_path, refused):
    mark = tmp_path / "mark"
    sentence = refused(f"a-input:1-output:1: !!python/object/apply:os.system ['touch {mark}']\n")
    assert "YAML tags" in sentence
    assert "nothing was executed" in sentence
    assert not mark.exists()


def test_yaml_aliases_do_not_explode(refused):
    bomb = "a-input:1-output:1: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    begin = time.monotonic()
    assert "YAML aliases (*a) are not read" in refused(bomb)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a-input:1-output:1: " + "[" * 50 + "]" * 50, "nested more than 12 deep"),
        ("a-input:1-output:1: 1\n---\nb: 2\n", "more than one document"),
        ("a-input:1-output:1: [1\n", "not whole YAML (line"),
        ("a-input:1-output:1:\n  mean: 1\na-input:1-output:1:\n  mean: 2\n", "stands twice and disagrees: 1 against 2"),
        ("? [1, 2]\n: a-input:1-output:1\n", "a key must be text"),
        ("a-input:1-output:1: 1:30\n", "cannot be read"),
    ],
)
def test_yaml_that_is_no_table_is_refused(refused, content, complaint):
    assert complaint in refused(content)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"Conv-input:8x8x3-output:8x8x4": {"mean": 1', "not whole JSON (line 1"),
        (
            '{"Conv-input:8x8x3-output:8x8x4": {"mean": 1}, "Conv-input:8x8x3-output:8x8x4": {"mean": 2}}',
            "the key 'Conv-input:8x8x3-output:8x8x4' stands twice and disagrees: 1 against 2",
        ),
        ('{"Conv-input:8x8x3-output:8x8x4": {"median": 1}}', "must be a number, or mean, std and count"),
        ('{"Conv-input:8x8x3-output:8x8x4": {"mean": "x"}}', "a cost must be a number. Got 'x'"),
        ('{"Conv-input:8x8x3-output:8x8x4": {"mean": true}}', "a cost must be a number. Got 'True'"),
        ('{"Conv-input:8x8x3-output:8x8x4": {"mean": 1, "count": 1.5}}', "'count' must be a whole number"),
        ('{"Conv-input:8x8x3-output:8x8x4": {"mean": 1, "std": -1}}', "'std' must be a number >= 0. Got -1"),
        ('{"x": "-input:-output:"}', "holds no costs"),
        ("[" * 100000, "JSON"),
        ("[[1, 2], 3]", "must be a list by layer"),
        ("[null, null]", "every layer is null"),
        ("[[1e99999999999999999999]]", "a number without end"),
        ("a b\n1 2\n3\n", "line 3 must hold 2 numbers, as the first line does. Got 1"),
        ("a a\n1 2\n", "names a candidate twice: a"),
        ("layer,choice,latency_ms\na,x\n", "line 2 must have 3 cells"),
        ('layer,choice,latency_ms\na,x,"1\n', "not whole CSV"),
        ("layer,choice,speed\na,x,1\n", "the column 'speed' is not known"),
        ("layer,choice,n_samples\na,x,1\n", "must name the column of costs"),
        ("layer,choice,latency_ms,low_us\na,x,1,1\n", "all in one unit"),
        ("layer,choice,latency_us\na,x,1\n", "The file says that its unit is 'us', asked is 'ms'"),
        ("layer,choice,latency_ms,n_samples\na,x,1,-4\n", "'n_samples' must be a whole number"),
        ("layer,choice,latency_ms,low_ms\na,x,1,5\n", "line 2: The interval of Entry must enclose"),
        ("layer,choice,latency_ms\na,x,1\na,x,2\n", "disagree: line 2 says 1, line 3 says 2"),
        ("{'op_name': 'a', 'op_data_shape': (1, 1, 1, 1, 1), 'op_dty", "line 1 is no dictionary"),
        ("{'op_name': __import__('os').system('true'), 'op_data_shape': 1}", "no dictionary of plain values"),
        ("{'op_name': 'a', 'op_data_shape': (1, 1)}", "must be a dictionary of op_name, op_data_shape"),
        (b"\xff\xfelayer", "looks like none"),
        (b"layer,choice,latency_ms\n\xff,x,1\n", "not text in UTF-8"),
        ("   \n", "is empty"),
    ],
)
def test_files_that_are_no_table_are_refused(refused, content, complaint):
    assert complaint in refused(content)


def test_a_file_that_is_absent_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(FileFormatError, match="Cannot read"):
            import_table(path, unit="ms")


def test_enormous_files_are_refused(tmp_path):
    with (tmp_path / "t.json").open("wb") as file:
        file.write(b"[")
        file.truncate(33 * 2**20)
    with pytest.raises(FileFormatError, match="larger than 32 MiB"):
        import_table(tmp_path / "t.json", unit="ms")


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory):
    """Export one table in every format; return the bytes by name."""
    folder = tmp_path_factory.mktemp("whole")
    plan = FBNetSpace(**TINY).measure_plan()
    rows = "\n".join(["layer,choice,latency_ms", *(f"layer{n},k3_e3,{n + 1}.5" for n in range(7))])
    (folder / "t.csv").write_text(rows + "\n")
    table = import_table(folder / "t.csv", plan, check_unit=False).table
    for name in FORMATS:
        export_table(table, name, unit="ms", out=folder / name)
    return {name: (folder / name).read_bytes() for name in FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_cut_anywhere_is_read_or_refused_and_never_crashes(tmp_path_factory, whole_files, name):
    data, path = whole_files[name], tmp_path_factory.mktemp("cut") / "file"

    @given(st.integers(0, len(data)), st.binary(max_size=3))
    def check(length, rest):
        path.write_bytes(data[:length] + rest)
        try:
            import_table(path, file_format=name, unit="ms")
        except LatencyError as error:
            assert "\n" not in str(error)

    check()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("1,0,2", "a:y = 0 (line 3)"),
        ("1,-4,2", "a:y = -4 (line 3)"),
        ("1,nan,2", "a:y = NaN (line 3)"),
        ("1,snan,2", "a:y = NaN (line 3)"),
        ("1,inf,2", "a:y = Infinity (line 3)"),
        ("1,1e400,2", "a:y = 1E+400 (line 3)"),
    ],
)
def test_costs_that_are_no_positive_numbers_are_named(tmp_path, values, named):
    lines = [f"a,{choice},{value}" for choice, value in zip("xyz", values.split(","), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["layer,choice,latency_ms", *lines]))
    with pytest.raises(InvalidValueError) as caught:
        import_table(tmp_path / "t.csv")
    assert named in str(caught.value)
    done = import_table(tmp_path / "t.csv", invalid="leave-out")
    assert done.left_out == (named,)
    assert done.table.missing == (("a", "y"),)


def test_counts_of_bytes_may_be_zero(tmp_path):
    (tmp_path / "t.csv").write_text("layer,choice,value\na,x,0\n")
    table = import_table(tmp_path / "t.csv", unit="kB", metric="parameter_memory").table
    assert table["a"]["x"].value == 0


def test_layers_may_cost_no_bytes(tmp_path):
    (tmp_path / "t.csv").write_text("layer,choice,value\na,x,0\nb,x,1\nc,x,2\nd,x,3\n")
    table = import_table(tmp_path / "t.csv", unit="kB", metric="parameter_memory").table
    assert [table[layer]["x"].value for layer in table] == [0, 1000, 2000, 3000]


def test_the_unit_must_be_given_where_the_file_does_not_say_it(refused):
    sentence = refused("x y\n1 2\n", unit=None)
    assert "The format 'text' does not say its unit" in sentence
    assert "are in us" in sentence


@pytest.mark.parametrize(("unit", "plausible"), [("s", False), ("ms", True), ("us", False)])
def test_a_unit_that_means_an_impossible_device_is_said_to_be_so(tmp_path, unit, plausible):
    keys = [
        f"expanded_conv-input:56x56x32-output:56x56x32-expand:{n * 32}-kernel:5-stride:1-idskip:1" for n in (3, 4, 6)
    ]
    (tmp_path / "t.json").write_text("{" + ", ".join(f'"{key}": {5 + n}' for n, key in enumerate(keys)) + "}")
    if plausible:
        assert import_table(tmp_path / "t.json", unit=unit).table.coverage == 1
        return
    with pytest.raises(
        InvalidValueError, match=f"cannot be in {unit}: they mean .* They would be plausible in ms, 1,000 times"
    ):
        import_table(tmp_path / "t.json", unit=unit)
    assert import_table(tmp_path / "t.json", unit=unit, check_unit=False).table.coverage == 1


def test_one_layer_in_another_unit_is_named(tmp_path):
    lines = [f"layer{n},x,{2000 if n == 2 else 2}" for n in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["layer,choice,latency_ms", *lines]))
    with pytest.raises(InvalidValueError, match="layer2 is 1000 times above the others"):
        import_table(tmp_path / "t.csv")


def test_a_table_of_another_depth_is_refused(tmp_path):
    (tmp_path / "t.json").write_text("[[1, 2], [3, 4]]")
    with pytest.raises(FileFormatError, match="has 2 layers of costs, the space searches 7"):
        import_table(tmp_path / "t.json", FBNetSpace(**TINY).measure_plan(), unit="ms")


def test_a_table_of_another_space_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("layer,choice,latency_ms\nconv1,3x3,1\n")
    with pytest.raises(InvalidValueError, match=r"No row of the file belongs to fbnet.*The first is line 2"):
        import_table(tmp_path / "t.csv", FBNetSpace(**TINY).measure_plan())
