# SPDX-License-Identifier: Apache-2.0
"""Kinds of files: what is said of one that cannot be read, and parts that several have."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt

from nni_latency.documents import (
    DocumentFormat,
    NamedPlatformDocument,
    OperatorDocument,
    PlatformDocument,
    SavedFile,
    StrictDocument,
    render,
)
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform


class LetterDocument(StrictDocument):
    """What the tests read and write."""

    format: Literal["nni_latency.letter"]
    version: Literal[1]
    pages: list[PositiveInt] = Field(default_factory=list)


LETTER = DocumentFormat(
    "nni_latency.letter",
    1,
    "letter",
    "a letter of ours",
    "write one",
    model=LetterDocument,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "letter.json"


def _write(path, **content):
    path.write_text(json.dumps({**LETTER.head, **content}))
    return path


def _pages(path):
    return LETTER.load(path, lambda letter: letter.pages)


def test_document_is_read(path):
    assert _pages(_write(path, pages=[1, 2])) == [1, 2]


def test_what_is_saved_is_read(path):
    assert _pages(LETTER.save(path, {}, {"pages": ["1", "2"]})) == [1, 2]
    assert json.loads(path.read_text()) == {"format": "nni_latency.letter", "version": 1, "pages": [1, 2]}


def test_fault_of_a_value_that_something_is_made_of_is_one_of_the_file(path):
    with pytest.raises(FileFormatError, match=r"^The letter '.*letter\.json' is not valid: .*out of range"):
        LETTER.load(_write(path), lambda letter: letter.pages[0])


def test_other_version_says_what_to_do(path):
    with pytest.raises(
        FileFormatError,
        match=r"^The letter '.*\.json' has version 2, this .* up to 1\. It was .*write one$",
    ):
        LETTER.read(_write(path, version=2))


@pytest.mark.parametrize("content", ["[]", "{}", "3", "null", '"text"', '{"format": "pyperf"}', '{"version": 1}'])
def test_document_of_another_kind_is_named_with_the_remedy(path, content):
    path.write_text(content)
    with pytest.raises(
        FileFormatError,
        match=r"' is not a letter of ours: its format must be 'nni_latency\.letter'\. Got .*, or write one$",
    ):
        LETTER.read(path)


@given(share=st.floats(0, 0.99))
def test_document_cut_at_any_byte_says_so(tmp_path_factory, share):
    path = _write(tmp_path_factory.mktemp("cut") / "letter.json", pages=[1, 2, 3])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(FileFormatError, match=r"is not whole JSON \(line 1: .*cut off while it was.*write one$"):
        LETTER.read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x04\x95\xff", r"Cannot read the letter '.*letter\.json': it is not text\.$"),
        (b"[" * 100_000, r"The letter '.*letter\.json' is not JSON that can be read: "),
        (b"9" * 10_000, r"The letter '.*letter\.json' is not JSON that can be read: "),
    ],
)
def test_document_that_can_not_be_read_says_why(path, content, reason):
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=reason):
        LETTER.read(path)


def test_absent_document_and_folder_say_so(path):
    with pytest.raises(FileFormatError, match=r"Cannot read the letter '.*letter\.json': No such file"):
        LETTER.read(path)
    with pytest.raises(FileFormatError, match=r"Cannot read the letter .*: Is a directory"):
        LETTER.read(path.parent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pages": [1, 0, -1]}, r"pages\.1 must be greater than 0\. Got '0' \(and 1 more\)\.$"),
        ({"pages": [1.5]}, r"pages\.0 must be a whole number\. Got '1\.5'\.$"),
        ({"pages": "x" * 999}, r"pages must be a list\. Got 'x{60}'\.$"),
        ({"version": 0}, r"version must be 1\. Got '0'\.$"),
        ({"version": "1"}, r"version must be 1\. Got '1'\.$"),
        ({"extra": 1}, r"extra is not a field of such a file\.$"),
    ],
)
def test_first_fault_is_named_with_its_place_and_value(path, change, words):
    with pytest.raises(FileFormatError, match=r"^The letter '.*letter\.json' is not valid: " + words):
        _pages(_write(path, **change))


@pytest.mark.parametrize("error", [InvalidValueError("odd"), TypeError("odd"), KeyError("odd"), OverflowError("odd")])
def test_value_that_can_not_be_is_a_fault_of_the_file(error):
    with pytest.raises(FileFormatError, match=r"^The letter 'a\.json' is not valid: .*odd"), LETTER.valid("a.json"):
        raise error


def test_interruption_passes():
    with pytest.raises(KeyboardInterrupt), LETTER.valid("a.json"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"format": "nni_latency.letter", "x": 1}', "nni_latency.letter"),
        ('{"x": 1,\n "format"\t:  "nni_latency.letter"', "nni_latency.letter"),
        ('{"format": "pyperf"}', ""),
        ("", ""),
    ],
)
def test_format_is_found_wherever_it_stands(path, text, name):
    path.write_text(text)
    assert SavedFile(path).kind == name


def test_file_that_can_not_be_read_has_no_format(path):
    assert SavedFile(path).kind == ""
    assert SavedFile(path.parent).kind == ""


@given(
    fields=st.dictionaries(st.sampled_from("abc"), st.integers() | st.text() | st.lists(st.floats(0, 1))),
    lists=st.dictionaries(st.sampled_from("xyz"), st.lists(st.integers() | st.text())),
)
def test_rendered_document_is_read_back(fields, lists):
    text = render(fields, {name: map(json.dumps, items) for name, items in lists.items()})
    if fields or lists:
        assert json.loads(text) == {**fields, **lists}


def test_rendered_numbers_are_finite():
    with pytest.raises(ValueError, match="not JSON compliant"):
        render({"a": float("nan")})


def test_platform_survives_its_document():
    platform = Platform("pi-4", "torch", "bf16", 3, {"os": "linux", "memory": 4.5})
    assert PlatformDocument.model_validate(platform.as_dict()).to_platform() == platform
    named = NamedPlatformDocument.model_validate({"id": platform.id, **platform.as_dict()})
    assert named.to_platform() == platform


def test_operator_survives_its_document():
    op = OpSpec.of("conv2d", [(1, 3, 8, 0)], dtype="bfloat16", kernel_size=(3, 1), bias=True, mode="same", slope=0.5)
    content = json.loads(json.dumps(op.as_dict()))
    assert OperatorDocument.model_validate(content).to_op() == op
