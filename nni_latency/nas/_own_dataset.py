"""Data sets of the user: a file of arrays, or what a function returns."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.imports import import_place
from nni_latency.units import number_of

#: Names of the arrays of a file: images and their classes.
_NAMES = (("images", "labels"), ("x", "y"))

#: Pictures have at most so many channels; a last axis that is longer is no axis of channels.
_MOST_CHANNELS = 4

#: What a function may return.
_KINDS = (
    "images and labels as arrays, the same for training and then for validation, one data set of torch, or two for "
    "training and validation"
)


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
    except FileNotFoundError as error:
        reason = "there is no such file" if error.filename in (None, place) else str(error)
        raise InvalidValueError(f"The data set {name!r} cannot be made: {reason}.") from error
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
