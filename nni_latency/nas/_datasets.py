# SPDX-License-Identifier: Apache-2.0
"""Data sets for a search: one that needs no download, torchvision's where it is installed, and the user's own."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from nni_latency.errors import InvalidValueError, LatencyError, UnknownNameError, listed, reason_of
from nni_latency.imports import import_place, require
from nni_latency.units import number_of

VISION = "torchvision>=0.17"

#: Names of the arrays of a file: images and their classes.
_NAMES = (("images", "labels"), ("x", "y"))

#: Pictures have at most this many channels; a last axis that is longer is not an axis of channels.
_MOST_CHANNELS = 4

#: What a function may return.
_KINDS = (
    "images and labels as arrays, the same for training and then for validation, one data set of torch, or two for "
    "training and validation"
)


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
        """Return the first images, (count, channels, height, width).

        Raises
        ------
        InvalidValueError
            If there are fewer, or they differ in shape.
        """
        if len(self.train) < count:  # type: ignore[arg-type]
            raise InvalidValueError(f"The data set {self.name!r} needs at least {count} images to learn from.")
        images = [torch.as_tensor(self.train[index][0]) for index in range(count)]
        shapes = list(dict.fromkeys(tuple(image.shape) for image in images))
        if len(shapes) > 1:
            raise InvalidValueError(
                f"The images of the data set {self.name!r} must all have the same shape. Got {listed(shapes)}."
            )
        return torch.stack(images)

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


def load_dataset(name: str, *, seed: int = 0) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        ``digits`` (scikit-learn's 1,797 images of handwritten digits, enlarged to 32x32), ``cifar10``, or
        ``folder:PATH`` with one folder of images per class; these two need torchvision. CIFAR-10 is kept in the folder
        ``data``, or in that of ``cifar10:PATH``, and downloaded if it is not there. A file of arrays,
        ``PATH.npz``, with ``images`` and ``labels`` or ``x`` and ``y``. Or ``package.module:function`` or
        ``path/to/file.py:function``, which is called and returns images and labels as arrays, or data sets of torch.
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
    if name == "digits":
        return _digits(seed)
    if kind == "cifar10":
        return _cifar10(Path(argument or "data"))
    if kind == "folder" and argument:
        return _folder(Path(argument), seed)
    if argument.isidentifier() and kind != "digits":
        return _own(name, call_function(name), seed)
    raise UnknownNameError.of(
        "data set", name, ["digits", "cifar10", "folder:PATH", "PATH.npz", "package.module:function"]
    )


def _own(name: str, parts: Sequence[TorchDataset[Any]], seed: int) -> Dataset:
    """Make a data set of one that is split, or of two."""
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
            "Name the folder that has it: cifar10:FOLDER."
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


def read_arrays(path: Path) -> TensorDataset:
    """Read images and labels from a ``.npz`` file.

    Raises
    ------
    InvalidValueError
        If the file cannot be read, or does not hold them.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = next((pair for pair in _NAMES if set(pair) <= set(file.files)), None)
            if found is None:
                raise InvalidValueError(
                    f"The data set {str(path)!r} must hold the arrays 'images' and 'labels', or 'x' and 'y'. It has: "
                    f"{', '.join(file.files[:8]) or 'none'}."
                )
            images, labels = (file[name] for name in found)
    except LatencyError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidValueError(f"The data set {str(path)!r} cannot be read: {error}.") from error
    return pictures_of(images, labels, str(path))


def call_function(name: str) -> Sequence[TorchDataset[Any]]:
    """Return the data sets that ``module:function`` or ``path.py:function`` makes: one, or two for validation too.

    Raises
    ------
    InvalidValueError
        If it cannot be imported or called, or returns something else.
    """
    place, _, function = name.rpartition(":")
    try:
        made = getattr(import_place(place), function)()
    except LatencyError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InvalidValueError(f"The data set {name!r} cannot be made: {reason_of(error).rstrip('.')}.") from error
    parts = list(made) if isinstance(made, (tuple, list)) else [made]
    if all(isinstance(part, (np.ndarray, torch.Tensor)) for part in parts) and len(parts) in (2, 4):
        return [pictures_of(parts[first], parts[first + 1], name) for first in range(0, len(parts), 2)]
    if all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts) and len(parts) in (1, 2):
        return [_checked(part, name) for part in parts]
    kinds = ", ".join(type(part).__name__ for part in parts[:_MOST_CHANNELS])
    raise InvalidValueError(f"The data set {name!r} must be {_KINDS}. Got {kinds}.")


def classes_of(dataset: Any) -> int:
    """Return the number of classes of a data set, by its labels if it does not say so itself."""
    known = getattr(dataset, "classes", None)
    if known is not None:
        return len(known)
    if isinstance(dataset, TensorDataset):
        return int(dataset.tensors[1].max()) + 1
    return max(int(dataset[index][1]) for index in range(len(dataset))) + 1


def pictures_of(images: Any, labels: Any, name: str) -> TensorDataset:
    """Make a data set of arrays.

    Parameters
    ----------
    images : array of shape (n, height, width), (n, channels, height, width) or (n, height, width, channels)
        Whole numbers are brought to mean 0 and standard deviation 1, numbers with fractions are taken as they are.
    labels : array of shape (n,)
        The classes as whole numbers from 0.
    name : str
        Its name, for messages.

    Raises
    ------
    InvalidValueError
        If they are of another form.
    """
    pictures, classes = (torch.as_tensor(_plain(array, name)) for array in (images, labels))
    if pictures.ndim == 3:
        pictures = pictures.unsqueeze(1)
    elif pictures.ndim == 4 and pictures.shape[1] > _MOST_CHANNELS >= pictures.shape[3]:
        pictures = pictures.permute(0, 3, 1, 2)
    if pictures.ndim != 4 or not pictures.numel():
        raise InvalidValueError(
            f"The images of the data set {name!r} must be an array (n, height, width), (n, channels, height, width) or "
            f"(n, height, width, channels). Got the shape {tuple(pictures.shape)}."
        )
    if classes.is_floating_point() or classes.shape != pictures.shape[:1] or int(classes.min()) < 0:
        raise InvalidValueError(
            f"The labels of the data set {name!r} must be {number_of(len(pictures), 'whole number')} from 0, one for "
            f"each image. Got {tuple(classes.shape)} of {str(classes.dtype).removeprefix('torch.')}"
            f"{f', from {classes.min()}' if classes.numel() else ''}."
        )
    if int(classes.max()) >= len(pictures):
        raise InvalidValueError(
            f"The labels of the data set {name!r} must be classes numbered from 0. Got {int(classes.max())} among "
            f"{number_of(len(pictures), 'image')}."
        )
    return TensorDataset(_normal(pictures, name), classes.long())


def _plain(array: Any, name: str) -> Any:
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
        raise InvalidValueError(f"The data set {name!r} must hold numbers. Got an array of {array.dtype}.")
    # Torch has no whole numbers without a sign but bytes.
    return (
        array.astype(np.int64)
        if isinstance(array, np.ndarray) and array.dtype.kind == "u" and array.itemsize > 1
        else array
    )


def _normal(pictures: torch.Tensor, name: str) -> torch.Tensor:
    numbers = pictures.float().contiguous()
    if not torch.isfinite(numbers).all():
        raise InvalidValueError(f"The images of the data set {name!r} must be finite numbers.")
    if pictures.is_floating_point():
        return numbers
    return (numbers - numbers.mean()) / numbers.std().clamp_min(1e-12)


def _checked(dataset: Any, name: str) -> TorchDataset[Any]:
    try:
        image, label = dataset[0]
        int(label)
    except Exception as error:  # user code may raise anything
        raise InvalidValueError(
            f"The data set {name!r} must give pairs of an image and its class: {type(error).__name__}."
        ) from error
    if not (isinstance(image, torch.Tensor) and image.ndim == 3 and image.is_floating_point()):
        shape = f" of shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else ""
        raise InvalidValueError(
            f"The images of the data set {name!r} must be tensors (channels, height, width) of numbers with fractions. "
            f"Got {type(image).__name__}{shape}."
        )
    checked: TorchDataset[Any] = dataset
    return checked
