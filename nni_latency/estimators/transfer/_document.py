"""The file of a transfer: versioned JSON, checked by pydantic. The new device is fitted anew when it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from nni_latency.documents import DocumentFormat, OperatorDocument, PlatformDocument, StrictDocument
from nni_latency.errors import FileFormatError
from nni_latency.estimators.transfer._cell import CellEncoding
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._evidence import Expectation
from nni_latency.estimators.transfer._known import KnownDevice
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding
from nni_latency.estimators.transfer._population import Population
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import SpaceDocument
from nni_latency.units import number_of

Settings = tuple[float, bool, int]


@dataclass(frozen=True)
class State:
    """Everything that makes an estimator.

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
        What they took [s].
    """

    settings: Settings
    platform: Platform
    population: Population
    errors: NDArray[np.float64]
    measured: NDArray[np.int64]
    latencies: NDArray[np.float64]


class _Layer(StrictDocument):
    name: str
    choices: Annotated[list[str], Field(min_length=1)]
    ops: list[OperatorDocument] | None = None
    searched: bool = True
    default: str | None = None


class _Space(SpaceDocument):
    kind: Literal["layers", "cell"]
    input_shape: list[int]
    layers: Annotated[list[_Layer], Field(min_length=1)]


class _Device(StrictDocument):
    name: str
    coefficients: list[float]
    constant: PositiveFloat
    noise: PositiveFloat


class _Expected(StrictDocument):
    centre: list[float]
    spread: list[PositiveFloat]


class TransferDocument(StrictDocument):
    """Known devices, what is expected of a new one, and what was measured on it."""

    format: Literal["nni_latency.transfer"]
    version: Literal[1]
    confidence: float = Field(gt=0, lt=1)
    check_units: bool
    random_state: int
    platform: PlatformDocument
    space: _Space
    devices: Annotated[list[_Device], Field(min_length=1)]
    kin: _Expected
    stranger: _Expected
    noises: list[PositiveFloat]
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
    "fit one with: nni-latency transfer or adapt",
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
        "devices": [
            {
                "name": device.name,
                "coefficients": device.coefficients.tolist(),
                "constant": device.constant,
                "noise": device.noise,
            }
            for device in population.devices
        ],
        **{
            name: {"centre": expected.centre.tolist(), "spread": expected.spread.tolist()}
            for name, expected in (("kin", population.similar_prior), ("stranger", population.novel_prior))
        },
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
        If the file is absent, truncated, altered, of another kind or of another version.
    """
    return TRANSFER.load(path, _state)


def _state(document: TransferDocument) -> State:
    encoding = _encoding(document.space)
    devices = []
    for item in document.devices:
        coefficients = np.array(item.coefficients)
        if coefficients.shape != encoding.centre.shape:
            raise FileFormatError(
                f"device {item.name!r} has {len(coefficients)} of {number_of(len(encoding.centre), 'coefficient')}"
            )
        devices.append(KnownDevice(item.name, coefficients, item.constant, item.noise))
    similar, novel = (_expectation(item, len(encoding.parts) + 3) for item in (document.kin, document.stranger))
    population = Population(encoding, tuple(devices), similar, novel, tuple(document.noises))
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


def _expectation(item: _Expected, count: int) -> Expectation:
    if not len(item.centre) == len(item.spread) == count:
        raise FileFormatError(
            f"a model has {len(item.centre)} and {len(item.spread)} of {number_of(count, 'variance')}"
        )
    return Expectation(np.array(item.centre), np.array(item.spread))


def _space_content(encoding: Encoding) -> dict[str, Any]:
    if isinstance(encoding, LayerEncoding):
        space, kind = encoding.space, "layers"
    else:
        space, kind = LayeredSpace.of_choices(encoding.choices), "cell"
    return {
        "kind": kind,
        **space.reference.as_dict(),
        "input_shape": list(space.input_shape),
        "layers": [
            {
                "name": layer.name,
                "choices": list(layer.choices),
                "ops": layer.ops and [op.as_dict() for op in layer.ops],
                "searched": layer.searched,
                "default": layer.default,
            }
            for layer in space.layers
        ],
    }


def _encoding(document: _Space) -> Encoding:
    if document.kind == "cell":
        return CellEncoding({layer.name: layer.choices for layer in document.layers})
    layers = tuple(
        EncodedLayer(layer.name, tuple(layer.choices), _ops(layer), layer.searched, layer.default)
        for layer in document.layers
    )
    return LayerEncoding(LayeredSpace(document.to_space(), tuple(document.input_shape), layers))


def _ops(layer: _Layer) -> tuple[OpSpec, ...] | None:
    if layer.ops is None:
        return None
    if len(layer.ops) != len(layer.choices):
        raise FileFormatError(
            f"layer {layer.name!r} has {number_of(len(layer.choices), 'choice')} and "
            f"{number_of(len(layer.ops), 'operator')}"
        )
    return tuple(op.to_op() for op in layer.ops)
