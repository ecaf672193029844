# SPDX-License-Identifier: Apache-2.0
"""How fast a service answers what is known, with a million records, on SQLite and on PostgreSQL.

Run with: python -m pytest -o addopts="" -s tests/benchmarks/test_service_speed.py
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest
from postgresql_server import make_database, running_server
from sqlalchemy import insert

import nni_latency.database._schema as schema
from nni_latency.database import DatabaseStore
from nni_latency.database._writing import Origin, add_campaign
from nni_latency.measurement import CampaignHeader, Protocol
from nni_latency.platforms import Platform

PLATFORM = Platform("board", "onnxruntime", facts={"runtime.version": "1"})

#: Networks, and visits of each: a million records.
NETWORKS, VISITS = 100_000, 10

#: How long it is asked [s]; clients that ask again as soon as they are answered, and the processes that they are in.
SECONDS, CLIENTS, PROCESSES = 20.0, 16, 2


def _key(number):
    return f"{number:032x}"


def fill(location, networks=NETWORKS):
    """Write a database of campaigns of a thousand networks each, as measuring leaves it."""
    store, at = DatabaseStore(location), 1.7e9
    for first in range(0, networks, 1000):
        header = CampaignHeader("networks", {"first": first}, PLATFORM, Protocol())
        with store.database.writing() as connection:
            campaign = add_campaign(connection, header, Origin(f"c{first}", "u", "h", "0.1.0", at, at, "ended"))
            keys = [_key(first + place) for place in range(1000)]
            rows = [
                {"campaign_id": campaign, "number": place, "key": key, "kind": "network", "digest": key,
                 "specification": "{}", "graph": None}
                for place, key in enumerate(keys)
            ]  # fmt: skip
            connection.execute(insert(schema.subjects), rows)
            rows = [
                {"campaign_id": campaign, "round": visit, "process": 0, "at": at, "duration": 0.1, "reference": 0.001,
                 "subjects": f"[{place}]", "samples": '{"latency":[0.00123,0.00124,0.00125]}', "parts": "[]",
                 "fallbacks": None}
                for visit in range(VISITS) for place in range(1000)
            ]  # fmt: skip
            connection.execute(insert(schema.records), rows)
            platform = connection.execute(schema.platforms.select()).first().id
            rows = [
                {"campaign_id": campaign, "number": place, "digest": key, "platform_id": platform, "at": at,
                 "summary": None}
                for place, key in enumerate(keys)
            ]  # fmt: skip
            connection.execute(insert(schema.answers), rows)
    if store.database.path is None:
        with store.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE")
    store.close()


class Serving:
    """The service in a process of its own."""

    def __init__(self, location):
        words = ["serve", "--database", location, "--port", "0", "--max-rate", "1000000"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nni_latency", *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    def __enter__(self):
        line = self.process.stdout.readline()
        self.address = line.rsplit("http://", 1)[1].strip()
        return self

    def __exit__(self, *_):
        self.process.stdout.close()
        self.process.terminate()
        self.process.wait(30)

    @property
    def memory(self):
        """Resident memory [MiB]."""
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize() / 2**20


class _Client:
    """A connection that is kept, and what was sent on it last."""

    def __init__(self, address, draw, networks):
        self.socket = socket.create_connection(address)
        self._host, self._draw, self._networks = f"{address[0]}:{address[1]}", draw, networks
        self.times = []
        self.ask()

    def ask(self):
        words = urlencode({"key": _key(self._draw.randrange(self._networks)), "platform": PLATFORM.id})
        self._received, self._begin = b"", time.perf_counter()
        self.socket.sendall(f"GET /v1/latency?{words} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    def hear(self):
        """Take in a part of a response; return whether it is whole, after noting how long it took."""
        self._received += self.socket.recv(65536)
        head, found, body = self._received.partition(b"\r\n\r\n")
        size = next((line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), b"")
        if not found or len(body) < int(size):
            return False
        self.times.append(time.perf_counter() - self._begin)
        assert head.startswith(b"HTTP/1.1 200 "), self._received
        assert b'"source":"record"' in body
        return True


def _ask(address, seed, seconds, networks, told):
    host, port = address.split(":")
    draw, ready = random.Random(seed), selectors.DefaultSelector()
    clients = [_Client((host, int(port)), draw, networks) for _ in range(CLIENTS // PROCESSES)]
    for client in clients:
        ready.register(client.socket, selectors.EVENT_READ, client)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in ready.select(1.0):
            if key.data.hear():
                key.data.ask()
    told.send([value for client in clients for value in client.times])
    for client in clients:
        client.socket.close()


def measure(address, networks=NETWORKS, seconds=SECONDS):
    """Ask on many connections, from processes of their own; return the times of all requests."""
    pipes, processes = [], []
    for seed in range(PROCESSES):
        heard, told = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_ask, args=(address, seed, seconds, networks, told)
        )
        process.start()
        pipes.append(heard)
        processes.append(process)
    times = sorted(value for heard in pipes for value in heard.recv())
    for process in processes:
        process.join()
    return times


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_known_answers_are_fast(kind, tmp_path):
    if kind == "sqlite":
        _check_speed(kind, str(tmp_path / "m.sqlite"))
    else:
        with running_server() as server:
            _check_speed(kind, make_database(server, "speed"))


def _check_speed(kind, location):
    fill(location)
    with Serving(location) as service:
        measure(service.address, seconds=2.0)
        times = measure(service.address)
    rate, p50, p99 = len(times) / SECONDS, statistics.median(times), times[int(0.99 * len(times))]
    sys.stdout.write(
        f"\n{kind}: {NETWORKS * VISITS} records, {CLIENTS} clients: {rate:.0f} answers a second, "
        f"median {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms\n"
    )
    assert rate >= 300
    assert p99 < 0.05


def _mixed(address, seed, count, problems):
    draw = random.Random(seed)
    connection = http.client.HTTPConnection(address, timeout=120)
    for _ in range(count):
        kind = draw.randrange(6)
        key, headers, body, method = _key(draw.randrange(2000)), {}, None, "GET"
        path = f"/v1/latency?{urlencode({'key': key, 'platform': PLATFORM.id})}"
        if kind == 1:
            path = "/v1/records?limit=20"
        elif kind == 2:
            path = "/v1/platforms"
        elif kind == 3:
            path, method, headers = "/v1/query", "POST", {"Content-Type": "application/json"}
            body = json.dumps({"key": key, "platform": PLATFORM.id, "measure": "never"})
        elif kind == 4:
            path, method, headers = "/v1/networks", "POST", {"Content-Type": "application/octet-stream"}
            body = draw.randbytes(2000)
        elif kind == 5:
            path = "/v1/jobs/none"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = json.loads(response.read())
        if response.status not in (200, 404, 422, 429) or (response.status >= 400 and "error" not in content):
            problems.append((path, response.status, content))
    connection.close()


def test_ten_thousand_mixed_requests_need_no_more_memory(tmp_path):
    location = str(tmp_path / "m.sqlite")
    fill(location, 1000)
    problems, sizes = [], []
    with Serving(location) as service:
        for turn in range(5):
            threads = [
                threading.Thread(target=_mixed, args=(service.address, 100 * turn + seed, 125, problems))
                for seed in range(16)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sizes.append(service.memory)
    sys.stdout.write(
        f"\nmemory after every 2,000 of 10,000 mixed requests of 16 clients: {[round(size) for size in sizes]} MiB\n"
    )
    assert not problems
    assert sizes[-1] < sizes[1] + 20
