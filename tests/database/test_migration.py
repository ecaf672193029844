# SPDX-License-Identifier: Apache-2.0
"""A kept database is read, none is left halfway, and one of another version is refused."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from campaigns import NOBODY, fill, make_header, make_record, run_in_processes

import nni_latency.database._schema as schema
from nni_latency.database import DatabaseStore
from nni_latency.errors import FileFormatError, LatencyError

DATA = Path(__file__).parent / "data"


def test_newest_migration_is_the_version_of_the_tables():
    folder = Path(schema.__file__).with_name("migrations")
    assert ScriptDirectory(str(folder)).get_current_head() == str(schema.VERSION)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.sqlite")), ids=lambda path: path.stem)
def test_kept_database_has_the_tables_of_a_new_one_and_is_gone_on_with(path, tmp_path):
    store = DatabaseStore(shutil.copy(path, tmp_path / "old.sqlite"))
    with store.database.reading() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata) == []
    (found,) = store.campaigns()
    assert found.records == tuple(make_record(number).rounded() for number in range(3))
    assert found.subjects["a"]["digest"] == "digest-a"
    assert found.failures[0].reason == "it raised"
    assert found.conditions == {"before": {"load": 0.5}}
    assert fill(store, make_header(), 1, begin=3) == found.identifier
    assert [len(item.records) for item in store.campaigns()] == [4]
    store.close()


@pytest.mark.parametrize("version", ["99", "0", "ae1027a6acf"])
def test_other_version_is_one_sentence_and_left_alone(location, version):
    store = DatabaseStore(location)
    with store.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{version}'")
    store.close()
    sentence = (
        rf"^The database '.+' was written by another version of nni_latency: its tables have version {version}, this "
        r"one reads version \d+\. Move the database away, or use the version that wrote it\.$"
    )
    with pytest.raises(FileFormatError, match=sentence):
        DatabaseStore(location)


def test_database_that_does_not_say_its_version_is_one_sentence(tmp_path):
    DatabaseStore(str(tmp_path / "m.sqlite")).close()
    with sqlite3.connect(tmp_path / "m.sqlite") as connection:
        connection.execute(f"DELETE FROM {schema.VERSION_TABLE}")
    connection.close()
    with pytest.raises(FileFormatError, match=r"m\.sqlite' is damaged: it does not say which version it has\.$"):
        DatabaseStore(str(tmp_path / "m.sqlite"))


def test_table_that_is_gone_is_one_sentence(tmp_path):
    store = DatabaseStore(str(tmp_path / "m.sqlite"))
    with store.database.writing() as connection:
        connection.exec_driver_sql("DROP TABLE records")
    with pytest.raises(FileFormatError, match=r"is damaged: no such table: records\. Take it from a backup"):
        fill(store, make_header(), 1)


def test_many_processes_make_one_database(location):
    run_in_processes([(DatabaseStore, location)] * 6)
    store = DatabaseStore(location)
    fill(store, make_header(), 1)
    store.close()


def _try(path, sent):
    """Read and write as a user who is not root, and send what comes of it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        store = DatabaseStore(path)
        sent.send([len(item.records) for item in store.campaigns()])
        fill(store, make_header(), 1, begin=1)
    except LatencyError as error:
        sent.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("mode", "expected"), [(0o444, [[1], "OutputError: Cannot write"]), (0o000, ["OutputError: Cannot read"])]
)
def test_file_without_permission_is_one_sentence(mode, expected):
    # Root may do everything, and pytest's folders are closed to anyone else.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        store = DatabaseStore(str(Path(folder) / "m.sqlite"))
        fill(store, make_header(), 1)
        store.close()
        for file in Path(folder).iterdir():
            file.chmod(mode)
        received, sent = multiprocessing.Pipe(duplex=False)
        run_in_processes([(_try, str(Path(folder) / "m.sqlite"), sent)])
    sent.close()
    assert [received.recv() for _ in expected[:-1]] == expected[:-1]
    sentence = received.recv()
    assert sentence.startswith(expected[-1])
    assert "\n" not in sentence
    with pytest.raises(EOFError):
        received.recv()
