"""The file of a data set: a ZIP archive whose members are read when they are asked for."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from nni_latency.datasets._document import NETWORKS, GraphDocument, NetworksDocument, RunDocument
from nni_latency.documents import SavedFile
from nni_latency.errors import FileFormatError
from nni_latency.files import replacing
from nni_latency.operators import Graph

#: Names of the members.
HEADER, CARD = "dataset.json", "card.md"

#: Bytes of a member at most.
_MOST_BYTES = 2**28

#: Graphs that are kept in memory.
_KEPT_GRAPHS = 4096

#: The time that all members have, so that equal data sets are equal files.
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: A kernel: the numbers of its operators, and its time [s].
Part = tuple[tuple[int, ...], float]


class Archive:
    """The members of a data set's file. Safe in several threads.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    FileFormatError
        Here and in all methods, if the file is absent, truncated, altered, of another kind or of another version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.runs: tuple[RunDocument, ...] = ()
        self.graph = lru_cache(_KEPT_GRAPHS)(self._graph)
        self.parts = lru_cache(None)(self._parts)

    def header(self, file: SavedFile) -> NetworksDocument:
        """Return what is in the file, which is not opened again if it was read."""
        data = file.data if file.member == HEADER else self._read(HEADER)
        document: NetworksDocument = NETWORKS.parse_json(data, str(self.path))
        self.runs = tuple(document.runs)
        return document

    def onnx(self, name: str) -> bytes:
        """Read the ONNX file of a network, without its weights."""
        return self._read(onnx_member(name))

    def card(self) -> str:
        """Read what the file says of how it was measured."""
        return self._read(CARD).decode(errors="replace")

    def _graph(self, key: str) -> Graph:
        content = self._json(f"graphs/{key}.json")
        with NETWORKS.valid(str(self.path)):
            return GraphDocument.model_validate(content).to_graph()

    def _parts(self, run: int) -> Mapping[int, tuple[Part, ...]]:
        """Read what the kernels of networks took in a run, by the place of the network."""
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
        with self._open() as archive:
            return set(archive.namelist())

    def _read(self, name: str) -> bytes:
        with self._open() as archive:
            if name not in archive.namelist():
                raise FileFormatError(
                    f"{str(self.path)!r} is not a data set of networks, or not a whole one: it lacks {name!r}. "
                    "Name another file, or measure one with 'nni-latency dataset measure'."
                )
            if archive.getinfo(name).file_size > _MOST_BYTES:
                raise FileFormatError(f"The data set {str(self.path)!r} is not valid: {name!r} is too large.")
            try:
                return archive.read(name)
            except Exception as error:  # zipfile and zlib have errors of their own
                raise FileFormatError(f"The data set {str(self.path)!r} is damaged at {name!r}: {error}.") from error

    def _open(self) -> zipfile.ZipFile:
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
    """Write a data set, whole or not at all.

    Parameters
    ----------
    path : str or Path
        Where to.
    header : mapping
        The content of `NetworksDocument`.
    graphs : mapping of str to Graph
        By key.
    parts : mapping of int to mapping
        By run and network, its kernels.
    onnx : mapping of str to bytes
        By name of a network, its ONNX file without weights.
    card : str
        How it was measured, in Markdown.

    Raises
    ------
    InvalidValueError
        If something of it would not be read again.
    OutputError
        If it cannot be written.
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
    """Return where the ONNX file of a network lies in a data set, in NNLQP's layout, too."""
    return f"onnx/{name}.onnx"


def _parts_member(run: int) -> str:
    return f"parts/{run}.json"
