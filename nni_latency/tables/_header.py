# SPDX-License-Identifier: Apache-2.0
"""`TableHeader`: metadata common to all kinds of tables, in the program and in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import Field, JsonValue, PositiveFloat, model_validator

from nni_latency.documents import InFile, NamedPlatform, StrictDocument
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.measurement import Protocol
from nni_latency.notebook import Tabular
from nni_latency.operators import Features
from nni_latency.platforms import Platform
from nni_latency.tables._machine import Residency
from nni_latency.tables._plan import SpaceReference
from nni_latency.units import METRIC_UNITS, check_metric
from nni_latency.version import __version__

#: An argument of a space, with lists in place of tuples.
Argument = bool | int | float | str | None | list[JsonValue]

#: Fields that are written unchanged.
_PLAIN = ("rounds", "duration", "calibration", "network_error", "campaign")


@dataclass(frozen=True, kw_only=True)
class TableHeader:
    """Meaning, origin and measuring conditions of the numbers of a table. Immutable.

    Parameters
    ----------
    space : SpaceReference
        Space or set of blocks that was measured.
    platform : Platform
        Platform of the measurements.
    metric : str, default="latency"
        Measured metric; its SI unit is in `nni_latency.units.METRIC_UNITS`.
    protocol : Protocol or None
        Measuring protocol; None for imported numbers.
    rounds : int, default=0
        Number of measured rounds.
    duration : float, default=0.0
        Time spent measuring [s].
    calibration : float, default=1.0
        Factor of the sum of entries.
    residency : Residency or None
        Saving of small networks whose data stay in the cache, for the calibrated sum.
    network_error : float or None
        Relative standard deviation of whole networks from the table's predictions, beyond the sampling error.
    drift : tuple of float
        Median time of the reference operator in every round [s].
    conditions : mapping
        Conditions of the machine before and after, as ``{"before": {...}, "after": {...}}``.
    remarks : tuple of str
        Instabilities during measuring, with remedies.
    campaign : str or None
        Campaign in the database from which the table was derived.
    package_version : str or None
        Version of nni_latency that made the table: this one by default; None where a file does not state it.

    Raises
    ------
    InvalidValueError
        If the metric is unknown, or the calibration is not a positive, finite number.
    """

    space: SpaceReference
    platform: Platform
    metric: str = "latency"
    protocol: Protocol | None = None
    rounds: int = 0
    duration: float = 0.0
    calibration: float = 1.0
    residency: Residency | None = None
    network_error: float | None = None
    drift: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    campaign: str | None = None
    package_version: str | None = __version__

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not (math.isfinite(self.calibration) and self.calibration > 0):
            raise InvalidValueError(f"The 'calibration' of a table must be positive. Got {self.calibration!r}.")

    @property
    def described(self) -> str:
        """Space, metric and platform, in one line."""
        return f"{self.space.name}, {self.metric} on {self.platform.id}"

    def header_content(self) -> dict[str, Any]:
        """Return the header as plain values, the input of `HeaderDocument`."""
        return {
            "nni_latency": self.package_version,
            "metric": self.metric,
            "unit": METRIC_UNITS[self.metric],
            "space": self.space.as_dict(),
            "platform": {"id": self.platform.id, **self.platform.as_dict()},
            "protocol": self.protocol and self.protocol.as_dict(),
            **{name: getattr(self, name) for name in _PLAIN},
            "residency": self.residency and vars(self.residency),
            "drift": list(self.drift),
            "conditions": dict(self.conditions),
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True, kw_only=True)
class SpaceTable(TableHeader, Tabular):
    """A table of a space's candidates or operators, for one input shape. Immutable.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of the networks' input, batch first.
    **header
        As for `TableHeader`.
    """

    input_shape: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """Batch size, the first dimension of the input shape."""
        return self.input_shape[0]

    def check_batch_size(self, asked: int) -> None:
        """Raise `MismatchError` if the table was measured with another batch size."""
        if asked != self.batch_size:
            raise MismatchError(f"The table was measured with batch size {self.batch_size}, not with {asked}.")


class SpaceDocument(StrictDocument):
    """Which space a table belongs to."""

    name: str
    arguments: dict[str, Argument] = Field(default_factory=dict, description="all arguments that make the space")

    def to_space(self) -> SpaceReference:
        """Convert to a reference."""
        return SpaceReference(self.name, self.arguments)  # type: ignore[arg-type]


#: A space in the file of a table.
Space = Annotated[SpaceReference, InFile(SpaceDocument, SpaceDocument.to_space, SpaceReference.as_dict)]


class CostDocument(StrictDocument):
    """What something costs."""

    value: float = Field(ge=0, description="cost in the table's unit; only a count of bytes may be 0")
    low: float = Field(ge=0, description="lower end of the confidence interval")
    high: float = Field(ge=0, description="upper end of the confidence interval")
    n_samples: int = Field(0, ge=0)


class CountedDocument(CostDocument):
    """What something costs, with counts of its work, which stand there for readers of the file."""

    macs: int | None = Field(None, ge=0, description="multiply-adds")
    flops: int | None = Field(None, ge=0, description="floating-point operations, two a multiply-add")
    acts: int | None = Field(None, ge=0, description="ACTS: output elements of the convolutions")
    inp: int | None = Field(None, ge=0, description="INP: input elements of the convolutions")
    params: int | None = Field(None, ge=0, description="parameters")


def counts_content(features: Features) -> dict[str, Any]:
    """Return the counts of `CountedDocument` as plain values."""
    return {name: getattr(features, name) for name in ("macs", "flops", "acts", "inp", "params")}


class HeaderDocument(StrictDocument):
    """The fields that the files of all kinds of table have."""

    nni_latency: str | None = Field(None, description="version of the package that made the table")
    metric: str
    unit: str = Field(description="SI unit of every value")
    space: Space
    platform: NamedPlatform
    protocol: Protocol | None = Field(None, description="how it was measured; null for other numbers")
    rounds: int = Field(0, ge=0)
    duration: float = Field(0.0, ge=0, description="time spent measuring [s]")
    calibration: PositiveFloat = Field(1.0, le=1e15, description="factor on the sum of entries")
    network_error: PositiveFloat | None = Field(
        None, description="relative standard deviation of whole networks from what the table says, beyond chance"
    )
    campaign: str | None = Field(None, description="measuring campaign in the database that the table is derived from")
    residency: Residency | None = Field(None, description="for the calibrated sum; null for none")
    drift: tuple[PositiveFloat, ...] = Field(
        default=(), description="median time of the reference operator in every round [s]"
    )
    conditions: dict[str, dict[str, bool | int | float | str | list[int | float | str]]] = Field(
        default_factory=dict, description="what the machine was like before and after"
    )
    remarks: tuple[str, ...] = Field(default=(), description="what was unstable, and what to do about it")

    @model_validator(mode="after")
    def _unit_fits_metric(self) -> HeaderDocument:
        if METRIC_UNITS.get(self.metric) != self.unit:
            raise ValueError(f"metric {self.metric!r} does not go with unit {self.unit!r}")
        return self

    def header(self) -> dict[str, Any]:
        """Return the arguments of `TableHeader`."""
        names = (field.name for field in fields(TableHeader) if field.name != "package_version")
        return {"package_version": self.nni_latency, **{name: getattr(self, name) for name in names}}
