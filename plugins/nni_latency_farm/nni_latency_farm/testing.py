"""`FarmOfProcesses`: a scheduler and workers on this machine, each in a process of its own."""

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

#: Longest time for anything to happen [s].
PATIENCE = 60.0


class FarmOfProcesses:
    """A scheduler and workers on this machine, each in a process of its own that can be killed. A context manager.

    Parameters
    ----------
    folder : Path
        Where ``said.txt`` goes, in which stands what scheduler and workers say, and the locks of devices.
    security : FarmSecurity, optional
        Certificate and token of all.
    port : int, default=0
        Port of the scheduler; 0 for any that is free.

    Attributes
    ----------
    address : str
        Where the scheduler listens.
    scheduler : multiprocessing.Process
        Its process.
    workers : dict of str to multiprocessing.Process
        Those of the workers, by name.

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

    def __init__(self, folder: Path, security: farm.FarmSecurity | None = None, *, port: int = 0) -> None:
        self.security, self._folder = security, folder
        self.said = folder / "said.txt"
        self.workers: dict[str, Any] = {}
        # Processes are forked of one that has loaded everything: a worker is there in a fraction of a second and spends
        # no seconds on imports when it takes its first network.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(
            ["torch._dynamo", "distributed", "nni_latency_farm._worker", "nni_latency.operators", __name__]
        )
        mine, its = self._processes.Pipe()
        self.scheduler = self._processes.Process(target=_serve, args=(its, self.said, security, port), daemon=True)
        self.scheduler.start()
        its.close()
        try:
            self.address: str = mine.recv() if mine.poll(PATIENCE) else ""
        except EOFError:
            self.address = ""
        if not self.address:
            self.close()
            raise RemoteError("The scheduler of the farm did not start.")

    def join(self, name: str, make: Callable[[], Runtime] = FakeDevice, **options: Any) -> None:
        """Start a worker, which joins while this process goes on.

        Parameters
        ----------
        name : str
            Its name, and that of its device unless another one is given.
        make : callable, default=FakeDevice
            Makes its runtime in its process.
        **options
            Of `nni_latency_farm.join`.
        """
        options = {"device": name, "name": name, "security": self.security, **options}
        arguments = (self.address, make, self._folder, self.said, options)
        self.workers[name] = self._processes.Process(target=_join, args=arguments, daemon=True)
        self.workers[name].start()

    def join_fits(self, name: str, processors: Collection[int]) -> None:
        """Start a worker that fits predictors, on processors of its own."""
        arguments = (self.address, self._folder, self.said, set(processors), {"name": name, "security": self.security})
        self.workers[name] = self._processes.Process(target=_join_fits, args=arguments, daemon=True)
        self.workers[name].start()

    def wait_for(self, count: int, client: farm.Farm, state: str = "ready") -> None:
        """Wait until so many workers are there in a state.

        Raises
        ------
        TimeoutError
            If that does not happen.
        """
        end = time.monotonic() + PATIENCE
        while sum(worker.state == state for worker in client.workers()) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"Waited in vain for {number_of(count, 'worker')} in the state {state!r}.")
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        """Kill a worker, as when its plug is pulled."""
        process = self.workers.pop(name)
        process.kill()
        process.join(PATIENCE)

    def interrupt(self, name: str) -> int:
        """Interrupt a worker like Ctrl-C does, wait for its end, and return its exit code."""
        process = self.workers.pop(name)
        os.kill(process.pid, signal.SIGINT)
        process.join(PATIENCE)
        return int(process.exitcode)

    def client(self, **options: Any) -> farm.Farm:
        """Return a new client, with options of `nni_latency_farm.Farm`."""
        return farm.Farm(self.address, self.security, **options)

    def close(self) -> None:
        """Kill everything that is left."""
        for process in (*self.workers.values(), self.scheduler):
            if process.pid is not None:
                process.kill()
                process.join(PATIENCE)

    def __enter__(self) -> FarmOfProcesses:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill everything that is left."""
        self.close()


def _serve(pipe: Any, said: Path, security: farm.FarmSecurity | None, port: int) -> None:
    farm.serve(port=port, security=security, on_start=pipe.send, tell=partial(_note, said))


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
