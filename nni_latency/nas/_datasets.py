"""Data sets for a search: one that needs no download, and torchvision's where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.imports import require

VISION = "torchvision>=0.17"


@dataclass(frozen=True)
class Dataset:
    """Images to train on and images to validate on.

    Parameters
    ----------
    name : str
        Its name.
    train, valid : torch Dataset
        Pairs of an image, (3, size, size), and its class.
    num_classes : int
        Classes.
    input_size : int
        Input image size [pixel].
    """

    name: str
    train: TorchDataset[Any]
    valid: TorchDataset[Any]
    num_classes: int
    input_size: int


def load_dataset(name: str, folder: str | Path = "data", *, seed: int = 0) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 1,797 images of handwritten digits, enlarged to 32x32), ``cifar10``, or
        ``folder:PATH`` with one folder of images per class. The last two need torchvision.
    folder : str or Path, default="data"
        Where ``cifar10`` is kept; it is downloaded if it is not there.
    seed : int, default=0
        Seed of the split into a fifth for validation and the rest for training.

    Raises
    ------
    UnknownNameError
        If there is no such data set.
    MissingDependencyError
        If torchvision is needed and not installed.
    InvalidValueError
        If the folder holds no images.
    """
    kind, _, argument = name.partition(":")
    if kind == "digits":
        return _digits(seed)
    if kind == "cifar10":
        return _cifar10(Path(folder))
    if kind == "folder" and argument:
        return _folder(Path(argument), seed)
    raise UnknownNameError.of("data set", name, ["digits", "cifar10", "folder:PATH"])


def _digits(seed: int) -> Dataset:
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.from_numpy(raw.images).float().unsqueeze(1) / 16.0
    enlarged = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    normal = ((enlarged - enlarged.mean()) / enlarged.std()).expand(-1, 3, -1, -1)
    train, valid = split(TensorDataset(normal, torch.from_numpy(raw.target).long()), seed)
    return Dataset("digits", train, valid, 10, 32)


def _cifar10(folder: Path) -> Dataset:
    datasets = require("torchvision.datasets", "The data set 'cifar10'", VISION)
    transform = _transform(32)
    try:
        train = datasets.CIFAR10(str(folder), train=True, download=True, transform=transform)
        valid = datasets.CIFAR10(str(folder), train=False, download=True, transform=transform)
    except (OSError, RuntimeError) as error:
        raise InvalidValueError(
            f"CIFAR-10 is not in {str(folder)!r} and cannot be downloaded: {error}. Name its folder with --data-folder."
        ) from error
    return Dataset("cifar10", train, valid, 10, 32)


def _folder(path: Path, seed: int, size: int = 64) -> Dataset:
    datasets = require("torchvision.datasets", "A data set from a folder", VISION)
    try:
        images = datasets.ImageFolder(str(path), transform=_transform(size))
    except (OSError, RuntimeError) as error:
        raise InvalidValueError(
            f"The folder {str(path)!r} must hold one folder of images per class: {error}"
        ) from error
    train, valid = split(images, seed)
    return Dataset(f"folder:{path}", train, valid, len(images.classes), size)


def _transform(size: int) -> Callable[[Any], Any]:
    transforms = require("torchvision.transforms", "A data set of images", VISION)
    steps: Callable[[Any], Any] = transforms.Compose(
        [
            transforms.Resize((size, size)),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    return steps


def split(dataset: Any, seed: int) -> tuple[TorchDataset[Any], TorchDataset[Any]]:
    """Split images into four fifths and one fifth.

    Raises
    ------
    InvalidValueError
        If there are too few for one on each side.
    """
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = len(order) // 5
    if held_out == 0:
        raise InvalidValueError(f"A data set needs at least 5 images to be split. Got {len(order)}.")
    return Subset(dataset, order[held_out:]), Subset(dataset, order[:held_out])
