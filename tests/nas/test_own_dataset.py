# SPDX-License-Identifier: Apache-2.0
"""Data sets that a user brings: a file of arrays, or what a function returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nni_latency.errors import InvalidValueError
from nni_latency.nas import load_dataset

LABELS = np.arange(10) % 3

_FUNCTIONS = """
import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

images, labels = np.zeros((10, 8, 8)), np.arange(10) % 3

def arrays(): return images, labels
def tensors(): return torch.zeros(10, 2, 8, 8), torch.arange(10) % 3
def both(): return images, labels, images[:5], labels[:5]
def dataset(): return TensorDataset(torch.zeros(10, 1, 8, 8), torch.arange(10) % 3)
def datasets(): return dataset(), TensorDataset(torch.zeros(5, 1, 8, 8), torch.arange(5) % 3)
def fails(): raise RuntimeError("no disk\\nmore")
def ends(): raise SystemExit(3)
def number(): return 3
def texts(): return [("a", 1)] * 10
def rows(): return np.zeros((10, 64)), labels
def sizes(): return Subset([(torch.zeros(1, size, 8), size % 3) for size in range(8, 18)], range(10))
def one(): return images[:1], labels[:1], images, labels
"""


@pytest.fixture
def saved(tmp_path):
    """Save arrays; return the name of the data set."""

    def save(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return str(tmp_path / "own.npz")

    return save


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "made.py").write_text(_FUNCTIONS)
    return tmp_path / "made.py"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((10, 8, 9), (1, 8, 9)),
        ((10, 1, 8, 8), (1, 8, 8)),
        ((10, 2, 8, 8), (2, 8, 8)),
        ((10, 8, 8, 3), (3, 8, 8)),
    ],
)
def test_arrays_may_have_any_channels_and_size(saved, shape, expected):
    dataset = load_dataset(saved(images=np.random.default_rng(0).random(shape), labels=LABELS))
    assert dataset.image_shape == expected
    assert dataset.input_size == expected[-1]
    assert dataset.num_classes == 3
    assert (len(dataset.train), len(dataset.valid)) == (8, 2)


def test_whole_numbers_are_normalised_and_others_are_kept(saved):
    images = np.random.default_rng(0).integers(0, 255, (10, 8, 8), dtype=np.uint8)
    bytes_, numbers = (
        torch.stack([dataset[index][0] for index in range(8)])
        for dataset in (
            load_dataset(saved(x=images, y=LABELS)).train,
            load_dataset(saved(x=images / 1, y=LABELS)).train,
        )
    )
    assert abs(float(bytes_.mean())) < 0.5 < float(bytes_.std()) < 1.5
    assert float(numbers.max()) > 100


def test_pictures_of_one_channel_serve_networks_of_three(saved):
    dataset = load_dataset(saved(images=np.random.default_rng(0).random((10, 8, 8)), labels=LABELS))
    wide = dataset.with_channels(3)
    assert wide.image_shape == (3, 8, 8)
    assert torch.equal(wide.valid[0][0][2], dataset.valid[0][0][0])
    assert dataset.with_channels(1) is dataset


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"pictures": np.zeros(3)}, r"must hold the arrays 'images' and 'labels', or 'x' and 'y'\. It has: pictures"),
        ({"x": np.zeros((10, 64)), "y": LABELS}, r"must be an array \(n, height, width\).*Got the shape \(10, 64\)"),
        ({"x": np.zeros((10, 8, 8)), "y": LABELS[:9]}, r"must be 10 whole numbers from 0.*Got \(9,\) of int64"),
        ({"x": np.zeros((10, 8, 8)), "y": LABELS / 2}, "must be 10 whole numbers from 0"),
        ({"x": np.zeros((10, 8, 8)), "y": LABELS - 1}, "must be 10 whole numbers from 0.*from -1"),
        ({"x": np.zeros((10, 8, 8)), "y": LABELS * 10**9}, r"numbered from 0\. Got 2000000000 among 10 images"),
        ({"x": np.full((10, 8, 8), np.nan), "y": LABELS}, "must be finite numbers"),
        ({"x": np.array(["a"] * 10), "y": LABELS}, "must hold numbers"),
        ({"x": np.array([{}] * 10), "y": LABELS}, "cannot be read: .*allow_pickle=False"),
        ({"x": np.zeros((4, 8, 8)), "y": LABELS[:4]}, "at least 5 images to be split. Got 4"),
    ],
)
def test_arrays_of_another_form_are_refused(saved, arrays, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        load_dataset(saved(**arrays))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 rubbish", b"\x80\x04pickle"])
def test_file_that_is_no_archive_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"own\.npz' cannot be read"):
        load_dataset(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    ("name", "sizes", "channels"),
    [
        ("arrays", (8, 2), 1),
        ("tensors", (8, 2), 2),
        ("both", (10, 5), 1),
        ("dataset", (8, 2), 1),
        ("datasets", (10, 5), 1),
    ],
)
def test_function_returns_arrays_or_data_sets(functions, name, sizes, channels):
    dataset = load_dataset(f"{functions}:{name}")
    assert (len(dataset.train), len(dataset.valid)) == sizes
    assert dataset.image_shape == (channels, 8, 8)
    assert dataset.num_classes == 3


def test_function_of_a_module_is_found(functions, monkeypatch):
    monkeypatch.chdir(functions.parent)
    monkeypatch.setattr("sys.path", [])
    functions.rename(functions.with_name("made_in_a_module.py"))
    assert load_dataset("made_in_a_module:arrays").num_classes == 3


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("fails", r"cannot be made: RuntimeError: no disk\.$"),
        ("ends", "cannot be made: SystemExit: 3"),
        ("nothing", "cannot be made: AttributeError"),
        ("number", "must be images and labels as arrays.*Got int"),
        ("texts", "Got tuple, tuple"),
        ("rows", r"Got the shape \(10, 64\)"),
    ],
)
def test_function_that_returns_no_pictures_is_refused(functions, name, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        load_dataset(f"{functions}:{name}")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("no_such.py:f", r"^There is no file 'no_such\.py'\.$"), ("no_such_module:f", "ModuleNotFoundError")],
)
def test_function_that_is_not_there_is_named(name, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        load_dataset(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("sizes", r"must all have the same shape\. Got \(1, \d+, 8\), \(1, \d+, 8\)\.$"),
        ("one", r"needs at least 2 images to learn from\.$"),
    ],
)
def test_images_that_make_no_batch_are_refused(functions, name, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        load_dataset(f"{functions}:{name}").few(2)
