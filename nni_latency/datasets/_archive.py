# SPDX-License-Identifier: Apache-2.0
"""File of a data set: a ZIP archive whose members are read on demand, and the documents in it."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, OperatorDocument, SavedFile, StrictDocument
from nni_latency.errors import FileFormatError
from nni_latency.files import replacing
from nni_latency.operators import Graph, TracedOperator

#: Names of the members.
HEADER, CARD = "dataset.json", "card.md"

#: Largest size of a member [byte].
_MOST_BYTES = 2**28

#: Number of graphs kept in memory.
_KEPT_GRAPHS = 4096

#: Fixed modification time of all members, so that equal data sets are equal files.
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: A kernel: the indices of its operators, and its time [s].
Part = tuple[tuple[int, ...], float]


class Archive:
    """Members of the file of a data set. Thread-safe.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    FileFormatError
        On creation and in all methods, if the file is missing, truncated, modified, or of another type or version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.runs: tuple[RunDocument, ...] = ()
        self.graph = lru_cache(_KEPT_GRAPHS)(self._graph)
        self.parts = lru_cache(None)(self._parts)

    def header(self, file: SavedFile) -> NetworksDocument:
        """Return the header of the file; it is read only once."""
        data = file.data if file.member == HEADER else self._read(HEADER)
        document: NetworksDocument = NETWORKS.parse_json(data, str(self.path))
        self.runs = tuple(document.runs)
        return document

    def onnx(self, name: str) -> bytes:
        """Read the ONNX file of a network, without its weights."""
        return self._read(onnx_member(name))

    def card(self) -> str:
        """Read the card, which describes the measurement."""
        return self._read(CARD).decode(errors="replace")

    def _graph(self, key: str) -> Graph:
        content = self._json(f"graphs/{key}.json")
        with NETWORKS.valid(str(self.path)):
            return GraphDocument.model_validate(content).to_graph()

    def _parts(self, run: int) -> Mapping[int, tuple[Part, ...]]:
        """Read the kernel times of a run by the index of the network."""
        name = _parts_member(run)
        content = self._json(name) if name in self._members() else {}
        with NETWORKS.valid(str(self.path)):
            return {
                int(network): tuple((tuple(map(int, numbers)), float(seconds)) for numbers, seconds in parts)
                for network, parts in content.items()
            }

    def _json(self, name: str) -> Any:
        content = self._read(name)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"The data set {str(self.path)!r} is not valid: {name!r} is no JSON: {error}."
            ) from error

    def _members(self) -> set[str]:
        return set(self._zipped.namelist())

    def _read(self, name: str) -> bytes:
        try:
            info = self._zipped.getinfo(name)
        except KeyError as error:
            raise FileFormatError(
                f"{str(self.path)!r} is not a data set of networks, or not a whole one: it lacks {name!r}. "
                "Name another file, or measure one with 'nni-latency dataset measure'."
            ) from error
        if info.file_size > _MOST_BYTES:
            raise FileFormatError(f"The data set {str(self.path)!r} is not valid: {name!r} is too large.")
        try:
            return self._zipped.read(info)
        except Exception as error:  # zipfile and zlib raise their own exceptions
            raise FileFormatError(f"The data set {str(self.path)!r} is damaged at {name!r}: {error}.") from error

    @cached_property
    def _zipped(self) -> zipfile.ZipFile:
        """The open file: reading its list of thousands of members takes longer than reading one of them."""
        try:
            return zipfile.ZipFile(self.path)
        except OSError as error:
            raise FileFormatError(f"Cannot read the data set {str(self.path)!r}: {error.strerror or error}.") from error
        except zipfile.BadZipFile as error:
            raise FileFormatError(
                f"{str(self.path)!r} is not a data set of networks, or was cut off: {error}. "
                "Take it again from where it came, or measure one with 'nni-latency dataset measure'."
            ) from error


def write_archive(
    path: str | Path,
    header: Mapping[str, Any],
    graphs: Mapping[str, Graph],
    parts: Mapping[int, Mapping[int, Iterable[Part]]],
    onnx: Mapping[str, bytes],
    card: str,
) -> Path:
    """Write a data set atomically.

    Parameters
    ----------
    path : str or Path
        Path of the file.
    header : mapping
        Content of `NetworksDocument`.
    graphs : mapping of str to Graph
        Graphs by key.
    parts : mapping of int to mapping
        Kernels by run and network.
    onnx : mapping of str to bytes
        ONNX file without weights by name of the network.
    card : str
        Description of the measurement, in Markdown.

    Raises
    ------
    InvalidValueError
        If the content is not valid for reading back.
    OutputError
        If the file cannot be written.
    """
    content = {**NETWORKS.head, **header}
    with NETWORKS.writable(str(path)):
        NETWORKS.check_content(content)
    with (
        NETWORKS.writable(str(path)),
        replacing(Path(path)) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped,
    ):
        _add(zipped, HEADER, json.dumps(content, allow_nan=False))
        _add(zipped, CARD, card)
        for run, by_network in parts.items():
            rows = {
                str(network): [[list(numbers), seconds] for numbers, seconds in some]
                for network, some in by_network.items()
            }
            _add(zipped, _parts_member(run), json.dumps(rows, allow_nan=False))
        for key, graph in graphs.items():
            _add(zipped, f"graphs/{key}.json", GraphDocument.of(graph).model_dump_json(exclude_defaults=True))
        for name, file in onnx.items():
            _add(zipped, onnx_member(name), file)
    return Path(path)


def _add(zipped: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    zipped.writestr(info, content)


def onnx_member(name: str) -> str:
    """Return the path of the ONNX file of a network in a data set; also used in NNLQP's layout."""
    return f"onnx/{name}.onnx"


def _parts_member(run: int) -> str:
    return f"parts/{run}.json"


class NetworkDocument(StrictDocument):
    """A network at one batch size."""

    name: str
    family: str
    batch_size: PositiveInt
    graph: str = Field(
        pattern="^[0-9a-f]{32}$", description="its graph_key, after which the file of its graph is named"
    )
    seed: NonNegativeInt | None = None
    stage: str = ""
    has_onnx: bool = False


class RunDocument(StrictDocument):
    """What was measured on one platform at one batch size, and how."""

    platform: NamedPlatformDocument
    batch_size: PositiveInt
    protocol: dict[str, int | float] = Field(default_factory=dict)
    campaign: str = ""
    duration: NonNegativeFloat = 0.0
    conditions: dict[str, Any] = Field(default_factory=dict)
    failures: dict[str, str] = Field(default_factory=dict, description="by name of a network, why it cannot be run")
    anchors: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="latencies of the networks that were in every batch, by name [s]"
    )


class LatencyDocument(StrictDocument):
    """What a network took in a run, in seconds."""

    network: NonNegativeInt = Field(description="its place in the list of networks")
    run: NonNegativeInt = Field(description="place in the list of runs")
    value: PositiveFloat
    low: NonNegativeFloat
    high: PositiveFloat
    n_samples: NonNegativeInt = 0
    n_visits: NonNegativeInt = 0
    repeatability: NonNegativeFloat = 0.0


class NetworksDocument(StrictDocument):
    """A data set of networks with latencies."""

    package_version: str | None = None
    runs: list[RunDocument]
    networks: list[NetworkDocument]
    latencies: list[LatencyDocument]


class NodeDocument(StrictDocument):
    """One operator of a graph."""

    name: str
    op: NonNegativeInt = Field(description="its place in the list of operators")
    sources: list[NonNegativeInt] = Field(
        default_factory=list, description="place of the operator behind each tensor that it takes"
    )
    last_call: int = -1
    details: NonNegativeInt = Field(default=0, description="their place in the list of details")
    parameters: NonNegativeInt | None = Field(default=None, description="those that no operator before it takes")


class GraphDocument(StrictDocument):
    """The operators of a network, and which takes whose results; each kind of operator stands once."""

    n_calls: NonNegativeInt
    inputs: list[list[NonNegativeInt]]
    outputs: list[list[NonNegativeInt]]
    ops: list[OperatorDocument]
    details: list[dict[str, str]]
    nodes: list[NodeDocument]
    remarks: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> GraphDocument:
        """Create the document of a graph."""
        ops = {item.op: None for item in graph.operators}
        details = {item.details: None for item in graph.operators}
        op_places = {op: place for place, op in enumerate(ops)}
        detail_places = {some: place for place, some in enumerate(details)}
        return cls(
            n_calls=graph.n_calls,
            inputs=[list(shape) for shape in graph.inputs],
            outputs=[list(shape) for shape in graph.outputs],
            ops=[OperatorDocument.model_validate(_plain(op.as_dict())) for op in ops],
            details=[dict(some) for some in details],
            nodes=[
                NodeDocument(
                    name=item.name,
                    op=op_places[item.op],
                    sources=list(item.reads),
                    last_call=item.last_call,
                    details=detail_places[item.details],
                    parameters=item.parameters,
                )
                for item in graph.operators
            ],
            remarks=list(graph.remarks),
        )

    def to_graph(self) -> Graph:
        """Return the graph.

        Raises
        ------
        ValueError, LookupError
            If an operator takes the result of a later or a missing one.
        """
        ops = [item.to_op() for item in self.ops]
        details = [tuple(sorted(item.items())) for item in self.details]
        operators = []
        for place, node in enumerate(self.nodes):
            if any(source >= place for source in node.sources):
                raise ValueError(f"the operator {node.name!r} takes the result of one that follows")
            sources, reads = tuple(dict.fromkeys(node.sources)), tuple(node.sources)
            known = details[node.details]
            operators.append(
                TracedOperator(node.name, ops[node.op], sources, node.last_call, known, node.parameters, reads)
            )
        outputs, inputs = (tuple(map(tuple, shapes)) for shapes in (self.outputs, self.inputs))
        return Graph(tuple(operators), self.n_calls, outputs, inputs, tuple(self.remarks))


def _plain(value: Any) -> Any:
    """Convert tuples to lists, as in a file."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


NETWORKS = DocumentFormat(
    "nni_latency.networks",
    1,
    "data set",
    "a data set of networks",
    "measure one with 'nni-latency dataset measure'.",
    model=NetworksDocument,
)


def networks_schema() -> dict[str, Any]:
    """Return the JSON schema of the header of a data set."""
    return NETWORKS.schema()
