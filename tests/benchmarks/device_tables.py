# SPDX-License-Identifier: Apache-2.0
"""Tables of FBNet built over a connection against one built here: python tests/benchmarks/device_tables.py.

The device is this machine by SSH, with the round trip of the loopback address and with a longer one that is simulated.
The tables of a pair are built at the same time and take turns, a round each. So does the validation by which all are
judged, with those of the first pair. Every table has the whole budget, of which waiting for a turn takes nothing.

Columns: rounds; seconds per visit; share of a visit that is not spent on the device, which is preparation here and the
connection; share of a visit beyond that of the local table; data sent; MAPE on whole networks; repeatability of these;
share of the entries that agree with those of the local table within their intervals.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from nni_latency_onnxruntime import OnnxRuntime
from ssh_server import SshServer, running_ssh_server
from test_device_speed import note_times

from nni_latency import FBNetSpace, LookupTable, Protocol, TableEstimator
from nni_latency.devices import DeviceRuntime, SshConnection
from nni_latency.measurement import MemoryStore
from nni_latency.tables import NetworkMeasurements, build_table, compare_tables, measure_networks
from nni_latency.validation import draw_networks, validate

COLUMNS = "  rounds  s/visit  elsewhere  beyond local  MB sent    MAPE  repeatability  agreement"
ROW = "{:12}{:8.0f}{:9.4f}{:11.1%}{:14.1%}{:9.1f}{:8.2%}{:15.2%}{:11.1%}\n"

PLAN = FBNetSpace().measure_plan()


@dataclass
class Built:
    """A table, times of its visits and of those on the device [s], and the bytes sent there."""

    table: LookupTable
    visits: list[float]
    there: list[float] = field(default_factory=list)
    sent: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=50.0, help="of every table, and of the validation [s]")
    parser.add_argument("--pairs", type=int, default=3, help="tables of each kind")
    parser.add_argument("--round-trip", type=float, default=20.0, help="that is simulated [ms]")
    options = parser.parse_args()
    pairs, measured = list[dict[str, list[float]]](), None
    with running_ssh_server() as server:
        os.environ["PATH"] = f"{server.binaries}:{os.environ['PATH']}"
        for pair in range(options.pairs):
            protocol = Protocol(time_budget=options.budget, seed=pair)
            jobs: dict[str, Callable[[Any], Any]] = {"local": partial(built, OnnxRuntime(), protocol)}
            for name, trip in {"SSH": 0.0, f"SSH, {options.round_trip:g} ms": options.round_trip}.items():
                jobs[name] = partial(built_over, server, 1e-3 * trip, protocol)
            if measured is None:
                jobs["validation"] = partial(networks_measured, replace(protocol, half_width=0.01))
            found = in_turns(jobs)
            measured = found.pop("validation", measured)
            pairs.append({name: figures(item, found["local"], measured) for name, item in found.items()})
            show(f"pair {pair + 1}", pairs[-1])
    for name in pairs[0]:
        pairs[0][name] = [statistics.median(column) for column in zip(*(pair[name] for pair in pairs), strict=True)]
    show("median", pairs[0])


def in_turns(jobs: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Run jobs, each in a thread that waits for its turn when it has measured a round."""
    order, moved, errors = collections.deque(jobs), threading.Condition(), []

    def run(name: str) -> Any:
        def wait(_progress: Any = None, *, step: int = -1) -> None:
            with moved:
                order.rotate(step)
                moved.notify_all()
                moved.wait_for(lambda: order[0] == name)
                if errors:
                    raise errors[0]

        try:
            wait(step=0)
            return jobs[name](wait)
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            with moved:
                order.remove(name)
                moved.notify_all()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return dict(zip(jobs, pool.map(run, jobs), strict=True))


def built(runtime: Any, protocol: Protocol, turn: Any) -> Built:
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        table = build_table(PLAN, runtime, protocol, Path(folder) / "table.json", store=store, on_progress=turn)
    return Built(table, [record.duration for log in store.campaigns() for record in log.records])


def built_over(server: SshServer, trip: float, protocol: Protocol, turn: Any) -> Built:
    """Build a table over a connection with a round trip [s]."""
    server.delay(trip)
    with SshConnection(server.address) as connection:
        # No lock: other tables are being built on the same machine, and wait for their turns.
        connection.python, connection.lock_folders = sys.executable, ()
        runtime = DeviceRuntime(lambda place: OnnxRuntime(place=place), connection)
        there = note_times(runtime)
        found = built(runtime, protocol, turn)
        runtime.close()
        return replace(found, there=there, sent=runtime.place.session.sent)


def networks_measured(protocol: Protocol, turn: Any) -> NetworkMeasurements:
    return measure_networks(PLAN, draw_networks(PLAN), OnnxRuntime(), protocol, store=MemoryStore(), on_progress=turn)


def figures(item: Built, local: Built, measured: NetworkMeasurements) -> list[float]:
    """Return the columns of a table."""
    seconds, usual = statistics.median(item.visits), statistics.median(local.visits)
    elsewhere = 1 - statistics.median(item.there) / seconds if item.there else 0.0
    # The platform of a device names the processors on which networks run.
    found = validate(TableEstimator(replace(item.table, platform=measured.platform)), PLAN, measured)
    scores = [found.scores.mape, found.repeatability.mape, compare_tables(local.table, item.table).agreement]
    return [item.table.rounds, seconds, elsewhere, 1 - usual / seconds, item.sent / 1e6, *scores]


def show(title: str, rows: Mapping[str, list[float]]) -> None:
    sys.stdout.writelines([f"{title:12}{COLUMNS}\n", *(ROW.format(name, *row) for name, row in rows.items())])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
