# SPDX-License-Identifier: Apache-2.0
"""Files of any kind: what a file is, read once, and which kind reads it."""

from __future__ import annotations

import os
import pkgutil
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from nni_latency.errors import FileFormatError
from nni_latency.files import naming, readable

#: A format where it is JSON, and where it is JSON within JSON, as in the metadata of safetensors.
_FORMAT = re.compile(rb'\\?"format\\?"\s*:\s*\\?"(?P<name>nni_latency\.\w+)\\?"')

#: How an archive begins; and where the JSON of a file of tensors begins, after its length.
_ARCHIVE, _LENGTH = b"PK\x03\x04", 8

#: Bytes of the first member of an archive, or of the header of tensors, at most.
_MOST_BYTES = 2**28


class SavedFile(os.PathLike[str]):
    """A file, read when its content is asked for first and never again.

    Of an archive the first member is read, of a file of tensors the header: the rest is left to what knows the kind.

    Parameters
    ----------
    path : str or path
        The file. It may be absent, which whoever loads it says.

    Examples
    --------
    >>> from nni_latency.tables import shipped_tables
    >>> SavedFile(next(iter(shipped_tables().values()))).kind
    'nni_latency.lookup_table'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> SavedFile:
        """Return the file of a path, or the file itself, with what was read of it."""
        return path if isinstance(path, SavedFile) else cls(path)

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def data(self) -> bytes:
        """What says what the file is: all of it, the first member of an archive, or the header of tensors.

        Raises
        ------
        OSError
            If the file cannot be read.
        """
        return self._read[1]

    @property
    def member(self) -> str:
        """Name of the member of an archive that was read; empty for other files, and for those that cannot be read."""
        try:
            return self._read[0]
        except OSError:
            return ""

    @cached_property
    def kind(self) -> str:
        """The format that the file says it has, even where it is damaged; empty if it says nothing."""
        try:
            found = _FORMAT.search(self.data)
        except OSError:
            return ""
        return found["name"].decode() if found else ""

    @property
    def says_nothing(self) -> bool:
        """Whether it can be read and does not say what it is."""
        try:
            return bool(self._read) and not self.kind
        except OSError:
            return False

    @cached_property
    def _read(self) -> tuple[str, bytes]:
        """Name of the member, and the bytes that say what the file is."""
        with self.path.open("rb") as file:
            beginning = file.read(_LENGTH + 1)
            if beginning.startswith(_ARCHIVE):
                return _first_member(file)
            length = int.from_bytes(beginning[:_LENGTH], "little")
            is_tensors = beginning[_LENGTH:] == b"{" and length < _MOST_BYTES
            return "", beginning[_LENGTH:] + file.read(length - 1) if is_tensors else beginning + file.read()


def _first_member(file: BinaryIO) -> tuple[str, bytes]:
    """Return name and content of the first member of an archive; nothing of one that is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            first = next(iter(archive.infolist()), None)
            if first is not None and first.file_size <= _MOST_BYTES:
                return first.filename, archive.read(first)
    except Exception:  # zipfile and zlib have errors of their own; whoever loads the archive says what is wrong
        pass
    return "", b""


#: What loads a kind of file, by the format that the file says it has, as ``module:name``: it is imported when a file of
#: the kind is loaded, so that loading a table imports no predictor. A file that cannot be read is taken for the first.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "nni_latency.lookup_table": "nni_latency.tables:LookupTable.load",
        "nni_latency.acts": "nni_latency.estimators:ActsEstimator.load",
        "nni_latency.transfer": "nni_latency.estimators:TransferEstimator.load",
        "nni_latency.benchmark_points": "nni_latency.micro_benchmarks:BenchmarkPoints.load",
        "nni_latency.fusion": "nni_latency.fusion:read_rules",
        "nni_latency.kernels": "nni_latency.loading:load_kernel_predictors",
        "nni_latency.kernel_prior": "nni_latency.kernels:Prior.load",
        "nni_latency.energy": "nni_latency.energy:PortableModel.load",
        "nni_latency.graph_predictor": "nni_latency.graphs:GraphPredictor.load",
        "nni_latency.networks": "nni_latency.datasets:load_networks",
        "nni_latency.operator_profile": "nni_latency.profiling:OperatorProfile.load",
        "nni_latency.validation": "nni_latency.validation:read_validation",
        "nni_latency.search": "nni_latency.cli:read_search",
    }
)


def load(path: str | os.PathLike[str], kinds: Sequence[str] = tuple(KINDS)) -> Any:
    """Load a file of this package, whatever its kind. It is read once.

    Parameters
    ----------
    path : str or path
        The file, or a `SavedFile`.
    kinds : sequence of str, optional
        Kinds that it may be of; by default all of `KINDS`. A file of another kind is refused as none of the first.

    Returns
    -------
    object
        What its kind is loaded as: a table, an estimator, a predictor, a data set, a profile, a validation ...

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of another version.

    Examples
    --------
    >>> from nni_latency.tables import shipped_tables
    >>> type(load(next(iter(shipped_tables().values())))).__name__
    'LookupTable'
    """
    file = SavedFile.of(path)
    with naming(file.path), readable(file.path, "a file of nni_latency"):
        if len(kinds) > 1 and file.says_nothing:
            raise FileFormatError(
                f"{str(file)!r} is not a file of nni_latency: it does not say what it holds. If it was cut off while "
                "it was copied, take it again from where it came."
            )
        loader = pkgutil.resolve_name(KINDS[file.kind if file.kind in kinds else kinds[0]])
        return loader(file)
