# SPDX-License-Identifier: Apache-2.0
"""A service with a farm of two workers in one command: ResNet-18 is asked for twice, first measured, then known.

Run it with ``make demo-service``; Ctrl-C ends it. ``--once`` ends it after the questions.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nni_latency_service.query as query

# What is in them is loaded when it is used, so Ctrl-C is heard meanwhile.
import nni_latency.graphs as graphs
from nni_latency.errors import LatencyError
from nni_latency.units import format_seconds

#: Longest time until a process is ready [s], and until it has ended.
_PATIENCE, _GRACE = 120.0, 20.0


def main() -> None:
    """Run the farm and the service, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtimes", default="onnxruntime,openvino", help="what the two workers measure with")
    parser.add_argument("--port", default="8765", help="where the service listens")
    parser.add_argument("--budget", default="20s", help="most time spent measuring the network")
    parser.add_argument("--once", action="store_true", help="end after the questions")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="nni_latency_demo_") as folder:
        try:
            with _Processes(Path(folder)) as processes:
                _run(Path(folder), options, processes)
        except LatencyError as error:
            sys.exit(f"Error: {error}")
    print("Everything has ended.")


def _run(folder: Path, options: argparse.Namespace, processes: _Processes) -> None:
    runtimes = options.runtimes.split(",")
    cores = sorted(os.sched_getaffinity(0))
    if len(runtimes) > len(cores):
        sys.exit(f"Error: {len(runtimes)} workers need as many processors, and this process may use {len(cores)}.")
    farm = processes.start("The farm", ["farm", "start", "--port", "0"], "The farm listens at").split()[-1]
    print(f"The farm listens at {farm}")
    platforms = []
    for number, (runtime, core) in enumerate(zip(runtimes, cores, strict=False), start=1):
        # A worker owns its processor: no other one measures on it.
        words = ["farm", "join", farm, "--runtime", runtime, "--name", f"worker-{number}"]
        said = processes.start(f"The worker {number}", words, "measures for", core)
        platforms.append(said.split()[-1].rstrip("."))
        print(said)
    words = ["serve", "--database", str(folder / "demo.sqlite"), "--remote", f"farm:{farm}", "--port", options.port]
    url = processes.start("The service", [*words, "--budget", options.budget], "Serving on").split()[-1]
    print(f"The service with its page is at {url}")
    _ask(query.LatencyClient(url), folder / "resnet18.onnx", platforms)
    if options.once:
        return
    print(f"Open {url} in a browser. Ctrl-C ends the service and the farm.", flush=True)
    processes.watch()


def _ask(client: query.LatencyClient, network: Path, platforms: list[str]) -> None:
    graphs.save_onnx(graphs.families()["resnet"], 0, network, 1)
    for platform in platforms:
        for _ in range(2):
            begin = time.perf_counter()
            answer = client.query(network, platform, measure="always")
            took = format_seconds(time.perf_counter() - begin)
            interval = f"{format_seconds(answer.low)} to {format_seconds(answer.high)}"
            print(
                f"{network.name} on {platform}: {format_seconds(answer.value)} ({interval}), "
                f"a {answer.source}, answered in {took}"
            )
    client.close()


class _Processes:
    """Processes that end together: the last that was started ends first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with _deaf():
            for process in reversed(self._running.values()):
                process.terminate()
                try:
                    process.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def start(self, name: str, words: list[str], ready: str, core: int | None = None) -> str:
        """Start a command; return the line in which it says that it is ready."""
        said = self._folder / f"{len(self._running)}.txt"
        command: list[str] = [sys.executable, "-m", "nni_latency", *words]
        cores = os.sched_getaffinity(0)
        with said.open("wb") as file:
            try:
                if core is not None:
                    os.sched_setaffinity(0, {core})
                # In a session of its own it hears Ctrl-C from here, and in the right order.
                self._running[name] = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
            finally:
                os.sched_setaffinity(0, cores)
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            over = self._running[name].poll() is not None
            lines = said.read_text("utf-8", "replace").splitlines()
            found = next((line for line in lines if ready in line), None)
            if found is not None:
                return found
            if over:
                break
            time.sleep(0.05)
        raise LatencyError(f"{name} did not start: {_reason(said)}")

    def watch(self) -> None:
        """Wait until one of them ends, which none does by itself."""
        while True:
            for number, (name, process) in enumerate(self._running.items()):
                if process.poll() is not None:
                    raise LatencyError(f"{name} has ended: {_reason(self._folder / f'{number}.txt')}")
            time.sleep(0.2)


def _reason(said: Path) -> str:
    lines = [line for line in said.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else "it said nothing."


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Hear no second Ctrl-C while everything is ended."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
