# SPDX-License-Identifier: Apache-2.0
"""The contract suite of stores."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from nni_latency.errors import BusyError
from nni_latency.measurement import CampaignHeader, Failure, Fallback, Protocol, Record, Store, StoredCampaign, Subject
from nni_latency.platforms import Platform
from nni_latency.testing._contracts import expect

_HERE = Platform("contract-device", facts={"torch": "2.0"})
_KEYS = ("stem", "head")


def check_store(make_store: Callable[[], Store]) -> None:
    """Check that a store keeps the contract of `Store`.

    Parameters
    ----------
    make_store : callable
        Makes an empty store; called several times.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    for check in (
        _check_round_trip,
        _check_going_on,
        _check_selection,
        _check_holding,
        _check_version,
        _check_failing,
        _check_known,
    ):
        store = make_store()
        expect(isinstance(store, Store), f"{type(store).__name__} must be a subclass of Store.")
        expect(list(store.campaigns()) == [], "A store that was just made must have no campaigns.")
        try:
            check(store)
        finally:
            store.close()


def _check_round_trip(store: Store) -> None:
    header = _header(content={"layers": [["a", 1], ["b", 2.5]], "nothing": None, "pair": (1, 2)})
    records = [_record(number) for number in range(3)]
    failure = Failure("broken", "RuntimeError: 'it' raised\n\x00 \ud800 \N{SNOWMAN}")
    with store.campaign(header) as log:
        for subject in _subjects():
            log.admit(subject)
            log.admit(subject)
        for record in records:
            log.append(record)
        log.fail(failure)
        log.note("before", {"load": 0.5, "remarks": ["busy"]})
        log.note("before", {"load": 0.25, "remarks": []})
        log.note("after", {"load": 1.0})
        expect(log.records == [record.rounded() for record in records], "A log must list its records, rounded.")
    found = _only(store)
    expect(found.identifier == log.identifier, "A campaign must keep its identifier.")
    expect(found.header.identity == header.identity, "A header must keep its identity.")
    expect(_plain(found.header.content) == _plain(header.content), "A header must keep its content.")
    expect(found.header.protocol == header.protocol, "A header must keep its protocol.")
    expect(found.header.platform.as_dict() == header.platform.as_dict(), "A header must keep its platform's facts.")
    expect(found.records == tuple(record.rounded() for record in records), "Records must be those that were appended.")
    described = {subject.key: _plain(subject.record) for subject in _subjects()}
    expect(_plain(found.subjects) == described, "Subjects must be those that were admitted.")
    expect([item.subject for item in found.failures] == ["broken"], "Failures must be those that were kept.")
    expect("RuntimeError: 'it' raised" in found.failures[0].reason, "A failure must keep its reason.")
    expect(found.conditions["before"]["load"] == 0.25, "The latest conditions of a moment must count.")
    expect(found.conditions["after"] == {"load": 1.0}, "Conditions of every moment must be kept.")


def _check_going_on(store: Store) -> None:
    header, longer = _header(), _header(protocol=Protocol(time_budget=500.0, rounds=7))
    with store.campaign(header) as log:
        _fill(log, 2)
    first = log.identifier
    with store.campaign(longer) as log:
        expect(log.identifier == first, "A campaign with a longer budget must go on with the same one.")
        expect(len(log.records) == 2, "A log that goes on must know the records before.")
        _fill(log, 1, begin=2)
    expect(len(_only(store).records) == 3, "Records must be added to those before.")
    with store.campaign(header, fresh=True) as log:
        expect(log.identifier != first and not log.records, "A fresh campaign must be a new and empty one.")
        _fill(log, 1)
    expect([len(item.records) for item in store.campaigns()] == [3, 1], "The oldest campaign must come first.")
    with store.campaign(header) as log:
        expect(len(log.records) == 1, "The latest campaign of an identity must be the one that goes on.")


def _check_selection(store: Store) -> None:
    newer = Platform("contract-device", facts={"torch": "2.1"})
    unknown = Platform("contract-device")
    identifiers = []
    for header in (_header(), _header(platform=newer), _header(kind="networks"), _header(content={"other": 1})):
        with store.campaign(header) as log:
            _fill(log, 1)
        identifiers.append(log.identifier)
    first, second, third, fourth = identifiers
    expect(len(set(identifiers)) == 4, "Campaigns of different identity must be different ones.")

    def selected(**criteria: Any) -> list[str]:
        return [item.identifier for item in store.campaigns(**criteria)]

    expect(selected() == identifiers, "Without criteria, all campaigns must be read.")
    expect(selected(kind="networks") == [third], "'kind' must select campaigns of that kind alone.")
    expect(selected(platform=newer) == [second], "'platform' must leave out a platform with other identity facts.")
    expect(selected(platform=unknown) == identifiers, "Facts that one side does not know must not be held against it.")
    expect(selected(platform=Platform("other-device")) == [], "'platform' must select its campaigns alone.")
    expect(selected(identifier=fourth) == [fourth], "'identifier' must select one campaign.")
    expect(selected(identifier="none") == [], "An identifier that does not exist must select nothing.")
    expect(selected(kind="layers", platform=newer, identifier=first) == [], "All criteria must hold.")


def _check_holding(store: Store) -> None:
    header, busy = _header(), []

    def try_it(tried: CampaignHeader) -> None:
        try:
            with store.campaign(tried):
                pass
        except BusyError as error:
            busy.append(error)

    with store.campaign(header) as log:
        _in_thread(lambda: try_it(_header(content={"other": 1})))
        expect(not busy, "Campaigns of different identity must be held at once.")
        _in_thread(lambda: try_it(header))
        expect(len(busy) == 1, "A campaign that is held must raise BusyError for anyone else.")
        _fill(log, 1)
        read: list[StoredCampaign] = []
        _in_thread(lambda: read.extend(store.campaigns(identifier=log.identifier)))
        expect(len(read[0].records) == 1, "A record must be read by others as soon as it is appended.")
    _in_thread(lambda: try_it(header))
    expect(len(busy) == 1, "A campaign must be free after it was let go.")


def _check_version(store: Store) -> None:
    versions = [store.version()]
    with store.campaign(_header()) as log:
        for subject in _subjects():
            log.admit(subject)
        for number in range(3):
            log.append(_record(number))
            versions.append(store.version())
        log.fail(Failure("broken", "it raised"))
        versions.append(store.version())
    expect(versions == sorted(set(versions)), f"The version must grow with all that is added. Got {versions}.")
    expect(store.version() == store.version(), "The version must stay while nothing is added.")


def _check_failing(store: Store) -> None:
    try:
        with store.campaign(_header()) as log:
            _fill(log, 2)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with store.campaign(_header()) as log:
        expect(len(log.records) == 2, "What was appended must stay when measuring is interrupted.")


def _check_known(store: Store) -> None:
    newer = Platform("contract-device", facts={"torch": "2.1"})
    expect(store.known("digest-of-head", _HERE.id) is None, "A store that was just made must know no latency.")
    for platform, seconds in ((_HERE, 1.0), (newer, 2.0)):
        with store.campaign(_header(platform=platform)) as log:
            _fill(log, 1)
            for number in range(1, 3):
                log.append(_alone(number, number * seconds))
        found = store.known("digest-of-head", platform.id)
        expect(found is not None and found.platform == platform, "The latest campaign must give a latency by id.")
    found = store.known("digest-of-head", _HERE)
    expect(found is not None and found.campaign != log.identifier, "A platform's facts must agree with what is known.")
    expect(found is not None and (found.n_visits, found.n_samples) == (2, 2), "Only visits of it alone must count.")
    expect(store.known("digest-of-stem", _HERE.id) is None, "What was never measured alone must not be known.")
    expect(store.known("digest-of-head", "other.torch.fp32.t1") is None, "Another platform must not be known.")
    with store.campaign(_header(platform=newer)) as log:
        log.append(_alone(3, 8.0))
    found = store.known("digest-of-head", newer)
    expect(found is not None and (found.n_visits, found.at) == (3, 1.7e9 + 3), "A record that is added must count.")
    with store.campaign(_header(platform=newer)) as log:
        log.fail(Failure("head", "it raised"))
    expect(store.known("digest-of-head", newer) is None, "A subject that failed must not be known.")
    ids = [platform.as_dict() for platform in store.platforms()]
    expect(ids == [_HERE.as_dict(), newer.as_dict()], "Platforms must be those of the campaigns, each once.")


def _alone(number: int, seconds: float) -> Record:
    samples = {"latency": (seconds,)}
    return Record(1e-3, (), samples, ("head",), number, 1, 0.1, 1.7e9 + number)


def _fill(log: Any, count: int, *, begin: int = 0) -> None:
    for subject in _subjects():
        log.admit(subject)
    for number in range(begin, begin + count):
        log.append(_record(number))


def _header(**changes: Any) -> CampaignHeader:
    fields = {"kind": "layers", "content": {"space": "contract"}, "platform": _HERE, "protocol": Protocol(), **changes}
    return CampaignHeader(**fields)


def _subjects() -> list[Subject]:
    graph = {"operators": [{"kind": "conv2d", "shape": [1, 3, 8, 8]}], "edges": [[0, 1]]}
    return [
        Subject("stem", dict, (1, 3, 8, 8), "candidate", "digest-of-stem", {"operators": ["a"], "stride": 2}),
        Subject("head", dict, (1, 8), "network", "digest-of-head", {"graph": graph, "choices": {"depth": 3}}),
    ]


def _record(number: int) -> Record:
    seconds = (number + 1) / 7000
    samples = {"latency": (seconds, seconds / 3), "energy": (0.123456789,)}
    fallbacks = (Fallback.of("in f32", ["Softmax"], 4),) if number else ()
    times = (seconds, 1e-9), (0.5, 0.25)
    return Record(1e-3 / 3, times, samples, _KEYS, number, 1, 0.1, 1.7e9 + number, fallbacks=fallbacks)


def _only(store: Store) -> StoredCampaign:
    found = list(store.campaigns())
    expect(len(found) == 1, f"There must be one campaign. Got {len(found)}.")
    return found[0]


def _plain(content: Any) -> Any:
    return json.loads(json.dumps(content, default=dict))


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
