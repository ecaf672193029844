# SPDX-License-Identifier: Apache-2.0
"""What the database promises beyond the contract of a store: round trips, crashes, crowds, and sentences."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from campaigns import KEYS, fill, make_header, make_record, run_in_processes, start
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from nni_latency.database import (
    DatabaseStore,
    DatabaseWarning,
    _database,
    copy_database,
    default_location,
    export_samples,
    find_subjects,
    open_store,
)
from nni_latency.errors import BusyError, FileFormatError, InvalidValueError, LatencyError, OutputError
from nni_latency.measurement import MemoryStore, Record, Subject
from nni_latency.platforms import Platform

_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_seconds = st.floats(0, 1e6)
_times = st.lists(_seconds, max_size=4).map(tuple)


@settings(max_examples=40)
@given(
    reference=_seconds,
    parts=st.lists(_times, max_size=3).map(tuple),
    samples=st.dictionaries(st.text(), _times, max_size=3),
    subjects=st.lists(st.sampled_from(KEYS), max_size=4).map(tuple),
    numbers=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    duration=_seconds,
    at=st.floats(0, 4e9),
    content=st.dictionaries(st.text(), _plain, max_size=3),
)
def test_records_and_headers_come_out_as_they_went_in(
    hypothesis_store, reference, parts, samples, subjects, numbers, duration, at, content
):
    header = make_header(content=content)
    record = Record(reference, parts, samples, subjects, *numbers, duration, at)
    with hypothesis_store.campaign(header, fresh=True) as log:
        for key in KEYS:
            log.admit(Subject(key, dict, specification=content))
        log.append(record)
    (found,) = hypothesis_store.campaigns(identifier=log.identifier)
    assert found.records == (record.rounded(),)
    assert found.header.content == content
    assert found.header.identity == header.identity
    assert found.subjects["a"]["specification"] == content


@pytest.fixture(scope="module")
def hypothesis_store(tmp_path_factory):
    store = DatabaseStore(str(tmp_path_factory.mktemp("hypothesis") / "m.sqlite"))
    yield store
    store.close()


def _write_and_read(location, number):
    store = DatabaseStore(location)
    for begin in range(0, 10, 5):
        fill(store, make_header(content={"writer": number}), 5, begin=begin)
        assert any(item.header.content["writer"] == number for item in store.campaigns())


@pytest.mark.slow
def test_sixteen_processes_lose_nothing(location):
    run_in_processes([(_write_and_read, location, number) for number in range(16)])
    store = DatabaseStore(location)
    found = {item.header.content["writer"]: item.records for item in store.campaigns()}
    store.close()
    assert found == {number: tuple(make_record(at).rounded() for at in range(10)) for number in range(16)}


def _write_on(location, sent):
    store = DatabaseStore(location)
    with store.campaign(make_header()) as log:
        for key in KEYS:
            log.admit(Subject(key, dict))
        for number in range(10**6):
            log.append(make_record(number))
            sent.send(number)


def test_kill_loses_at_most_the_visit_in_flight_and_frees_the_campaign(location):
    received, sent = multiprocessing.Pipe(duplex=False)
    writer = start(_write_on, location, sent)
    sent.close()
    assert [received.recv() for _ in range(21)] == list(range(21))
    store = DatabaseStore(location)
    with pytest.raises(BusyError, match=r"Another process is measuring the same for the database"):
        fill(store, make_header(), 1)
    writer.kill()
    last = 20
    with contextlib.suppress(EOFError):
        while True:
            last = received.recv()
    writer.join()
    with store.campaign(make_header(), wait=60.0) as log:
        numbers = [record.round for record in log.records]
    store.close()
    assert numbers == list(range(len(numbers)))
    assert last <= numbers[-1] <= last + 1


@pytest.mark.slow
def test_store_works_in_many_threads_and_after_a_fork(store):
    header = make_header(content={"writer": "parent"})
    fill(store, header, 1)
    threads = [
        threading.Thread(target=fill, args=(store, make_header(content={"writer": number}), 3)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run_in_processes([(fill, store, make_header(content={"writer": "child"}), 2)])
    fill(store, header, 1, begin=1)
    counts = {item.header.content["writer"]: len(item.records) for item in store.campaigns()}
    assert counts == {"parent": 2, "child": 2, **dict.fromkeys(range(8), 3)}


def test_header_keeps_what_a_platform_is_and_who_measured(store):
    fill(store, make_header(platform=Platform("device-2", facts={"torch": "2.1", "runtime.provider": "cpu"})), 1)
    (found,) = store.campaigns()
    assert found.header.platform.facts == {"torch": "2.1", "runtime.provider": "cpu"}
    with store.database.reading() as connection:
        row = connection.execute(text("SELECT * FROM campaigns")).one()
    assert row.user
    assert row.host
    assert row.package_version
    assert row.begun <= row.written
    assert row.status == "ended"
    assert (row.n_records, row.n_samples) == (1, 3)


def test_interrupted_campaign_says_so(store):
    with pytest.raises(KeyboardInterrupt), store.campaign(make_header()):
        raise KeyboardInterrupt
    with store.database.reading() as connection:
        assert connection.execute(text("SELECT status FROM campaigns")).scalar() == "interrupted"


def test_graph_of_a_network_is_kept_once(store):
    graph = {"nodes": [1, 2]}
    for number in range(3):
        with store.campaign(make_header(content={"n": number})) as log:
            log.admit(Subject("net", dict, specification={"graph": graph, "n": number}))
    found = [item.subjects["net"]["specification"] for item in store.campaigns()]
    assert found == [{"graph": graph, "n": number} for number in range(3)]
    with store.database.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM graphs")).scalar() == 1


@pytest.mark.slow
def test_record_of_an_unknown_subject_is_refused(store):
    with store.campaign(make_header()) as log:
        with pytest.raises(InvalidValueError, match=r"The subject 'a' must be admitted before a record names it"):
            log.append(make_record(0))
        assert log.records == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_record_of_impossible_numbers_is_refused(store, value):
    with store.campaign(make_header()) as log:
        for key in KEYS:
            log.admit(Subject(key, dict))
        with pytest.raises(InvalidValueError, match=r"'latency' must hold finite numbers that are not negative"):
            log.append(make_record(0, samples={"latency": (value,)}))


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("samples", '{"latency":[-0.5]}', r"'latency' must hold finite numbers that are not negative, and holds -0\.5"),
        ("samples", '{"latency":[NaN]}', r"holds nan"),
        ("samples", "{broken", r"a field is of another type \(JSONDecodeError"),
        ("samples", "[]", r"a field is of another type \(AttributeError"),
        ("subjects", "[7]", r"its campaign has no subject 7"),
        ("subjects", "7", r"a field is of another type \(TypeError"),
        ("parts", '[["x"]]', r"a field is of another type \(ValueError"),
        ("reference", -1.0, r"'reference' must hold finite numbers"),
    ],
)
def test_record_edited_by_hand_is_left_out_and_named(store, column, value, reason):
    fill(store, make_header(), 3)
    with store.database.writing() as connection:
        connection.execute(text(f"UPDATE records SET {column} = :value WHERE round = 1"), {"value": value})
        number = connection.execute(text("SELECT id FROM records WHERE round = 1")).scalar()
    with pytest.warns(DatabaseWarning, match=rf"are left out: record {number}\. The first one: .*{reason}"):
        (found,) = store.campaigns()
    assert [record.round for record in found.records] == [0, 2]
    with pytest.warns(DatabaseWarning, match=rf"record {number}"), store.campaign(make_header()) as log:
        assert [record.round for record in log.records] == [0, 2]


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ("UPDATE protocols SET content = '{\"rounds\": -1}'", "the campaign itself"),
        ("UPDATE platforms SET content = '[]'", "the campaign itself"),
        ("UPDATE campaigns SET content = '{'", "the campaign itself"),
    ],
)
def test_campaign_edited_by_hand_is_left_out_and_named(store, edit, place):
    fill(store, make_header(), 1)
    with store.database.writing() as connection:
        connection.exec_driver_sql(edit)
    with pytest.warns(DatabaseWarning, match=rf"left out: {place}\. The first one: its header cannot be read"):
        assert list(store.campaigns()) == []


@pytest.mark.parametrize("edit", ["specification = '{'", "specification = '3'"])
def test_specification_edited_by_hand_is_named_and_its_records_stay(store, edit):
    fill(store, make_header(), 1)
    with store.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE subjects SET {edit} WHERE number = 0")
    with pytest.warns(DatabaseWarning, match=r"specification of subject 0"):
        (found,) = store.campaigns()
    assert len(found.records) == 1
    assert found.subjects["a"]["specification"] == {}


def test_full_disk_is_one_sentence_and_keeps_what_was_before(tmp_path):
    store = DatabaseStore(str(tmp_path / "m.sqlite"))
    with store.campaign(make_header()) as log:
        log.admit(Subject("a", dict))
        log.append(make_record(0, subjects=("a",)))

        @event.listens_for(store.database._engine, "checkout")
        def _full(connection, _record, _proxy):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={pages}")

        large = make_record(1, subjects=("a",), samples={"latency": (0.123456,) * 10_000})
        with pytest.raises(OutputError, match=r"^Cannot write the database '.*m\.sqlite': the disk is full\.$"):
            log.append(large)
        assert len(log.records) == 1
    assert [len(item.records) for item in DatabaseStore(str(tmp_path / "m.sqlite")).campaigns()] == [1]


def test_file_that_another_program_keeps_locked_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("nni_latency.database._database._PATIENCE", 0.1)
    store = DatabaseStore(str(tmp_path / "m.sqlite"))
    with store.campaign(make_header()) as log:
        other = sqlite3.connect(tmp_path / "m.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputError, match=r"Cannot write the database '.*': another process has kept it locked"):
            log.admit(Subject("a", dict))
        other.execute("ROLLBACK")
        other.close()
        log.admit(Subject("a", dict))
    assert list(next(store.campaigns()).subjects) == ["a"]


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 30, b"{}\n"])
def test_file_that_is_no_database_is_left_as_it_was(tmp_path, content):
    path = tmp_path / "m.sqlite"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"m\.sqlite' is not a database\. Name another file"):
        DatabaseStore(str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "read",
    [
        lambda store, _: list(store.campaigns()),
        lambda store, folder: export_samples(store.database, folder / "samples.csv"),
        lambda store, _: list(find_subjects(store.database)),
        lambda store, folder: copy_database(store.database, DatabaseStore(folder / "copy.sqlite").database),
    ],
    ids=["campaigns", "export", "subjects", "copy"],
)
def test_a_value_that_sqlite_cannot_decode_is_an_error_of_the_file(tmp_path, read):
    with contextlib.closing(DatabaseStore(tmp_path / "m.sqlite")) as store:
        fill(store, make_header(), 1)
        with sqlite3.connect(tmp_path / "m.sqlite") as other:
            other.execute("UPDATE records SET samples = CAST(x'5b80' AS TEXT)")
        other.close()
        with pytest.raises(LatencyError, match=r"^(Cannot read|The) .*database .*m\.sqlite"):
            read(store, tmp_path)


def test_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "m.sqlite") as other:
        other.execute("CREATE TABLE photos (id INTEGER)")
    other.close()
    with pytest.raises(FileFormatError, match=r"is a database of another program: it holds the table 'photos'"):
        DatabaseStore(str(tmp_path / "m.sqlite"))


def test_folder_and_place_below_a_file_are_refused(tmp_path):
    with pytest.raises(OutputError, match=r"Cannot read the database '.*': the file or its folder cannot be opened"):
        DatabaseStore(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write the database '.*m\.sqlite': (File exists|Not a directory)"):
        DatabaseStore(str(tmp_path / "file" / "m.sqlite"))


def test_missing_file_is_refused_where_it_is_only_read(tmp_path):
    with pytest.raises(FileFormatError, match=r"Cannot read the database '.*m\.sqlite': there is no such file"):
        DatabaseStore(str(tmp_path / "m.sqlite"), create=False)
    assert list(tmp_path.iterdir()) == []


def test_server_that_is_not_there_is_one_sentence_without_the_password(tmp_path):
    url = f"postgresql://me:secret@/measurements?host={tmp_path}"
    with pytest.raises(OutputError, match=r"^Cannot read the database 'postgresql://me:\*\*\*@") as caught:
        DatabaseStore(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("location", ["mysql://host/name", "sqlite://", "sqlite:///:memory:", "://", "http://x"])
def test_location_of_another_kind_is_refused(location):
    with pytest.raises(InvalidValueError, match=r"A database must be a file, 'memory', or a URL that begins with"):
        open_store(location)


def test_open_store_takes_the_default_the_variable_and_memory(tmp_path, monkeypatch):
    assert isinstance(open_store("memory"), MemoryStore)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_location() == str(tmp_path / "data" / "nni_latency" / "measurements.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_location().startswith(os.environ["HOME"])
    monkeypatch.setenv("NNI_LATENCY_DATABASE", f"sqlite:///{tmp_path}/deep/named.sqlite")
    fill(open_store(), make_header(), 1)
    assert (tmp_path / "deep" / "named.sqlite").exists()
    assert repr(open_store(str(tmp_path / "deep" / "named.sqlite"))).endswith("named.sqlite')")


def test_threads_that_begin_at_once_share_the_connections_of_one_database(tmp_path, monkeypatch):
    """Making connections takes long enough here that every thread would find none."""
    made, real = [], _database._make_engine

    def slow(url):
        time.sleep(0.05)
        made.append(real(url))
        return made[-1]

    database = DatabaseStore(str(tmp_path / "m.sqlite")).database
    database.close()
    database._engines.clear()
    monkeypatch.setattr(_database, "_make_engine", slow)
    barrier = threading.Barrier(8)

    def begin(_number):
        barrier.wait()
        return database._engine

    with ThreadPoolExecutor(8) as pool:
        engines = list(pool.map(begin, range(8)))
    assert [len(made), len(set(map(id, engines)))] == [1, 1]
    database.close()


@pytest.fixture
def connections():
    """Return which connections SQLAlchemy opens, and which it closes."""
    opened, closed = [], []
    listeners = {
        "connect": lambda connection, _record: opened.append(id(connection)),
        "close": lambda connection, _record: closed.append(id(connection)),
    }
    for name, listener in listeners.items():
        event.listen(Pool, name, listener)
    yield opened, closed
    for name, listener in listeners.items():
        event.remove(Pool, name, listener)


def test_store_that_is_dropped_closes_its_connections(tmp_path, connections):
    opened, closed = connections
    store = open_store(tmp_path / "d.sqlite")
    fill(store, make_header(), 1)
    del store
    gc.collect()
    assert opened
    assert sorted(opened) == sorted(closed)
