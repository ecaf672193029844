# SPDX-License-Identifier: Apache-2.0
"""`Encoding`: features of the architectures of a space, and prior covariances of their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError

#: Number of architectures to estimate centre and scale of the features if a space is too large to enumerate.
_SAMPLE = 2048


class Encoding(ABC):
    """Regression features of a space: features of its architectures, and prior covariances of their weights.

    Immutable. Features are centred over the space. Each part models one kind of shared cost as a covariance of the
    features' weights, scaled such that the resulting cost has unit variance over the space.
    """

    #: Whether the cost is a sum over layers, so that it can be written as a table.
    additive: bool = False

    def __init__(self, choices: Mapping[str, Sequence[Any]]) -> None:
        self.choices = {str(label): tuple(map(str, values)) for label, values in choices.items()}
        if not self.choices or not all(self.choices.values()):
            raise InvalidValueError(f"A space needs labels with at least one choice each. Got {self.choices}.")

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the space, in order."""
        return tuple(self.choices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Choices per label."""
        return tuple(len(values) for values in self.choices.values())

    @abstractmethod
    def raw_features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return features before centring, (n, n_features)."""

    @abstractmethod
    def raw_parts(self) -> dict[str, NDArray[np.float64]]:
        """Return the covariances by name, (n_features, n_features), before scaling."""

    def features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return centred features, (n, n_features)."""
        centred: NDArray[np.float64] = self.raw_features(indices) - self.centre
        return centred

    def indices(self, architectures: Any) -> NDArray[np.int64]:
        """Check architectures and return the indices of their choices, (n, n_labels).

        Parameters
        ----------
        architectures : array-like of int of shape (n, n_labels), or list of mappings
            Indices of the choices, or ``{label: choice}`` each.

        Raises
        ------
        InvalidValueError
            If they do not belong to the space.
        """
        if isinstance(architectures, Sequence) and architectures and isinstance(architectures[0], Mapping):
            architectures = [self._from_sample(row, sample) for row, sample in enumerate(architectures)]
        try:
            array = np.asarray(architectures)
        except ValueError as error:
            raise InvalidValueError(f"The 'architectures' must be as long as each other: {error}.") from error
        if array.ndim != 2 or array.shape[1] != len(self.labels) or array.dtype.kind not in "iu":
            raise InvalidValueError(
                f"The 'architectures' must be an int array of shape (n, {len(self.labels)}), an index for each of "
                f"{_listed(self.labels)}. Got {array.dtype} of shape {array.shape}."
            )
        return self._checked(array.astype(np.int64))

    def draw(self, count: int, seed: int) -> NDArray[np.int64]:
        """Draw architectures with uniform choices, (count, n_labels)."""
        generator = np.random.default_rng(seed)
        return np.stack([generator.integers(0, size, count) for size in self.sizes], axis=1)

    @cached_property
    def parts(self) -> dict[str, NDArray[np.float64]]:
        """Scaled covariances by name, without those under which all architectures cost the same."""
        sample = self.features(self._sample)
        moment = sample.T @ sample / len(sample)
        scales = {name: float((part * moment).sum()) for name, part in self.raw_parts().items()}
        return {name: part / scales[name] for name, part in self.raw_parts().items() if scales[name] > 1e-12}

    @cached_property
    def stack(self) -> NDArray[np.float64]:
        """The scaled covariances of all parts, (n_parts, n_features, n_features)."""
        return np.stack(list(self.parts.values()))

    @cached_property
    def centre(self) -> NDArray[np.float64]:
        """Mean of the features over the space, (n_features,)."""
        mean: NDArray[np.float64] = self.raw_features(self._sample).mean(axis=0)
        return mean

    @cached_property
    def _sample(self) -> NDArray[np.int64]:
        if np.prod(np.array(self.sizes, dtype=np.float64)) <= 8 * _SAMPLE:
            grids = np.meshgrid(*(np.arange(size) for size in self.sizes), indexing="ij")
            return np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
        return self.draw(_SAMPLE, 0)

    def _checked(self, array: NDArray[np.int64]) -> NDArray[np.int64]:
        for (label, values), column in zip(self.choices.items(), array.T, strict=True):
            wrong = np.flatnonzero((column < 0) | (column >= len(values)))
            if len(wrong):
                raise InvalidValueError(
                    f"Architecture {wrong[0]} is outside the space: its index of {label!r} must be in "
                    f"[0, {len(values) - 1}]. Got {column[wrong[0]]}."
                )
        return array

    def _from_sample(self, row: int, sample: Mapping[str, Any]) -> list[int]:
        found = []
        for label, values in self.choices.items():
            if str(sample.get(label)) not in values:
                raise InvalidValueError(
                    f"Architecture {row} is outside the space: its choice of {label!r} must be one of "
                    f"{', '.join(values)}. Got {sample.get(label)!r}."
                )
            found.append(values.index(str(sample[label])))
        return found


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{labels[0]} ... {labels[-1]}"
