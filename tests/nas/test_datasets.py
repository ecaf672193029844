# SPDX-License-Identifier: Apache-2.0
"""Data sets by name."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from nni_latency.errors import InvalidValueError, MissingDependencyError, UnknownNameError
from nni_latency.nas import load_dataset

with_vision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
without_vision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is there")


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def _all(subset):
    return torch.stack([picture for picture, _ in subset])


def test_digits_are_pictures_in_three_colours(digits):
    picture, label = digits.train[0]
    assert picture.shape == (3, digits.input_size, digits.input_size) == (3, 32, 32)
    assert 0 <= int(label) < digits.num_classes == 10


def test_digits_are_split_without_overlap(digits):
    learned, judged = set(digits.train.indices), set(digits.valid.indices)
    assert not learned & judged
    assert learned | judged == set(range(1797))
    assert len(judged) == 359


def test_digits_hold_every_class_on_both_sides(digits):
    for part in (digits.train, digits.valid):
        assert {int(label) for _, label in part} == set(range(10))


def test_digits_are_normalised(digits):
    pictures = torch.cat([_all(digits.train), _all(digits.valid)])
    assert float(pictures.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(pictures.std()) == pytest.approx(1.0, abs=1e-3)


def test_digits_are_split_by_the_seed(digits):
    assert load_dataset("digits").valid.indices == digits.valid.indices
    assert load_dataset("digits", seed=1).valid.indices != digits.valid.indices


@pytest.mark.parametrize("name", ["mnist", "folder", "folder:", "digits:mine"])
def test_unknown_dataset_lists_what_there_is(name):
    with pytest.raises(UnknownNameError, match=rf"Unknown data set '{name}'\. Available: digits, cifar10, folder:PATH"):
        load_dataset(name)


@without_vision
@pytest.mark.parametrize("name", ["cifar10", "cifar10:kept", "folder:pictures"])
def test_dataset_says_that_torchvision_is_needed(name):
    with pytest.raises(MissingDependencyError, match=r"needs the package 'torchvision'.*Install it with: pip install"):
        load_dataset(name)


@with_vision
def test_folder_loads_one_class_a_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for index in range(5):
            image.new("RGB", (20, 10), (index * 20, 0, 0)).save(tmp_path / name / f"{index}.png")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.num_classes == 2
    assert dataset.train[0][0].shape == (3, dataset.input_size, dataset.input_size)
    assert (len(dataset.train), len(dataset.valid)) == (8, 2)


@with_vision
def test_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match=r"must hold one folder of images per class"):
        load_dataset(f"folder:{tmp_path}")
