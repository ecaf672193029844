# SPDX-License-Identifier: Apache-2.0
"""A service under load: mixed requests of many clients while workers of its farm are killed.

    python examples/service_load.py --requests 10000

Real processes on this machine: a service with a database of its own, a scheduler, and four workers of two platforms
whose devices are fake. Clients ask for what is known and for what is not, send networks, ask wrongly and read lists;
what is measured they wait for. Meanwhile one worker after another is killed and another takes its place. In the end
everything that was asked for must be known, by records that nobody has lost or doubled, and every refusal must be one
sentence with the status that was expected.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nni_latency_farm.testing import FarmOfProcesses
from torch import nn, zeros

from nni_latency.database import DatabaseStore
from nni_latency.measurement import Stage, Subject
from nni_latency.operators import OnnxNetwork, export_onnx
from nni_latency.testing import FakeDevice
from nni_latency.units import format_seconds

#: Boards, and workers of each.
BOARDS, TWINS = ("board-a", "board-b"), 2

#: Subjects that somebody may ask to be measured, by board.
OPERATORS, NETWORKS = 60, 10

#: How often each kind of request comes.
SHARES = {"known": 50, "query": 15, "list": 12, "wrong": 12, "upload": 6, "measure": 5}

#: Refusals that a client has to expect whatever it asks: too many requests, a full queue, no worker there.
_BUSY = (429, 503)

_JSON, _ONNX = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}


class Board(FakeDevice):
    """A fake device that takes ONNX files, too: a millisecond each."""

    takes_onnx = True

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Return what moves the clock."""
        if not isinstance(subject.build(), OnnxNetwork):
            return super().prepare(subject, inputs)

        def run(value: Any) -> Any:
            self.clock.advance(0.001 / self.speed)
            return value

        return run


def main() -> None:
    """Run everything, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="how many requests")
    parser.add_argument("--clients", type=int, default=16, help="how many clients at a time")
    parser.add_argument("--kill-every", type=float, default=2.0, help="time between two kills [s]")
    parser.add_argument("--database", help="an empty database; a SQLite file of its own, if none is given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nni_latency_load_") as name:
        problems = _run(Path(name), options)
    for problem in problems[:20]:
        print(f"Problem: {problem}")
    print(f"{len(problems)} problems." if problems else "Nothing was lost, and nothing failed but by a stated refusal.")
    sys.exit(1 if problems else 0)


def _run(folder: Path, options: argparse.Namespace) -> list[str]:
    location = options.database or str(folder / "load.sqlite")
    with FarmOfProcesses(folder) as farm:
        boards = {f"{board}-{twin}": board for board in BOARDS for twin in range(TWINS)}
        for worker, board in boards.items():
            farm.join(worker, partial(Board, board), references=())
        with farm.client() as client:
            farm.wait_for(len(boards), client)
        words = ["serve", "--database", location, "--port", "0", "--max-queue", "500"]
        words += ["--remote", f"farm:{farm.address}"]
        command = [sys.executable, "-m", "nni_latency", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                assert service.stdout is not None
                address = service.stdout.readline().rsplit("http://", 1)[-1].strip()
                load = _Load(address, options)
                load.run(farm, boards, service.pid)
            finally:
                service.terminate()
    load.check(location)
    load.report()
    return load.problems


class _Load:
    """The clients, and what they have seen."""

    def __init__(self, address: str, options: argparse.Namespace) -> None:
        self.address, self.options = address, options
        self.problems: list[str] = []
        self.platforms = [f"{board}.fake.fp32.t1" for board in BOARDS]
        self._files = [_network(channels) for channels in range(1, NETWORKS + 1)]
        self._operators = [f"relu()@1x{size}:float32" for size in range(1, OPERATORS + 1)]
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[float]] = {kind: [] for kind in SHARES}
        #: What somebody has seen measured, and the latency that was told first [s].
        self.measured: dict[tuple[str, str], float] = {}
        self._lock, self._left = threading.Lock(), options.requests
        self._memory: list[float] = []
        self.kills = 0

    def run(self, farm: FarmOfProcesses, boards: dict[str, str], pid: int) -> None:
        """Send all requests from clients of their own, while workers die."""
        self._warm_up()
        done, begin = threading.Event(), time.perf_counter()
        killer = threading.Thread(target=self._kill, args=(farm, boards, done))
        clients = [threading.Thread(target=self._work, args=(seed,)) for seed in range(self.options.clients)]
        for thread in (killer, *clients):
            thread.start()
        tenth = max(1, self.options.requests // 10)
        while any(thread.is_alive() for thread in clients):
            if self.options.requests - self._left >= tenth * (len(self._memory) + 1):
                self._memory.append(_memory_of(pid))
            time.sleep(0.02)
        self.seconds = time.perf_counter() - begin
        done.set()
        for thread in (killer, *clients):
            thread.join()
        self._memory.append(_memory_of(pid))

    def _warm_up(self) -> None:
        """Have some operators measured, so that something is known."""
        client, draw = _Client(self.address), random.Random(0)
        for key in self._operators[:3]:
            for platform in self.platforms:
                self._measure(client, draw, {"key": key, "platform": platform})
        client.close()

    def _kill(self, farm: FarmOfProcesses, boards: dict[str, str], done: threading.Event) -> None:
        draw = random.Random(1)
        while not done.wait(self.options.kill_every):
            worker = draw.choice(sorted(boards))
            farm.kill(worker)
            farm.join(worker, partial(Board, boards[worker]), references=())
            self.kills += 1

    def _work(self, seed: int) -> None:
        draw, client = random.Random(100 + seed), _Client(self.address)
        while self._take_one():
            kind = draw.choices(list(SHARES), SHARES.values())[0]
            begin = time.perf_counter()
            try:
                getattr(self, f"_{kind}")(client, draw)
            except Exception as error:  # a client must not end before the others
                self._complain(f"{kind}: {type(error).__name__}: {error}")
                client.close()
            self._times[kind].append(time.perf_counter() - begin)
        client.close()

    def _take_one(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _complain(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)

    def _ask(self, kind: str, client: _Client, expected: tuple[int, ...], *request: Any) -> tuple[int, Any]:
        """Send a request; note a response that was not expected, or is no sentence."""
        status, content = client.send(*request)
        with self._lock:
            self._statuses[kind, status] += 1
        if status not in (*expected, *_BUSY):
            self._complain(f"{kind}: {request[:2]} gave {status}: {str(content)[:200]}")
        sentence = content.get("error") if isinstance(content, dict) else None
        if status >= 400 and not (isinstance(sentence, str) and sentence and "\n" not in sentence):
            self._complain(f"{kind}: {request[:2]} was refused without a sentence: {str(content)[:200]}")
        return status, content

    def _pair(self, draw: random.Random) -> tuple[str, str]:
        with self._lock:
            return draw.choice(list(self.measured))

    def _known(self, client: _Client, draw: random.Random) -> None:
        key, platform = self._pair(draw)
        path = f"/v1/latency?{urlencode({'key': key, 'platform': platform})}"
        status, content = self._ask("known", client, (200,), "GET", path)
        if status == 200:
            self._compare(key, platform, content)

    def _query(self, client: _Client, draw: random.Random) -> None:
        key, platform = self._pair(draw)
        body = {"key": key, "platform": platform, "measure": "never"}
        status, content = self._ask("query", client, (200,), "POST", "/v1/query", json.dumps(body).encode(), _JSON)
        if status == 200:
            self._compare(key, platform, content["answer"])

    def _compare(self, key: str, platform: str, answer: dict[str, Any]) -> None:
        if answer["source"] == "prediction" or answer["value"] != self.measured[key, platform]:
            self._complain(f"{key} on {platform} changed from {self.measured[key, platform]} to {answer}")

    def _list(self, client: _Client, draw: random.Random) -> None:
        paths = (
            "/v1/platforms",
            "/v1/records?limit=20",
            "/v1/jobs?limit=20",
            "/v1/predictors",
            "/health",
            "/v1/database",
        )
        self._ask("list", client, (200,), "GET", draw.choice(paths))

    def _wrong(self, client: _Client, draw: random.Random) -> None:
        request, status = draw.choice(
            [
                (("GET", "/v1/latency?key=a"), 422),
                (("GET", "/v1/latency?key=%00&platform=b"), 404),
                (("GET", f"/v1/latency?key={'f' * 32}&platform=nowhere"), 404),
                (("GET", "/v1/jobs/none"), 404),
                (("GET", "/v1/records?limit=100000"), 422),
                (("GET", "/nothing"), 404),
                (("POST", "/v1/query", b"{}", _JSON), 422),
                (("POST", "/v1/query", b"{}", {"Content-Type": "text/plain"}), 415),
                (("POST", "/v1/query", b'{"platform": "x", "key": "/etc/passwd.onnx"}', _JSON), 422),
                (("POST", "/v1/networks", draw.randbytes(2000), _ONNX), 422),
                (("DELETE", "/v1/jobs/none"), 404),
            ]
        )
        self._ask("wrong", client, (status,), *request)

    def _upload(self, client: _Client, draw: random.Random) -> None:
        status, found = self._ask("upload", client, (200,), "POST", "/v1/networks", draw.choice(self._files), _ONNX)
        if status == 200:
            body = {"key": found["key"], "platform": draw.choice(self.platforms)}
            self._measure(client, draw, body)

    def _measure(self, client: _Client, draw: random.Random, body: dict[str, Any] | None = None) -> None:
        """Have something measured that may be known by now, and wait for it; ask again where nothing measures yet."""
        body = body or {"key": draw.choice(self._operators), "platform": draw.choice(self.platforms)}
        content = json.dumps({**body, "measure": "always"}).encode()
        end = time.monotonic() + 120
        while time.monotonic() < end:
            # 404 where no worker of the platform is there at this moment.
            status, found = self._ask("measure", client, (200, 202, 404), "POST", "/v1/query", content, _JSON)
            if status in (200, 202):
                break
            time.sleep(0.5)
        else:
            self._complain(f"{body} could not be measured: {found}")
            return
        while found["answer"] is None:
            job = found["job"]
            if job["state"] in ("failed", "cancelled"):
                self._complain(f"The job of {body} is {job['state']}: {job['error']}")
                return
            time.sleep(0.1)
            status, job = client.send("GET", f"/v1/jobs/{job['id']}")
            if status == 200:
                found = {"answer": job["answer"], "job": job}
        with self._lock:
            self.measured.setdefault((body["key"], body["platform"]), found["answer"]["value"])
        self._compare(body["key"], body["platform"], found["answer"])

    def check(self, location: str) -> None:
        """Look into the database: every subject was measured once, and no record is lost or doubled."""
        store = DatabaseStore(location)
        self.campaigns = list(store.campaigns(kind="query"))
        subjects = Counter((key, item.header.platform.id) for item in self.campaigns for key in item.subjects)
        for (key, platform), count in subjects.items():
            if count > 1:
                self._complain(f"{key} was measured {count} times on {platform}")
        for key, platform in self.measured:
            known = store.known(key, platform)
            if known is None or known.value != self.measured[key, platform]:
                self._complain(f"{key} on {platform} is lost: {known}")
        for item in self.campaigns:
            rounds = [(record.round, record.subjects) for record in item.records]
            numbers = sorted({number for number, _ in rounds})
            if len(set(rounds)) != len(rounds) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                self._complain(f"The campaign {item.identifier} has the rounds {rounds}")
            if item.failures:
                self._complain(f"The campaign {item.identifier} has failures: {item.failures}")
        self.records = sum(len(item.records) for item in self.campaigns)
        store.close()

    def report(self) -> None:
        """Print what was seen."""
        count = self.options.requests
        print(
            f"{count} requests of {self.options.clients} clients in {self.seconds:.0f} s, {self.kills} workers killed"
        )
        print(f"{len(self.measured)} subjects measured, {len(self.campaigns)} campaigns, {self.records} records")
        for kind, times in self._times.items():
            statuses = {status: n for (name, status), n in sorted(self._statuses.items()) if name == kind}
            if times:
                times.sort()
                median, late = times[len(times) // 2], times[int(0.99 * len(times))]
                print(
                    f"{kind}: {len(times)} times, median {format_seconds(median)}, p99 {format_seconds(late)}, "
                    f"responses {statuses}"
                )
        print(f"memory of the service after every tenth: {', '.join(f'{size:.0f}' for size in self._memory)} MiB")


class _Client:
    """A connection that is kept."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request; return status and content."""
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        """Close it; it is opened again when it is needed."""
        self._connection.close()


def _network(channels: int) -> bytes:
    layers = [nn.Conv2d(3, channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2)]
    content: bytes = export_onnx(nn.Sequential(*layers).eval(), [zeros(1, 3, 8, 8)]).model.SerializeToString()
    return content


def _memory_of(pid: int) -> float:
    """Return the resident memory of a process [MiB]."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
