# SPDX-License-Identifier: Apache-2.0
"""Campaigns of invented numbers, for the tests of the database."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any

from nni_latency.database import DatabaseStore
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject
from nni_latency.platforms import Platform

#: A user who is not root.
NOBODY = 65534

HERE = Platform("device-1", facts={"torch": "2.0", "memory": 8})
KEYS = ("a", "b")


def make_header(**changes: Any) -> CampaignHeader:
    """Make a header; the same one without changes."""
    fields = {"kind": "layers", "content": {"space": "tiny"}, "platform": HERE, "protocol": Protocol(), **changes}
    return CampaignHeader(**fields)


def make_record(number: int, **changes: Any) -> Record:
    """Make a record of two subjects with a whole run and two parts: three samples."""
    seconds = (number + 1) / 1000
    fields = {
        "reference": 0.001,
        "parts": ((seconds / 4, seconds / 2),),
        "samples": {"latency": (seconds,)},
        "subjects": KEYS,
        "round": number,
        "process": 0,
        "duration": 0.1,
        "at": 1.7e9 + number,
        **changes,
    }
    return Record(**fields)


def fill(store: DatabaseStore, header: CampaignHeader, count: int, *, begin: int = 0, fresh: bool = False) -> str:
    """Append records to a campaign; return its identifier."""
    with store.campaign(header, fresh=fresh) as log:
        for key in KEYS:
            log.admit(Subject(key, dict, (1,), "candidate", f"digest-{key}"))
        for number in range(begin, begin + count):
            log.append(make_record(number))
        return log.identifier


def start(work: Callable[..., object], *arguments: Any) -> multiprocessing.context.ForkProcess:
    """Start a process, forked because importing everything again would take most of the test's time."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def run_in_processes(tasks: Iterable[tuple[Any, ...]]) -> None:
    """Run functions with their arguments, each in a separate process, at the same time; all must succeed."""
    processes = [start(*task) for task in tasks]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * len(processes)
