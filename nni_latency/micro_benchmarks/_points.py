"""`BenchmarkPoints`: blocks and what they took on one platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks._document import read_points, write_points
from nni_latency.operators import Features, OpSpec, count_operators
from nni_latency.platforms import Platform, check_same_platform


@dataclass(frozen=True)
class BenchmarkPoint(Cost):
    """One block at one batch size. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    block : str
        Name of the block.
    kind : str
        Its kind.
    input_shape : tuple of int
        Of its input, batch first.
    ops : tuple of OpSpec
        The operators that it runs.
    n_samples : int
        Samples behind it.
    """

    block: str
    kind: str
    input_shape: tuple[int, ...]
    ops: tuple[OpSpec, ...]
    n_samples: int = 0

    @property
    def name(self) -> str:
        """Name that tells it from all other points."""
        return f"{self.block}-b{self.input_shape[0]}"

    @property
    def features(self) -> Features:
        """Counts of the operators that can be counted."""
        return count_operators(self.ops).features


@dataclass(frozen=True)
class BenchmarkPoints:
    """Points of one platform. Immutable.

    Parameters
    ----------
    points : tuple of BenchmarkPoint
        What was measured.
    platform : Platform
        Where.
    protocol : Protocol or None
        How.
    ended : mapping of str to str
        Blocks whose larger batch sizes were not measured, each with the reason.
    rounds : int
        Rounds over all points.
    duration : float
        Time spent measuring [s].
    drift : tuple of float
        Median time of the reference operator in every round [s].
    remarks : tuple of str
        What was unsteady, and what to do about it.
    """

    points: tuple[BenchmarkPoint, ...]
    platform: Platform
    protocol: Protocol | None = None
    ended: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 0
    duration: float = 0.0
    drift: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def workloads(self) -> list[tuple[OpSpec, ...]]:
        """The operators of every point, which is what an `ActsEstimator` takes."""
        return [point.ops for point in self.points]

    @property
    def latencies(self) -> NDArray[np.float64]:
        """Of every point [s], of shape (n_points,)."""
        return np.array([point.value for point in self.points])

    @property
    def totals(self) -> NDArray[np.float64]:
        """ACTS, INP and FLOPs (two a multiply-add) of every point, of shape (n_points, 3)."""
        counts = [point.features for point in self.points]
        return np.array([(item.acts, item.inp, item.flops) for item in counts], dtype=np.float64).reshape(-1, 3)

    @property
    def blocks(self) -> list[str]:
        """The block of every point."""
        return [point.block for point in self.points]

    def save(self, path: str | Path) -> Path:
        """Write the points to a JSON file, whole or not at all."""
        return write_points(Path(path), self)

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkPoints:
        """Read points from their file.

        Raises
        ------
        FileFormatError
            If it is absent, truncated, altered, of another kind or of a newer version.
        """
        document = read_points(Path(path))
        points = tuple(BenchmarkPoint(**item) for item in document.pop("points"))
        return cls(points, **document)

    @classmethod
    def merge(cls, parts: Sequence[BenchmarkPoints]) -> BenchmarkPoints:
        """Put points of several files together, which must be of one platform.

        Raises
        ------
        MismatchError
            If they are of several platforms.
        InvalidValueError
            If there are none at all.
        """
        if not parts:
            raise InvalidValueError("There are no points to put together.")
        first = parts[0]
        for other in parts[1:]:
            check_same_platform(first.platform, other.platform, "Fitting one device to these points")
        return cls(
            tuple(point for part in parts for point in part.points),
            first.platform,
            protocol=first.protocol,
            ended={name: reason for part in parts for name, reason in part.ended.items()},
            rounds=sum(part.rounds for part in parts),
            duration=sum(part.duration for part in parts),
            drift=tuple(seconds for part in parts for seconds in part.drift),
            remarks=tuple(remark for part in parts for remark in part.remarks),
        )
