# SPDX-License-Identifier: Apache-2.0
"""`FarmOfProcesses`: a scheduler and workers on this machine, each in a separate process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import nni_latency_farm as farm
from nni_latency.errors import RemoteError
from nni_latency.files import CACHE_VARIABLE
from nni_latency.measurement.runtimes import Runtime
from nni_latency.testing import FakeDevice
from nni_latency.units import number_of

#: Timeout of all waits [s].
PATIENCE = 180.0


class FarmOfProcesses:
    """A scheduler and workers on this machine, each in a separate process that can be killed. A context manager.

    Parameters
    ----------
    folder : Path
        Folder of ``said.txt``, the messages of scheduler and workers, and of the locks of devices.
    security : FarmSecurity, optional
        Certificate and token of all processes.
    port : int, default=0
        Port of the scheduler; 0 selects a free one.
    **options
        Options of `nni_latency_farm.serve`, such as ``silence``.

    Attributes
    ----------
    address : str
        Address of the scheduler.
    scheduler : multiprocessing.Process
        Process of the scheduler.
    workers : dict of str to multiprocessing.Process
        Processes of the workers by name.

    Raises
    ------
    RemoteError
        If the scheduler does not start.

    Examples
    --------
    >>> with FarmOfProcesses(Path("folder")) as processes:  # doctest: +SKIP
    ...     processes.join("pi", partial(FakeDevice, "raspberry-pi", speed=0.5))
    ...     with processes.client() as client:
    ...         processes.wait_for(1, client)
    """

    def __init__(
        self, folder: Path, security: farm.FarmSecurity | None = None, *, port: int = 0, **options: Any
    ) -> None:
        self.security, self._folder = security, folder
        self.said = folder / "said.txt"
        self.workers: dict[str, Any] = {}
        # Processes are forked from one that has imported everything: a worker starts in a fraction of a second and does
        # not spend seconds on imports with its first network.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(
            ["torch._dynamo", "distributed", "nni_latency_farm._worker", "nni_latency.operators", __name__]
        )
        mine, its = self._processes.Pipe()
        arguments = (its, self.said, {"port": port, "security": security, **options})
        self.scheduler = self._processes.Process(target=_serve, args=arguments, daemon=True)
        self.scheduler.start()
        its.close()
        try:
            self.address: str = mine.recv() if mine.poll(PATIENCE) else ""
        except EOFError:
            self.address = ""
        if not self.address:
            self.close()
            raise RemoteError("The scheduler of the farm did not start.")

    def kill_scheduler(self) -> None:
        """Kill the process of the scheduler."""
        self.scheduler.kill()
        self.scheduler.join()

    def join(self, name: str, make: Callable[[], Runtime] = FakeDevice, **options: Any) -> None:
        """Start a worker, which joins in the background.

        Parameters
        ----------
        name : str
            Name of the worker, and by default of its device.
        make : callable, default=FakeDevice
            Creates the runtime in the worker's process.
        **options
            Options of `nni_latency_farm.join`.
        """
        options = {"device": name, "name": name, "security": self.security, **options}
        arguments = (self.address, make, self._folder, self.said, options)
        self.workers[name] = self._processes.Process(target=_join, args=arguments, daemon=True)
        self.workers[name].start()

    def join_fits(self, name: str, processors: Collection[int]) -> None:
        """Start a worker that fits predictors on the given processors."""
        arguments = (self.address, self._folder, self.said, set(processors), {"name": name, "security": self.security})
        self.workers[name] = self._processes.Process(target=_join_fits, args=arguments, daemon=True)
        self.workers[name].start()

    def wait_for(self, count: int, client: farm.Farm, state: str = "ready") -> None:
        """Wait until a number of workers is in a state.

        Raises
        ------
        TimeoutError
            If the wait times out.
        """
        end = time.monotonic() + PATIENCE
        while sum(worker.state == state for worker in client.workers()) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"Waited in vain for {number_of(count, 'worker')} in the state {state!r}.")
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        """Kill a worker, as in a power failure."""
        process = self.workers.pop(name)
        process.kill()
        process.join(PATIENCE)

    def interrupt(self, name: str) -> int:
        """Interrupt a worker like Ctrl-C, wait for its end, and return its exit code."""
        process = self.workers.pop(name)
        os.kill(process.pid, signal.SIGINT)
        process.join(PATIENCE)
        return int(process.exitcode)

    def client(self, **options: Any) -> farm.Farm:
        """Return a new client, with options of `nni_latency_farm.Farm`."""
        return farm.Farm(self.address, self.security, **options)

    def close(self) -> None:
        """Kill all remaining processes."""
        for process in (*self.workers.values(), self.scheduler):
            if process.pid is not None:
                process.kill()
                process.join(PATIENCE)

    def __enter__(self) -> FarmOfProcesses:
        """Return the instance."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all remaining processes."""
        self.close()


def _serve(pipe: Any, said: Path, options: dict[str, Any]) -> None:
    farm.serve(on_start=pipe.send, tell=partial(_note, said), **options)


def _join(address: str, make: Callable[[], Runtime], folder: Path, said: Path, options: dict[str, Any]) -> None:
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    farm.join(address, make(), tell=partial(_note, said), **options)


def _join_fits(address: str, folder: Path, said: Path, processors: set[int], options: dict[str, Any]) -> None:
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    os.sched_setaffinity(0, processors)
    farm.join_fits(address, tell=partial(_note, said), **options)


def _note(said: Path, sentence: str) -> None:
    with said.open("a", encoding="utf-8") as file:
        file.write(f"{sentence}\n")
