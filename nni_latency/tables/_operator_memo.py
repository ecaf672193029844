"""`OperatorMemo`: every operator and network that was ever measured on one platform, so that none is measured again.

The file is JSON lines: a header that names the platform, then one `NetworkRuns` a line. Lines are only ever appended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nni_latency.documents import DocumentFormat, PlatformDocument, StrictDocument
from nni_latency.errors import FileFormatError
from nni_latency.files import reserved
from nni_latency.json_lines import append_lines, whole_part
from nni_latency.measurement import Protocol, Summary, quantile
from nni_latency.platforms import FACTS, Platform, check_same_platform
from nni_latency.tables._network_runs import NetworkRuns

MEMO = DocumentFormat("nni_latency.operator_memo", 1, "memo", "a memo of measurements", "one that does not exist yet.")

#: Names the folder of the memos, where it is not the user's cache.
FOLDER_VARIABLE = "NNI_LATENCY_CACHE"

#: How long to wait for another process that measures for the same memo [s].
_LONGEST_WAIT = 3600.0

#: Share of the places and processes in which an operator is met within its interval.
_ENCLOSED = 0.95


class _HeaderDocument(StrictDocument):
    format: Literal["nni_latency.operator_memo"]
    version: Literal[1]
    platform: PlatformDocument


class MemoWarning(UserWarning):
    """Warns that lines of a memo cannot be read, and which."""


@dataclass(frozen=True)
class CachedCost:
    """What a memo knows of an operator or a network.

    Parameters
    ----------
    value, low, high : float
        Mean over the places and processes where it was met [s], and the interval in which 95 % of those lie, each with
        its own interval.
    n_places : int
        In how many places of networks and processes it was met.
    n_samples : int
        Timed runs.
    alone : bool
        Whether it was never met in a network, but measured alone.
    """

    value: float
    low: float
    high: float
    n_places: int
    n_samples: int
    alone: bool = False


@dataclass
class _Index:
    """What the lines say by one protocol, over the time of the reference operator."""

    operators: dict[str, list[Summary]] = field(default_factory=dict)
    alone: dict[str, list[Summary]] = field(default_factory=dict)
    networks: dict[str, list[Summary]] = field(default_factory=dict)
    n_lines: int = 0


class OperatorMemo:
    """The measurements of one platform, in a file or in memory. Safe in several threads and processes.

    Times are taken over that of the reference operator, which is measured along with everything, so that a day on which
    the machine is slower does not show.

    Parameters
    ----------
    path : str, Path or None
        The file; it is made when something is added. None keeps everything in memory.
    platform : Platform
        Where everything in it is measured.

    Raises
    ------
    FileFormatError
        If the file is no memo, or of a newer version.
    MismatchError
        If the file belongs to another platform.
    """

    def __init__(self, path: str | os.PathLike[str] | None, platform: Platform) -> None:
        self.path = None if path is None else Path(path)
        self.platform = platform
        self._runs: list[NetworkRuns] = []
        self._indices: dict[tuple[float, ...], _Index] = {}
        self._lock = threading.RLock()
        # How far the file has been read [byte], and how many lines that were.
        self._read, self._n_lines = 0, 0
        self.refresh()

    def __repr__(self) -> str:
        return f"OperatorMemo({'in memory' if self.path is None else str(self.path)!r}, {self.platform.id})"

    def __len__(self) -> int:
        """Return how many runs of networks it holds."""
        return len(self._runs)

    @property
    def reference(self) -> float:
        """Median time of the reference operator over everything in it [s], for which all times are told.

        Raises
        ------
        InvalidValueError
            If nothing is in it.
        """
        return quantile([runs.reference for runs in self._runs], 0.5)

    def operator(self, key: str, protocol: Protocol) -> CachedCost | None:
        """Return what is known of an operator, by its key; what was met in networks goes before what was alone."""
        with self._lock:
            index = self._index(protocol)
            if key in index.operators:
                return self._remember(index.operators[key])
            return self._remember(index.alone[key], alone=True) if key in index.alone else None

    def network(self, digest: str, protocol: Protocol) -> CachedCost | None:
        """Return what is known of a whole network, by its digest."""
        with self._lock:
            found = self._index(protocol).networks.get(digest)
            return self._remember(found) if found else None

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Be the only one that measures for this memo, and know what others have added; waits for them.

        Raises
        ------
        BusyError
            If another process goes on measuring for an hour.
        OutputError
            If the file cannot be written.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            if self.path is not None:
                stack.enter_context(reserved(self.path, "measuring for", wait=_LONGEST_WAIT))
                self.refresh()
            yield

    def add(self, runs: Iterable[NetworkRuns]) -> None:
        """Remember measurements; only within `measuring`. They are on the disk when this returns.

        Raises
        ------
        OutputError
            If they cannot be written, the disk being full for example.
        """
        new = [item.rounded() for item in runs]
        if self.path is None:
            self._runs += new
            return
        lines = [] if self._read else [_header(self.platform)]
        lines += [item.content() for item in new]
        append_lines(self.path, lines, what="memo", after=self._read)
        self.refresh()

    def refresh(self) -> None:
        """Read what other processes have added.

        Warns
        -----
        MemoWarning
            If lines cannot be read; they are left out.
        """
        with self._lock:
            if self.path is None:
                return
            content = self._new_content(self.path)
            whole = whole_part(content)
            if content and not whole and not self._read and not _begins_header(content):
                # Never cut a stranger's file.
                self._check_header(content)
            lines = whole.split(b"\n")[:-1]
            if lines and not self._read:
                self._check_header(lines[0])
                lines = lines[1:]
                self._n_lines = 1
            self._take(lines)
            self._read += len(whole)

    def _new_content(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:
                    # Somebody has begun it anew.
                    self._read, self._n_lines = 0, 0
                    self._runs.clear()
                    self._indices.clear()
                file.seek(self._read)
                return file.read()
        except FileNotFoundError:
            self._read, self._n_lines = 0, 0
            return b""
        except OSError as error:
            raise FileFormatError(f"Cannot read the memo {str(path)!r}: {error.strerror or error}.") from error

    def _take(self, lines: Sequence[bytes]) -> None:
        bad: dict[int, str] = {}
        for number, line in enumerate(lines, start=self._n_lines + 1):
            try:
                self._runs.append(NetworkRuns.of(json.loads(line)))
            except (ValueError, RecursionError) as error:
                bad[number] = str(error)
        self._n_lines += len(lines)
        if bad:
            numbers = ", ".join(map(str, list(bad)[:8])) + (f" and {len(bad) - 8} more" if len(bad) > 8 else "")
            warnings.warn(
                f"The memo {str(self.path)!r} has lines that are no measurements, which are left out: {numbers}. "
                f"The first one: {next(iter(bad.values()))}",
                MemoWarning,
                stacklevel=4,
            )

    def _check_header(self, line: bytes) -> None:
        try:
            header = json.loads(line)
        except (ValueError, RecursionError):
            header = None
        content = MEMO.check(header, str(self.path))
        with MEMO.valid(str(self.path)):
            found = _HeaderDocument.model_validate(content).platform.to_platform()
        check_same_platform(found, self.platform, f"Using the memo {str(self.path)!r} here")

    def _index(self, protocol: Protocol) -> _Index:
        index = self._indices.setdefault((protocol.statistic, protocol.outlier, protocol.confidence), _Index())
        for runs in self._runs[index.n_lines :]:
            target = index.operators if runs.network else index.alone
            for key, part in zip(runs.operators, runs.summarise_parts(protocol), strict=True):
                target.setdefault(key, []).append(_over(part, runs.reference))
            if runs.network:
                whole = _over(runs.summarise_whole(protocol), runs.reference)
                index.networks.setdefault(runs.network, []).append(whole)
        index.n_lines = len(self._runs)
        return index

    def _remember(self, places: list[Summary], *, alone: bool = False) -> CachedCost:
        unit = self.reference
        value = math.fsum(place.value for place in places) / len(places)
        low = quantile([place.low for place in places], (1 - _ENCLOSED) / 2)
        high = quantile([place.high for place in places], (1 + _ENCLOSED) / 2)
        n_samples = sum(place.n_samples for place in places)
        return CachedCost(value * unit, min(low, value) * unit, max(high, value) * unit, len(places), n_samples, alone)


def default_memo_path(platform: Platform) -> Path:
    """Return where the memo of a platform lies by default.

    It is in the folder that the environment variable ``NNI_LATENCY_CACHE`` names, or else in the user's cache:
    ``$XDG_CACHE_HOME/nni_latency`` or ``~/.cache/nni_latency``. Beside the platform's id, the name holds a digest of
    all facts whose change makes numbers incomparable, so that a new version of torch begins a new memo.
    """
    facts = {fact.name: platform.facts[fact.name] for fact in FACTS if fact.identity and fact.name in platform.facts}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    return _folder() / f"{re.sub(r'[^A-Za-z0-9._-]', '-', platform.id)}.{digest}.jsonl"


def _folder() -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    # The specification of XDG asks to ignore what is not absolute.
    base = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "nni_latency"


def _header(platform: Platform) -> dict[str, Any]:
    return {**MEMO.head, "platform": platform.as_dict()}


def _begins_header(content: bytes) -> bool:
    """Whether it may be a header that was cut off."""
    begin = json.dumps({"format": MEMO.name}, separators=(",", ":")).encode()[:-1]
    return begin.startswith(content) or content.startswith(begin)


def _over(summary: Summary, reference: float) -> Summary:
    return Summary(
        summary.value / reference,
        summary.low / reference,
        summary.high / reference,
        summary.n_samples,
        summary.n_dropped,
    )
