"""`NetworkFile`: a network of which a latency is wanted, as an ONNX file, and where it came from."""

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
from nni_latency.errors import InvalidValueError
from nni_latency.files import cache_folder
from nni_latency.graphs import Family, families, generate_onnx
from nni_latency.measurement import Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import Graph, OnnxBuild, graph_key, load_onnx, onnx_inputs, read_onnx

#: Family of networks that come from files.
UNNAMED = "file"


@dataclass(frozen=True)
class NetworkFile:
    """A network that is measured. Immutable.

    Parameters
    ----------
    name : str
        What it is called, such as ``vgg-00007``.
    path : Path
        Its ONNX file, with weights or without.
    family : str
        What kind of network it is.
    seed : int, optional
        Which member of the family; None for a file from elsewhere.
    batch_size : int, default=1
        Inputs of a run.
    """

    name: str
    path: Path
    family: str = UNNAMED
    seed: int | None = None
    batch_size: int = 1

    @cached_property
    def key(self) -> str:
        """Name that tells it from all other networks, whatever it was called before."""
        try:
            digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidValueError(f"Cannot read {str(self.path)!r}: {error.strerror or error}.") from error
        return f"{self.name}@{digest[:12]}"

    @cached_property
    def weights(self) -> int:
        """How many numbers its weights are."""
        graph = load_onnx(self.path, self._asked).graph
        return sum(math.prod(tensor.dims) for tensor in graph.initializer)

    @property
    def graph(self) -> Graph:
        """Its operators, and how they hang together; raises as `nni_latency.operators.read_onnx`."""
        return self._read[1]

    @property
    def _asked(self) -> int | None:
        """Batch size that the file is set to; none for one input a run where the file fixes a size that is no batch."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[int | None, Graph]:
        """The batch size that the file is set to, and the graph."""
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
        """Tells its graph from others, see `nni_latency.operators.graph_key`."""
        return graph_key(self.graph)

    def subject(self, runtime: Runtime) -> Subject:
        """Return what a bench of a runtime loads: the ONNX file, or the family's module where it takes no ONNX.

        Its records are found by the key of its graph, whatever the network is called.
        """
        build: Any
        if runtime.takes_onnx or self.seed is None:
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
    members: Sequence[tuple[Family, int]], *, batch_size: int = 1, n_jobs: int | None = None
) -> Iterator[NetworkFile]:
    """Write members of families as ONNX files into the cache, where they are not there yet.

    Parameters
    ----------
    members : sequence of (Family, int)
        Families, and the seeds of their members; 0 is the published network.
    batch_size : int, default=1
        Inputs of a run.
    n_jobs : int, optional
        Processes that write side by side, as joblib takes it.

    Yields
    ------
    NetworkFile
        Every member, in order.

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


def given_files(paths: Iterable[str | Path], *, batch_size: int = 1) -> list[NetworkFile]:
    """Find ONNX files: those that are named, and those in folders.

    Raises
    ------
    InvalidValueError
        If there is none, or two have one name.
    """
    found: dict[str, NetworkFile] = {}
    for given in map(Path, paths):
        for path in sorted(given.rglob("*.onnx")) if given.is_dir() else [given]:
            name = "-".join(path.stem.split())
            if name in found:
                raise InvalidValueError(
                    f"{str(path)!r} and {str(found[name].path)!r} have one name, by which networks are told apart. "
                    "Rename one of them."
                )
            found[name] = NetworkFile(name, path, batch_size=batch_size)
    if not found:
        raise InvalidValueError("There is no ONNX file in what was given. Name files that end in .onnx, or folders.")
    return list(found.values())


def _version() -> str:
    """Return what the files of families depend on: the package's families, and the exporter."""
    sources = sorted(Path(graphs.__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    digest.update(torch.__version__.encode())
    return digest.hexdigest()[:12]
