# SPDX-License-Identifier: Apache-2.0
"""Raw samples as a file that any other program reads: one row a sample, as Parquet or CSV."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from nni_latency.database._database import Database
from nni_latency.database._reading import Complaints, read_each, read_records, read_subjects, select_campaigns
from nni_latency.errors import InvalidValueError
from nni_latency.files import check_writable, replacing
from nni_latency.imports import require
from nni_latency.measurement import Record

#: Columns of an export and what stands in them: text, whole numbers or numbers.
COLUMNS: dict[str, str] = {
    "platform": "string",
    "kind": "string",
    "campaign": "string",
    "subject": "string",
    "digest": "string",
    "metric": "string",
    "part": "int32",
    "run": "int32",
    "round": "int32",
    "process": "int32",
    "at": "float64",
    "reference": "float64",
    "value": "float64",
}

#: Between the keys of subjects that ran one after another.
_JOINT = " + "

#: Rows that are written at once.
_CHUNK = 50_000

_Sample = tuple[Any, ...]


def export_samples(database: Database, path: Path, *, platform: str | None = None, kind: str | None = None) -> int:
    """Write raw samples into a file, whole or not at all; return how many.

    Parameters
    ----------
    database : Database
        Where they are.
    path : Path
        Its ending says how: ``.parquet`` or ``.csv``.
    platform, kind : str, optional
        Only those of a platform's id, or of campaigns of a kind.

    Raises
    ------
    InvalidValueError
        If the ending is another one.
    MissingDependencyError
        If Parquet is asked for and pyarrow is absent.
    OutputError
        If the file cannot be written.

    Warns
    -----
    DatabaseWarning
        If rows make no sense; they are left out.
    """
    writers = {".parquet": _write_parquet, ".csv": _write_csv}
    if path.suffix not in writers:
        raise InvalidValueError(f"The file must end in {' or '.join(writers)}. Got {str(path)!r}.")
    check_writable(path)
    with replacing(path) as temporary:
        return writers[path.suffix](temporary, _samples(database, platform, kind))


def _samples(database: Database, platform: str | None, kind: str | None) -> Iterator[_Sample]:
    for reading in read_each(database, select_campaigns(platform=platform, kind=kind)):
        with reading as (connection, row, complaints):
            yield from _of_campaign(connection, row, complaints)


def _of_campaign(connection: Connection, row: Row[Any], complaints: Complaints) -> Iterator[_Sample]:
    subjects = read_subjects(connection, row.id, complaints)
    digests = {subject["key"]: subject["digest"] for subject in subjects.values()}
    keys = {number: subject["key"] for number, subject in subjects.items()}
    whose = (row.platform_name, row.kind, row.identifier)
    for record in read_records(connection, row.id, keys, complaints):
        when = (record.round, record.process, record.at, record.reference)
        for subject, digest, metric, part, run, value in _of_record(record, digests):
            yield (*whose, subject, digest, metric, part, run, *when, value)


def _of_record(record: Record, digests: dict[str, str]) -> Iterator[_Sample]:
    """Give subject, digest, metric, part, run and value of every sample."""
    whole = _JOINT.join(record.subjects)
    digest = digests[whole] if len(record.subjects) == 1 else ""
    for metric, values in record.samples.items():
        for run, value in enumerate(values):
            yield whole, digest, metric, None, run, value
    for run, parts in enumerate(record.parts):
        # Where every subject is one part, the part is that subject.
        apart = len(parts) == len(record.subjects)
        for part, value in enumerate(parts):
            key = record.subjects[part] if apart else whole
            yield key, digests.get(key, ""), "latency", part, run, value


def _write_csv(path: Path, samples: Iterator[_Sample]) -> int:
    written = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for sample in samples:
            writer.writerow(sample)
            written += 1
    return written


def _write_parquet(path: Path, samples: Iterator[_Sample]) -> int:
    arrow = require("pyarrow", "Writing Parquet", "nni_latency[parquet]")
    parquet = require("pyarrow.parquet", "Writing Parquet", "nni_latency[parquet]")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    written = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while chunk := list(itertools.islice(samples, _CHUNK)):
            columns = zip(*chunk, strict=True)
            arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            written += len(chunk)
    return written
