# SPDX-License-Identifier: Apache-2.0
"""File of a transfer estimator: versioned JSON, validated by pydantic. Loading refits the new device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from nni_latency.documents import DocumentFormat, PlatformDocument, StrictDocument, plain
from nni_latency.errors import FileFormatError
from nni_latency.estimators.transfer._cells import CellEncoding
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._known import Expectation, KnownDevice
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding
from nni_latency.estimators.transfer._population import Population
from nni_latency.platforms import Platform
from nni_latency.tables import SpaceDocument
from nni_latency.units import number_of

Settings = tuple[float, bool, int]


@dataclass(frozen=True)
class State:
    """State of an estimator.

    Parameters
    ----------
    settings : tuple
        Confidence, whether to check units, seed.
    platform : Platform
        The new device.
    population : Population
        The known devices.
    errors : ndarray of shape (n_levels,)
        Quantiles of errors over their expected standard deviation.
    measured : ndarray of int of shape (n, n_labels)
        Networks measured on the new device, if any.
    latencies : ndarray of shape (n,)
        Measured latencies [s].
    """

    settings: Settings
    platform: Platform
    population: Population
    errors: NDArray[np.float64]
    measured: NDArray[np.int64]
    latencies: NDArray[np.float64]


class _Space(SpaceDocument):
    kind: Literal["layers", "cell"]
    input_shape: tuple[int, ...]
    layers: Annotated[tuple[EncodedLayer, ...], Field(min_length=1)]


class TransferDocument(StrictDocument):
    """Known devices, what is expected of a new one, and what was measured on it."""

    confidence: float = Field(gt=0, lt=1)
    check_units: bool
    random_state: int
    platform: PlatformDocument
    space: _Space
    devices: Annotated[tuple[KnownDevice, ...], Field(min_length=1)]
    similar_prior: Expectation
    novel_prior: Expectation
    noises: tuple[PositiveFloat, ...]
    errors: Annotated[list[float], Field(min_length=2)]
    measured: list[list[int]]
    latencies: list[PositiveFloat]

    @model_validator(mode="after")
    def _fits_together(self) -> TransferDocument:
        widths = {len(row) for row in self.measured}
        if len(widths) > 1:
            raise ValueError("the measured networks differ in their layers")
        if len(self.measured) != len(self.latencies):
            latencies = number_of(len(self.latencies), "latency", "latencies")
            raise ValueError(f"it has {latencies} for {number_of(len(self.measured), 'measured network')}")
        if len(self.noises) != len(self.devices):
            raise ValueError(
                f"it has {number_of(len(self.noises), 'noise')} for {number_of(len(self.devices), 'device')}"
            )
        return self


TRANSFER = DocumentFormat(
    "nni_latency.transfer",
    1,
    "transfer",
    "a saved transfer",
    "fit one with: nni-latency learn transfer",
    model=TransferDocument,
)

#: Returns the JSON schema of the file format.
transfer_schema = TRANSFER.schema


def write_transfer(path: Path, state: State) -> Path:
    """Write an estimator."""
    settings, platform, population = state.settings, state.platform, state.population
    content = {
        "confidence": settings[0],
        "check_units": settings[1],
        "random_state": settings[2],
        "platform": platform.as_dict(),
        "space": _space_content(population.encoding),
        "devices": list(map(plain, population.devices)),
        "similar_prior": plain(population.similar_prior),
        "novel_prior": plain(population.novel_prior),
        "noises": list(population.noises),
        "errors": state.errors.tolist(),
        "measured": state.measured.tolist(),
        "latencies": state.latencies.tolist(),
    }
    return TRANSFER.save(path, content)


def read_transfer(path: str | Path) -> State:
    """Read an estimator.

    Raises
    ------
    FileFormatError
        If the file is missing, truncated, modified, or of another type or version.
    """
    return TRANSFER.load(path, _state)


def _state(document: TransferDocument) -> State:
    encoding = _encoding(document.space)
    for device in document.devices:
        if device.coefficients.shape != encoding.centre.shape:
            raise FileFormatError(
                f"device {device.name!r} has {len(device.coefficients)} of "
                f"{number_of(len(encoding.centre), 'coefficient')}"
            )
    for expected in (document.similar_prior, document.novel_prior):
        _check_expectation(expected, len(encoding.parts) + 3)
    population = Population(encoding, document.devices, document.similar_prior, document.novel_prior, document.noises)
    if document.measured and len(document.measured[0]) != len(encoding.labels):
        raise FileFormatError(
            f"a measured network has {len(document.measured[0])} of {number_of(len(encoding.labels), 'choice')}"
        )
    measured = np.array(document.measured, dtype=np.int64).reshape(len(document.measured), len(encoding.labels))
    return State(
        (document.confidence, document.check_units, document.random_state),
        document.platform.to_platform(),
        population,
        np.array(document.errors),
        encoding.indices(measured) if len(measured) else measured,
        np.array(document.latencies),
    )


def _check_expectation(expected: Expectation, count: int) -> None:
    if not len(expected.centre) == len(expected.spread) == count:
        raise FileFormatError(
            f"a model has {len(expected.centre)} and {len(expected.spread)} of {number_of(count, 'variance')}"
        )


def _space_content(encoding: Encoding) -> dict[str, Any]:
    if isinstance(encoding, LayerEncoding):
        space, kind = encoding.space, "layers"
    else:
        space, kind = LayeredSpace.of_choices(encoding.choices), "cell"
    return {
        "kind": kind,
        **space.reference.as_dict(),
        "input_shape": list(space.input_shape),
        "layers": list(map(plain, space.layers)),
    }


def _encoding(document: _Space) -> Encoding:
    if document.kind == "cell":
        return CellEncoding({layer.name: layer.choices for layer in document.layers})
    return LayerEncoding(LayeredSpace(document.to_space(), document.input_shape, document.layers))
