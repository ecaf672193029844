# SPDX-License-Identifier: Apache-2.0
"""Latencies of networks in NNLQP's layout, a text file and a folder of ONNX files; and detection of conflicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from nni_latency.errors import FileFormatError, InvalidValueError, listed
from nni_latency.files import write_atomically
from nni_latency.platforms import Platform

#: Name of the file with the latencies.
GROUND_TRUTH = "gt.txt"

#: Maximum number of broken lines that a message names.
_NAMED = 10

#: Relative difference above which two latencies of one network disagree.
DISAGREEMENT = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True)
class NetworkLatency:
    """Latency of a network on a platform. Immutable.

    Parameters
    ----------
    graph_id : str
        Identifies the network.
    onnx_path : str
        Its ONNX file, relative to the folder of the data set.
    batch_size : int
        Inputs per run.
    latency : float
        Time of a run [s].
    family : str
        Family of the network.
    platform : str
        Platform of the measurement.
    stage : str, default=""
        ``train`` or ``test``, where the data set states it.
    """

    graph_id: str
    onnx_path: str
    batch_size: int
    latency: float
    family: str
    platform: str
    stage: str = ""

    def __post_init__(self) -> None:
        for name in ("graph_id", "onnx_path", "family", "platform", "stage"):
            text = getattr(self, name)
            if (not text and name != "stage") or any(sign.isspace() for sign in text):
                raise InvalidValueError(f"The {name!r} of a network must be a word without spaces. Got {text!r}.")
        path = PurePosixPath(self.onnx_path)
        if path.is_absolute() or ".." in path.parts:
            raise InvalidValueError(f"The 'onnx_path' must lie in the folder of the data set. Got {self.onnx_path!r}.")
        if self.batch_size < 1:
            raise InvalidValueError(f"The 'batch_size' must be >= 1. Got {self.batch_size}.")
        if not (math.isfinite(self.latency) and self.latency > 0):
            raise InvalidValueError(f"The 'latency' must be a positive number of seconds. Got {self.latency}.")

    @property
    def line(self) -> str:
        """The line of NNLQP's file, in milliseconds."""
        parts = [self.graph_id, self.onnx_path, str(self.batch_size), f"{self.latency * 1e3:.6g}"]
        return " ".join([*parts, self.family, self.platform, *([self.stage] if self.stage else [])])

    @classmethod
    def parse(cls, line: str) -> NetworkLatency:
        """Parse a line.

        Raises
        ------
        InvalidValueError
            If the line does not have six or seven words, or one of them is invalid.

        Examples
        --------
        >>> NetworkLatency.parse("7 onnx/vgg-1.onnx 1 12.5 vgg 10 train").latency
        0.0125
        """
        words = line.split()
        if not 6 <= len(words) <= 7:
            raise InvalidValueError(f"it must have six or seven words, and has {len(words)}")
        graph_id, path, batch_size, milliseconds, family, platform, *stage = words
        try:
            numbers = int(batch_size), float(milliseconds) / 1e3
        except ValueError as error:
            raise InvalidValueError(f"the batch size or the latency is no number: {error}") from error
        return cls(graph_id, path, *numbers, family, platform, *stage)


def read_nnlqp(folder: str | Path) -> tuple[NetworkLatency, ...]:
    """Read a data set in NNLQP's layout [1]_: ``gt.txt``, and the ONNX files that it names.

    Parameters
    ----------
    folder : str or Path
        Folder of ``gt.txt``.

    Returns
    -------
    tuple of NetworkLatency
        In the order of the file.

    Raises
    ------
    FileFormatError
        If a line is broken, a file is missing, or two latencies of one network on one platform disagree; the message
        names such lines.

    References
    ----------
    .. [1] L. Liu et al., "NNLQP: A Multi-Platform Neural Network Latency Query and Prediction System with An Evolving
       Database", ICPP 2022. https://doi.org/10.1145/3545008.3545051
    """
    source = Path(folder) / GROUND_TRUTH
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"Cannot read {str(source)!r}: {error}.") from error
    found: dict[int, NetworkLatency] = {}
    broken: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found[number] = NetworkLatency.parse(line)
        except InvalidValueError as error:
            broken.append(f"line {number}: {str(error).rstrip('.')}")
    absent = {item.onnx_path for item in found.values() if not (Path(folder) / item.onnx_path).is_file()}
    broken += [
        f"line {number}: there is no file {item.onnx_path!r}"
        for number, item in found.items()
        if item.onnx_path in absent
    ]
    broken += _disagreements(found)
    if broken:
        more = f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        raise FileFormatError(f"{str(source)!r} cannot be used. {'; '.join(broken[:_NAMED])}{more}.")
    if not found:
        raise FileFormatError(f"{str(source)!r} holds no network.")
    return tuple(found.values())


def write_nnlqp(networks: Iterable[NetworkLatency], folder: str | Path) -> Path:
    """Write ``gt.txt`` to a folder that holds the ONNX files.

    Parameters
    ----------
    networks : iterable of NetworkLatency
        The latencies.
    folder : str or Path
        Folder of the data set.

    Returns
    -------
    Path
        The written file.

    Raises
    ------
    InvalidValueError
        If there is no network, or an ONNX file is missing.
    OutputError
        If the file cannot be written.
    """
    items: Sequence[NetworkLatency] = list(networks)
    absent = sorted({item.onnx_path for item in items if not (Path(folder) / item.onnx_path).is_file()})
    if not items or absent:
        lacks = f"the folder lacks {listed(absent)}" if absent else "there is no network"
        raise InvalidValueError(f"A data set cannot be written to {str(folder)!r}: {lacks}.")
    write_atomically(Path(folder) / GROUND_TRUTH, "".join(f"{item.line}\n" for item in items))
    return Path(folder) / GROUND_TRUTH


def _disagreements(found: dict[int, NetworkLatency]) -> list[str]:
    """Describe lines with conflicting latencies of one network on one platform."""
    pairs = disagreements(
        found.items(),
        key=lambda line: (line[1].graph_id, line[1].batch_size, line[1].platform),
        latency=lambda line: line[1].latency,
    )
    return [
        f"line {number}: {item.latency * 1e3:g} ms for network {item.graph_id!r}, and line {known} has "
        f"{first.latency * 1e3:g} ms"
        for (known, first), (number, item) in pairs
    ]


class Measured(Protocol):
    """A latency of a named network."""

    @property
    def name(self) -> str:
        """Identifies the network and its batch size."""

    @property
    def latency(self) -> float:
        """Time of a run [s]."""

    @property
    def platform(self) -> Platform:
        """Platform of the measurement."""


def latency_conflicts(networks: Iterable[Measured]) -> list[str]:
    """Describe networks that have two latencies on one platform which differ by more than a tenth.

    Parameters
    ----------
    networks : iterable
        Such as `MeasuredNetwork`: each with a ``name``, a ``latency`` and a ``platform``.

    Returns
    -------
    list of str
        The network, both latencies and the platform, for every latency that differs from the first.
    """
    pairs = disagreements(networks, lambda item: (item.name, item.platform.id), lambda item: item.latency)
    return [
        f"{item.name!r} takes {known.latency * 1e3:g} ms and {item.latency * 1e3:g} ms on {item.platform.id}"
        for known, item in pairs
    ]


def disagreements(
    items: Iterable[Item], key: Callable[[Item], Hashable], latency: Callable[[Item], float]
) -> Iterator[tuple[Item, Item]]:
    """Find repeated measurements whose results differ too much to agree.

    Parameters
    ----------
    items : iterable
        Latencies of networks.
    key : callable
        Identifies the network, its batch size and the platform.
    latency : callable
        Returns the time of a run [s].

    Yields
    ------
    tuple of two items
        The first item of a key, and another one of the same key that differs from it by more than a tenth.
    """
    first: dict[Hashable, Item] = {}
    for item in items:
        known = first.setdefault(key(item), item)
        if abs(latency(item) / latency(known) - 1) > DISAGREEMENT:
            yield known, item
