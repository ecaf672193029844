"""Taking over what files of measurements hold that this package wrote before it had a database (JSON lines)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nni_latency.database._database import Database
from nni_latency.database._reading import Complaints
from nni_latency.database._rows import check_record, digest_of
from nni_latency.database._transfer import Copied, Incoming, add_incoming
from nni_latency.database._writing import Origin
from nni_latency.documents import DocumentFormat, PlatformDocument, StrictDocument
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.measurement import CampaignHeader, Protocol, Record
from nni_latency.platforms import Platform

_MEMO = DocumentFormat("nni_latency.operator_memo", 1, "memo", "a memo of measurements", "one that this package wrote.")


class _HeaderDocument(StrictDocument):
    format: Literal["nni_latency.operator_memo"]
    version: Literal[1]
    platform: PlatformDocument


def copy_memo(path: Path, target: Database) -> Copied:
    """Put the measurements of a memo into a database, each once.

    There is one campaign for each protocol. A line becomes a record whose round is the number of the line; its time is
    0, because a memo does not say when. The parts of a network are its operators, which its specification lists.

    Raises
    ------
    FileFormatError
        If the file is no memo.
    OutputError
        If the database cannot be written.

    Warns
    -----
    DatabaseWarning
        If lines make no sense; they are left out.
    """
    memo = _Memo(path, _read_platform(path))
    copied = Copied()
    # The file may be larger than the memory: it is read once for each protocol.
    for protocol in {digest_of(line.get("protocol")): line.get("protocol") for _, line in memo.lines()}.values():
        copied += add_incoming(memo.incoming(protocol), target)
    memo.complaints.warn()
    return copied


@dataclass
class _Memo:
    path: Path
    platform: Platform
    complaints: Complaints = field(init=False)

    def __post_init__(self) -> None:
        self.complaints = Complaints(str(self.path), "memo")

    def incoming(self, protocol: Mapping[str, Any] | None) -> Incoming:
        """Return the campaign of the lines of one protocol."""
        content = {"imported_from": _MEMO.name, "first_line": next((text for text, _ in self.lines()), "")}
        try:
            header = CampaignHeader("on-demand", content, self.platform, Protocol(**(protocol or {})))
        except (InvalidValueError, TypeError) as error:
            raise FileFormatError(f"The memo {str(self.path)!r} has a protocol that is not valid: {error}") from error
        subjects: dict[str, Mapping[str, Any]] = {}
        written = self.path.stat().st_mtime
        origin = Origin(f"memo-{header.identity}", "unknown", "unknown", "unknown", written, written, "ended")
        return Incoming(header, origin, self._records(protocol, subjects), subjects)

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the lines behind the header: a digest and the content; one that is no object is noted."""
        with self.path.open("rb") as file:
            next(file)
            for number, line in enumerate(file, start=2):
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError) as error:
                    self.complaints.add(f"line {number}", error)
                    continue
                if isinstance(content, dict):
                    yield hashlib.sha256(line).hexdigest()[:24], {**content, "line": number}
                else:
                    self.complaints.add(f"line {number}", "it must be an object")

    def _records(self, protocol: Any, subjects: dict[str, Mapping[str, Any]]) -> Iterator[Record]:
        for _, line in self.lines():
            if line.get("protocol") == protocol:
                try:
                    found = list(_network(line, subjects) if line["network"] else _alone(line, subjects))
                    for record in found:
                        check_record(record)
                except (ValueError, TypeError, LookupError, OverflowError) as error:
                    self.complaints.add(f"line {line['line']}", f"{type(error).__name__}: {error}")
                else:
                    yield from found


def _network(line: Mapping[str, Any], subjects: dict[str, Mapping[str, Any]]) -> Iterator[Record]:
    """Make the record of a network, whose parts are its operators."""
    digest = str(line["network"])
    operators = [str(key) for key in line["operators"]]
    record = _record(line, digest, line["whole"], zip(*line["parts"], strict=True))
    specification = {"operators": operators, "n_calls": [int(count) for count in line["n_calls"]]}
    if len(line["parts"]) != len(operators):
        raise InvalidValueError("there must be as many operators as parts")
    subjects.setdefault(digest, {"key": digest, "kind": "network", "digest": digest, "specification": specification})
    yield record


def _alone(line: Mapping[str, Any], subjects: dict[str, Mapping[str, Any]]) -> Iterator[Record]:
    """Make the records of operators that were measured alone."""
    for key, times in zip(line["operators"], line["parts"], strict=True):
        subjects.setdefault(key, {"key": key, "kind": "operator", "digest": key, "specification": {}})
        yield _record(line, key, times, ())


def _record(line: Mapping[str, Any], subject: str, whole: Any, parts: Any) -> Record:
    return Record.of(
        {
            "reference": line["reference"],
            "parts": list(parts),
            "samples": {"latency": whole},
            "subjects": [subject],
            "round": line["line"],
            "process": 0,
            "duration": 0.0,
            "at": 0.0,
        }
    ).rounded()


def _read_platform(path: Path) -> Platform:
    try:
        with path.open("rb") as file:
            line = next(file, b"")
    except OSError as error:
        raise FileFormatError(f"Cannot read the memo {str(path)!r}: {error.strerror or error}.") from error
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    content = _MEMO.check(header, str(path))
    with _MEMO.valid(str(path)):
        return _HeaderDocument.model_validate(content).platform.to_platform()
