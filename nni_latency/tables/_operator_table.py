"""`OperatorTable`: what the operators of a space cost inside its networks, on one platform."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.files import write_atomically
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.tables._operator_document import OPERATOR_TABLE, read_operator_document, render_operator_table
from nni_latency.tables._operator_entries import OperatorEntry
from nni_latency.tables._plan import SpaceReference
from nni_latency.tables._residency import Residency


@dataclass(frozen=True)
class MeasuredNetwork:
    """One network that was measured for a table of operators.

    Parameters
    ----------
    sample : mapping
        Its choices, ``{label: choice}``.
    value, low, high : float
        Time of unmarked runs of the whole network and its interval [s].
    entries : float
        Sum of its operators' entries [s], before calibration.
    n_samples : int
        Timed runs.
    """

    sample: Mapping[str, Any]
    value: float
    low: float
    high: float
    entries: float
    n_samples: int = 0

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high, self.entries)
        if not (all(map(math.isfinite, numbers)) and 0 < self.low <= self.value <= self.high and self.entries > 0):
            raise InvalidValueError(f"The times of a network must be positive, finite and in order. Got {numbers}.")


@dataclass(frozen=True)
class OperatorTable:
    """What the operators of a space cost inside its networks, on one platform. Immutable.

    For a space whose networks cannot be divided into layers with a few candidates each: a covering sample of its
    networks was measured, with every operator timed inside them. Operators that no such network has are predicted from
    these (`nni_latency.estimators.OperatorTableEstimator`).

    Parameters
    ----------
    space : SpaceReference
        Whose operators they are.
    platform : Platform
        Where they were measured.
    input_shape : tuple of int
        Shape of the networks' input, batch first.
    entries : tuple of OperatorEntry
        The operators, each once [s].
    networks : tuple of MeasuredNetwork
        The networks that were measured whole. The first one is the space's reference network.
    protocol : Protocol or None
        How it was measured.
    calibration : float, default=1.0
        Factor on the sum of entries.
    residency : Residency or None
        What small networks save, for the calibrated sum.
    rounds, duration : int, float
        Rounds measured, and time spent on them [s].
    coverage : float, default=1.0
        Share of the operators of other random networks that have an entry, in [0, 1].
    drift : tuple of float
        Median time of the reference operator in every round [s].
    conditions, remarks
        What the machine was like before and after, and what was unstable.
    failures : mapping of str to str
        Networks that could not be measured, as JSON, each with the reason.

    Raises
    ------
    InvalidValueError
        If there is no entry, or an operator has two.
    """

    space: SpaceReference
    platform: Platform
    input_shape: tuple[int, ...]
    entries: tuple[OperatorEntry, ...]
    networks: tuple[MeasuredNetwork, ...] = ()
    protocol: Protocol | None = None
    calibration: float = 1.0
    residency: Residency | None = None
    rounds: int = 0
    duration: float = 0.0
    coverage: float = 1.0
    drift: tuple[float, ...] = ()
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidValueError("A table of operators needs at least one entry. Got none.")
        if len(self.by_key) != len(self.entries):
            raise InvalidValueError("A table of operators must hold every operator once.")
        if not (math.isfinite(self.calibration) and self.calibration > 0):
            raise InvalidValueError(f"The calibration must be positive and finite. Got {self.calibration!r}.")
        object.__setattr__(self, "failures", MappingProxyType(dict(self.failures)))

    #: What the entries are.
    metric = "latency"

    @cached_property
    def by_key(self) -> Mapping[str, OperatorEntry]:
        """The entries by the key of their operator."""
        return MappingProxyType({entry.op.op_key: entry for entry in self.entries})

    @property
    def batch_size(self) -> int:
        """First number of the input shape."""
        return self.input_shape[0]

    @property
    def reference(self) -> float | None:
        """Time of the space's reference network [s], which tells how fast the machine was."""
        return self.networks[0].value if self.networks else None

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        target = Path(path)
        write_atomically(target, render_operator_table(self))
        return target

    @classmethod
    def load(cls, path: str | Path) -> OperatorTable:
        """Read a table.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of a newer version.
        """
        document: Any = read_operator_document(Path(path))
        with OPERATOR_TABLE.valid(str(path)):
            return cls(
                SpaceReference(document.space.name, document.space.arguments),
                document.platform.to_platform(),
                tuple(document.input_shape),
                tuple(
                    OperatorEntry(item.value, item.low, item.high, item.op.to_op(), *item.counts)
                    for item in document.entries
                ),
                tuple(
                    MeasuredNetwork(item.sample, item.value, item.low, item.high, item.entries, item.n_samples)
                    for item in document.networks
                ),
                None if document.protocol is None else Protocol(**document.protocol),
                document.calibration,
                document.residency and Residency(document.residency.saving, document.residency.scale),
                document.rounds,
                document.duration,
                document.coverage,
                tuple(document.drift),
                document.conditions,
                tuple(document.remarks),
                document.failures,
            )
