# SPDX-License-Identifier: Apache-2.0
"""`NetworkFile`: a network to measure as an ONNX file, and its origin."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

import nni_latency.graphs as graphs
from nni_latency.datasets._archive import GraphDocument
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet
from nni_latency.errors import InvalidValueError
from nni_latency.files import cache_folder, write_atomically
from nni_latency.graphs import NetworkFamily, block_families, families, generate_onnx
from nni_latency.measurement import Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import Graph, OnnxBuild, graph_key, initializers_of, load_onnx, onnx_inputs, read_onnx

#: Family of networks from files that are in no subfolder.
UNNAMED = "file"


@dataclass(frozen=True)
class NetworkFile:
    """A network to measure. Immutable.

    Parameters
    ----------
    name : str
        Name of the network, such as ``vgg-00007``.
    path : Path
        ONNX file, with or without weights.
    family : str
        Family of the network.
    seed : int, optional
        Member of a family of `nni_latency.graphs`; None for other files.
    batch_size : int, default=1
        Inputs per run.
    """

    name: str
    path: Path
    family: str = UNNAMED
    seed: int | None = None
    batch_size: int = 1

    @property
    def batched_name(self) -> str:
        """Name of the network and its batch size, as in data sets."""
        return f"{self.name}-b{self.batch_size}"

    @cached_property
    def key(self) -> str:
        """Unique identifier of the network, independent of its name."""
        try:
            digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidValueError(f"Cannot read {str(self.path)!r}: {error.strerror or error}.") from error
        return f"{self.name}@{digest[:12]}"

    @cached_property
    def weights(self) -> int:
        """Number of weights."""
        model = load_onnx(self.path, self._asked)
        return sum(math.prod(tensor.dims) for tensor in initializers_of(model))

    @property
    def graph(self) -> Graph:
        """Operators and their data flow; raises as `nni_latency.operators.read_onnx`."""
        return self._read[1]

    @property
    def _asked(self) -> int | None:
        """Batch size to set in the file; None for one input per run if the file fixes a size other than the batch."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[int | None, Graph]:
        """Batch size set in the file, and the graph."""
        if self.family in block_families():
            # The file is written for the batch size, which may not be the first size of its input.
            return None, read_onnx(self.path)
        try:
            return self.batch_size, read_onnx(self.path, self.batch_size)
        except InvalidValueError:
            if self.batch_size != 1 or self.seed is not None or self._can_be_set():
                raise
            return None, read_onnx(self.path)

    def _can_be_set(self) -> bool:
        try:
            load_onnx(self.path, self.batch_size)
        except InvalidValueError:
            return False
        return True

    @cached_property
    def graph_key(self) -> str:
        """Identifier of the graph, see `nni_latency.operators.graph_key`."""
        return graph_key(self.graph)

    def subject(self, runtime: Runtime) -> Subject:
        """Return the subject for a bench: the ONNX file, or the family's module if the runtime does not take ONNX.

        Its records are keyed by the graph, independent of the name of the network.
        """
        build: Any
        if runtime.takes_onnx or self.seed is None or self.family not in families():
            build = OnnxBuild(str(self.path.absolute()), self._asked)
        else:
            build = partial(families()[self.family].network, self.seed)
        inputs = onnx_inputs(self.path, self._asked)
        specification = {
            "name": self.name,
            "family": self.family,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "graph": GraphDocument.of(self.graph).model_dump(mode="json"),
        }
        return Subject(self.key, build, inputs, digest=self.graph_key, specification=specification)


def family_files(
    members: Sequence[tuple[NetworkFamily, int]], *, batch_size: int = 1, n_jobs: int | None = None
) -> Iterator[NetworkFile]:
    """Write members of families as ONNX files into the cache, unless present.

    Parameters
    ----------
    members : sequence of (Family, int)
        Families and the seeds of their members; 0 is the published network.
    batch_size : int, default=1
        Inputs per run.
    n_jobs : int, optional
        Number of parallel processes, as in joblib.

    Yields
    ------
    NetworkFile
        Every member in order.

    Raises
    ------
    MissingDependencyError
        If the package onnx is not installed.
    OutputError
        If a file cannot be written.
    """
    folder = cache_folder() / "onnx" / f"{_version()}-b{batch_size}"
    made = generate_onnx(members, folder, batch_size=batch_size, n_jobs=n_jobs)
    for path, (family, seed) in zip(made, members, strict=True):
        yield NetworkFile(path.stem, path, family.name, seed, batch_size)


def measured_files(networks: NetworkSet, entries: Iterable[NetworkEntry]) -> Iterator[NetworkFile]:
    """Write the ONNX files of networks of a data set into the cache, unless present.

    Parameters
    ----------
    networks : NetworkSet
        Data set that holds the files.
    entries : iterable of NetworkEntry
        Latencies of the networks.

    Yields
    ------
    NetworkFile
        Every network in order.

    Raises
    ------
    FileFormatError
        If the data set does not hold a file.
    OutputError
        If a file cannot be written.
    """
    folder = cache_folder() / "onnx" / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        path = folder / f"{entry.graph_key}-b{entry.batch_size}.onnx"
        if not path.is_file():
            write_atomically(path, networks.onnx(entry.name))
        name = entry.name.removesuffix(f"-b{entry.batch_size}")
        yield NetworkFile(name, path, entry.family, entry.seed, entry.batch_size)


def given_files(paths: Iterable[str | Path], *, batch_size: int = 1) -> list[NetworkFile]:
    """Find ONNX files among paths of files and folders.

    The family of a file in a subfolder of a given folder is the name of the subfolder.

    Raises
    ------
    InvalidValueError
        If there is no file, or two share a name.
    """
    found: dict[str, NetworkFile] = {}
    for given in map(Path, paths):
        for path in sorted(given.rglob("*.onnx")) if given.is_dir() else [given]:
            name = "-".join(path.stem.split())
            is_below = given.is_dir() and path.parent != given
            family = "-".join(path.parent.name.split()) if is_below else UNNAMED
            if name in found:
                raise InvalidValueError(
                    f"{str(path)!r} and {str(found[name].path)!r} have the same name. Rename one of them."
                )
            found[name] = NetworkFile(name, path, family, batch_size=batch_size)
    if not found:
        raise InvalidValueError("There is no ONNX file in what was given. Name files that end in .onnx, or folders.")
    return list(found.values())


def _version() -> str:
    """Return the versions of the family definitions and of the exporter, on which the files depend."""
    sources = sorted(Path(graphs.__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    digest.update(torch.__version__.encode())
    return digest.hexdigest()[:12]
