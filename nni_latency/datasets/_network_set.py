# SPDX-License-Identifier: Apache-2.0
"""`NetworkSet`: networks and their latencies on platforms, read lazily from a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from nni_latency.costs import Cost
from nni_latency.datasets._archive import Archive, LatencyDocument, NetworksDocument, Part, RunDocument
from nni_latency.documents import SavedFile
from nni_latency.errors import FileFormatError, InvalidValueError, listed
from nni_latency.files import readable
from nni_latency.graphs import latency_conflicts
from nni_latency.operators import Graph
from nni_latency.platforms import Platform
from nni_latency.units import number_of

#: File of the shipped data set.
SHIPPED = Path(__file__).with_name("networks.zip")


@dataclass(frozen=True)
class NetworkEntry(Cost):
    """Latency of one network on one platform. Immutable; its graph and its kernels are read on demand.

    Parameters
    ----------
    value, low, high : float
        Latency of a run and its interval [s].
    name : str
        Unique name of the network at its batch size.
    family : str
        Family of the network.
    batch_size : int
        Inputs per run.
    platform : Platform
        Platform of the measurement.
    graph_key : str
        Identifier of the graph, see `nni_latency.operators.graph_key`.
    seed : int, optional
        Member of the family.
    stage : str, default=""
        ``train`` or ``test`` if the data set defines a split.
    n_samples, n_visits : int
        Number of runs and visits.
    repeatability : float, default=0.0
        Standard deviation of the visits divided by their mean.
    run : int, default=0
        Index of the measuring run in the data set.
    """

    name: str
    family: str
    batch_size: int
    platform: Platform
    graph_key: str
    seed: int | None = None
    stage: str = ""
    n_samples: int = 0
    n_visits: int = 0
    repeatability: float = 0.0
    run: int = 0
    _load_graph: Callable[[str], Graph] = field(default=lambda _key: Graph((), 0), repr=False, compare=False)
    _load_parts: Callable[[], tuple[Part, ...]] = field(default=lambda: (), repr=False, compare=False)

    @property
    def latency(self) -> float:
        """Time of a run [s]."""
        return self.value

    @property
    def graph(self) -> Graph:
        """Operators and their data flow."""
        return self._load_graph(self.graph_key)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Indices of the operators in the graph that ran as one kernel, and the time of each kernel [s].

        The times add up to the latency; empty if the runtime does not report them.
        """
        return self._load_parts()


class NetworkSet(Sequence[NetworkEntry]):
    """Latencies of networks on platforms, a sequence of `NetworkEntry`. Immutable.

    `load_networks` reads one.

    Parameters
    ----------
    entries : sequence of NetworkEntry
        Latencies in order.
    failures : mapping of str to mapping
        Failed networks and the reason, by platform id.
    archive : Archive, optional
        File of the data set.
    """

    def __init__(
        self,
        entries: Sequence[NetworkEntry],
        failures: Mapping[str, Mapping[str, str]] | None = None,
        archive: Archive | None = None,
    ) -> None:
        self._entries = tuple(entries)
        self.failures = dict(failures or {})
        self._archive = archive

    def __repr__(self) -> str:
        names = len({entry.name for entry in self})
        latencies, networks = number_of(len(self), "latency", "latencies"), number_of(names, "network")
        return f"NetworkSet({latencies} of {networks} on {number_of(len(self.platforms), 'platform')})"

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> NetworkEntry: ...

    @overload
    def __getitem__(self, place: slice) -> NetworkSet: ...

    def __getitem__(self, place: int | slice) -> NetworkEntry | NetworkSet:
        """Return one latency, or a part of the set."""
        if isinstance(place, slice):
            return NetworkSet(self._entries[place], self.failures, self._archive)
        return self._entries[place]

    def __iter__(self) -> Iterator[NetworkEntry]:
        return iter(self._entries)

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """Platforms of the measurements, without duplicates, in order."""
        return tuple({entry.platform.id: entry.platform for entry in self}.values())

    @property
    def families(self) -> tuple[str, ...]:
        """Families of the networks, sorted."""
        return tuple(sorted({entry.family for entry in self}))

    @property
    def card(self) -> str:
        """Description of the measurement in Markdown; empty without a file."""
        return self._archive.card() if self._archive is not None else ""

    @property
    def runs(self) -> tuple[RunDocument, ...]:
        """Platform, time and protocol of the measuring runs; empty without a file."""
        return self._archive.runs if self._archive is not None else ()

    def only(
        self,
        *,
        platform: str | None = None,
        families: Collection[str] | None = None,
        batch_size: int | None = None,
        stage: str | None = None,
    ) -> NetworkSet:
        """Return the latencies of a platform, by its id, of families, of a batch size and of a stage.

        Raises
        ------
        InvalidValueError
            If nothing matches; the message lists the available values.
        """
        wanted = {"platform": platform, "batch_size": batch_size, "stage": stage}
        entries = [
            entry
            for entry in self
            if platform in (None, entry.platform.id)
            and (families is None or entry.family in families)
            and batch_size in (None, entry.batch_size)
            and stage in (None, entry.stage)
        ]
        if not entries:
            asked = [f"{name} {value!r}" for name, value in wanted.items() if value is not None]
            asked += [f"families {listed(families)}"] if families is not None else []
            raise InvalidValueError(
                f"The data set has no network of {listed(asked, separator=', ')}. Its platforms are "
                f"{listed(item.id for item in self.platforms)}, its families {listed(self.families)}."
            )
        return NetworkSet(entries, self.failures, self._archive)

    def onnx(self, name: str) -> bytes:
        """Return the ONNX file of a network, without its weights.

        Raises
        ------
        FileFormatError
            If the data set does not hold it.
        """
        if self._archive is None:
            raise FileFormatError(f"The data set does not hold the ONNX file of {name!r}.")
        return self._archive.onnx(name)


def load_networks(path: str | os.PathLike[str] | None = None) -> NetworkSet:
    """Read a data set of networks with latencies.

    The list of networks and latencies is read immediately; graphs, kernels and ONNX files on demand.

    Parameters
    ----------
    path : str or path, optional
        Path of the file; by default the shipped data set.

    Returns
    -------
    NetworkSet

    Raises
    ------
    FileFormatError
        If the file is missing, truncated, modified, or of another type or version, or two latencies of one network on
        one platform disagree.
    InvalidValueError
        If no path is given and this installation has no shipped data set.
    """
    if path is None and not SHIPPED.is_file():
        raise InvalidValueError(
            "No data set ships with this installation. Name a file, or measure one with 'nni-latency dataset measure'."
        )
    file = SavedFile.of(SHIPPED if path is None else path)
    archive = Archive(file)
    with readable(file.path, "a data set of networks"):
        header = archive.header(file)
    return _networks_of(archive, header)


def _networks_of(archive: Archive, header: NetworksDocument) -> NetworkSet:
    platforms = [run.platform.to_platform() for run in header.runs]
    entries: list[NetworkEntry] = []
    for item in header.latencies:
        if item.network >= len(header.networks) or item.run >= len(header.runs):
            raise FileFormatError(
                f"The data set {str(archive.path)!r} is not valid: a latency is of network {item.network} in run "
                f"{item.run}, and there are {number_of(len(header.networks), 'network')} and "
                f"{number_of(len(header.runs), 'run')}."
            )
        entries.append(_entry(archive, header, item, platforms[item.run]))
    check_agreement(entries, str(archive.path))
    runs = zip(platforms, header.runs, strict=True)
    return NetworkSet(entries, failures_of((platform.id, run.failures) for platform, run in runs), archive)


def failures_of(runs: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Merge the failures of several runs by platform and name."""
    found: dict[str, dict[str, str]] = {}
    for platform, failures in runs:
        found.setdefault(platform, {}).update(failures)
    return found


def _entry(archive: Archive, header: NetworksDocument, item: LatencyDocument, platform: Platform) -> NetworkEntry:
    network = header.networks[item.network]
    return NetworkEntry(
        item.value,
        item.low,
        item.high,
        network.name,
        network.family,
        network.batch_size,
        platform,
        network.graph,
        network.seed,
        network.stage,
        item.n_samples,
        item.n_visits,
        item.repeatability,
        item.run,
        archive.graph,
        lambda: archive.parts(item.run).get(item.network, ()),
    )


def check_agreement(entries: Sequence[NetworkEntry], origin: str) -> None:
    """Raise `FileFormatError` if two latencies of one network on one platform differ by more than 10 %."""
    conflicts = latency_conflicts(entries)
    if conflicts:
        raise FileFormatError(
            f"Two latencies of one network disagree in {origin!r}: {listed(conflicts, separator='; ')}. "
            "Keep the right one of each."
        )
