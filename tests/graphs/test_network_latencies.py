# SPDX-License-Identifier: Apache-2.0
"""NNLQP's layout: what is written is read, and what is broken is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.graphs import NetworkLatency, read_nnlqp, write_nnlqp

_WORDS = st.text("abcXYZ019-_.", min_size=1, max_size=8).filter(lambda word: ".." not in word)

latencies = st.builds(
    NetworkLatency,
    _WORDS,
    _WORDS,
    st.integers(1, 64),
    st.floats(1e-6, 1e3),
    _WORDS,
    _WORDS,
    st.sampled_from(["", "train"]),
)


@given(network=latencies)
def test_a_line_is_read_as_it_was_written(network):
    found = NetworkLatency.parse(network.line)
    assert found.latency == pytest.approx(network.latency, rel=1e-5)
    assert found.line == network.line


@pytest.fixture
def folder(tmp_path):
    """Make a folder with two ONNX files."""
    (tmp_path / "onnx").mkdir()
    for name in ("a", "b"):
        (tmp_path / "onnx" / f"{name}.onnx").touch()
    return tmp_path


def _latency(name, **changes):
    given = {"batch_size": 1, "latency": 0.01, "family": "vgg", "platform": "10", **changes}
    return NetworkLatency(name, f"onnx/{name}.onnx", **given)


def test_a_data_set_goes_out_and_in(folder):
    networks = (_latency("a"), _latency("b", stage="test"), _latency("a", platform="11", latency=0.5))
    assert write_nnlqp(networks, folder).read_text().splitlines()[1] == "b onnx/b.onnx 1 10 vgg 10 test"
    assert read_nnlqp(folder) == networks


def test_all_broken_lines_are_named(folder):
    lines = [
        "a onnx/a.onnx 1 10 vgg 10",
        "b onnx/b.onnx 1",
        "",
        "c onnx/c.onnx 1 10 vgg 10",
        "b onnx/b.onnx 1 fast vgg 10",
    ]
    lines += ["b ../secret 1 5 vgg 10", "b onnx/b.onnx 1 -5 vgg 10", "a onnx/a.onnx 1 20 vgg 10"]
    (folder / "gt.txt").write_text("\n".join(lines))
    with pytest.raises(FileFormatError) as caught:
        read_nnlqp(folder)
    said = str(caught.value)
    for part in ("line 2: it must have six", "line 4: there is no file 'onnx/c.onnx'", "line 5: the batch size or the"):
        assert part in said
    for part in (
        "line 6: The 'onnx_path' must lie in",
        "line 7: The 'latency' must be",
        "line 8: 20 ms for network 'a'",
    ):
        assert part in said
    assert "line 1:" not in said
    assert "line 3:" not in said


def test_many_broken_lines_are_counted(folder):
    (folder / "gt.txt").write_text("broken\n" * 30)
    with pytest.raises(FileFormatError, match=r"line 10: .*; and 20 more\."):
        read_nnlqp(folder)


def test_an_absent_or_empty_file_is_named(folder):
    with pytest.raises(FileFormatError, match=r"Cannot read .*gt\.txt"):
        read_nnlqp(folder)
    (folder / "gt.txt").touch()
    with pytest.raises(FileFormatError, match="holds no network"):
        read_nnlqp(folder)


def test_nothing_is_written_without_its_networks(folder):
    with pytest.raises(InvalidValueError, match=r"lacks onnx/z\.onnx"):
        write_nnlqp([_latency("z")], folder)
    with pytest.raises(InvalidValueError, match="there is no network"):
        write_nnlqp([], folder)
    assert not (folder / "gt.txt").exists()
