"""Data sets for a search: one that needs no download, torchvision's where it is installed, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.imports import require
from nni_latency.nas._own_dataset import call_function, classes_of, read_arrays

VISION = "torchvision>=0.17"


@dataclass(frozen=True)
class Dataset:
    """Images to train on and images to validate on.

    Parameters
    ----------
    name : str
        Its name.
    train, valid : torch Dataset
        Pairs of an image, (channels, height, width), and its class.
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

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of an image, (channels, height, width)."""
        return tuple(torch.as_tensor(self.train[0][0]).shape)

    def few(self, count: int) -> torch.Tensor:
        """Return the first images, (count, channels, height, width)."""
        return torch.stack([torch.as_tensor(self.train[index][0]) for index in range(count)])

    def with_channels(self, count: int) -> Dataset:
        """Return the data set with images of that many channels; those with one are repeated, others stay."""
        if self.image_shape[0] != 1 or count == 1:
            return self
        return replace(self, train=_Repeated(self.train, count), valid=_Repeated(self.valid, count))


class _Repeated(TorchDataset[Any]):
    """Images of one channel, repeated."""

    def __init__(self, images: Any, count: int) -> None:
        self._images = images
        self._count = count

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image, label = self._images[index]
        return image.expand(self._count, -1, -1), label


def load_dataset(name: str, folder: str | Path = "data", *, seed: int = 0) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 1,797 images of handwritten digits, enlarged to 32x32), ``cifar10``, or
        ``folder:PATH`` with one folder of images per class; these two need torchvision. A file of arrays,
        ``PATH.npz``, with ``images`` and ``labels`` or ``x`` and ``y``. Or ``package.module:function`` or
        ``path/to/file.py:function``, which is called and returns images and labels as arrays, or data sets of torch.
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
        If the folder holds no images, or what the user brings is of another form.
    """
    if name.endswith(".npz"):
        return _own(name, [read_arrays(Path(name))], seed)
    kind, _, argument = name.partition(":")
    if kind == "digits":
        return _digits(seed)
    if kind == "cifar10":
        return _cifar10(Path(folder))
    if kind == "folder" and argument:
        return _folder(Path(argument), seed)
    if argument.isidentifier():
        return _own(name, call_function(name), seed)
    raise UnknownNameError.of(
        "data set", name, ["digits", "cifar10", "folder:PATH", "PATH.npz", "package.module:function"]
    )


def _own(name: str, parts: Sequence[TorchDataset[Any]], seed: int) -> Dataset:
    """Make a data set of one that is to be split, or of two."""
    train, valid = parts if len(parts) == 2 else split(parts[0], seed)
    shape = torch.as_tensor(parts[0][0][0]).shape
    return Dataset(name, train, valid, classes_of(parts[0]), shape[-1])


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
            f"CIFAR-10 is not in the folder {str(folder)!r} and cannot be downloaded: {error}. "
            "Name the folder that has it."
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
