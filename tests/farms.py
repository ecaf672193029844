# SPDX-License-Identifier: Apache-2.0
"""A farm without processes, and a device whose speed changes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nni_latency_farm as farm

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Benches, Limits, Meter
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import OpSpec
from nni_latency.testing import FakeDevice


class FarmOfDevices:
    """A farm without processes: devices in this one, which die when the test says so."""

    def __init__(self, dies: Callable[[str, farm.Job], str] = lambda _address, _job: "") -> None:
        self.registry = farm.Registry()
        self.devices: dict[str, farm.Device] = {}
        self.jobs: list[tuple[str, farm.Job]] = []
        self._dies = dies

    def join(self, name: str, runtime: Runtime, meters: Mapping[str, Meter] | None = None) -> None:
        """Take in a device."""
        device = farm.Device(runtime, name, (), meters)
        self.devices[name] = device
        self.registry.join(name, device.announcement(), {"network": 1.0})

    def benches(self) -> farm.FarmBenches:
        """Return what opens benches on the devices."""
        return farm.FarmBenches(self, next(iter(self.devices.values())).announcement())

    def place(self, bench: str, key: str) -> str:
        """Return the name of the device that does the next job of a bench."""
        address = self.registry.assign(bench, "client", key)
        assert address is not None, self.registry.why_none(key)
        return address

    def run(self, job: farm.Job, address: str, key: str) -> farm.Answer:
        """Do a job, unless the device dies before it has begun or after it has ended."""
        how = "" if job.task == "close" else self._dies(address, job)
        if how == "after":
            self.devices[address].run(job)
        if how:
            # Another process takes the place of the one that died.
            device = self.devices.pop(address)
            self.registry.leave(address)
            self.join(address, device.runtime, device.meters)
            raise farm.LostError("the worker died", died=how != "left")
        self.jobs.append((address, job))
        return self.devices[address].run(job)

    def dismiss(self, place: farm.BenchPlace, address: str, key: str) -> None:
        """Have a device close a bench."""
        if address in self.devices:
            self.run(farm.Job(place, "close"), address, key)

    def release(self, bench: str) -> None:
        """Take a bench from its device."""
        self.registry.release(bench)


class DriftingDevice(FakeDevice):
    """A fake device whose speed is that which a file says when benches are made; it does not change within one."""

    def __init__(self, file: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = file

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Look at the file, and return what opens benches."""
        try:
            factor = float(self._file.read_text())
        except FileNotFoundError:
            factor = 1.0
        self.drift = lambda: factor
        return super().benches(meters, limits)


class WaitingDevice(FakeDevice):
    """A fake device whose benches are made once a file is there."""

    def __init__(self, file: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = file

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Wait for the file, and return what opens benches."""
        wait_until(self._file.exists)
        return super().benches(meters, limits)


class SilentDevice(FakeDevice):
    """A fake device whose process is stopped while its first answer is fetched; the file says that this has been."""

    def __init__(self, file: Path, *arguments: Any, **options: Any) -> None:
        self._file = file
        super().__init__(*arguments, **options)

    def _seconds(self, op: OpSpec) -> float:
        if not self._file.exists():
            self._file.write_text(str(os.getpid()))
            raise _SilencingError("its process is stopped")
        return super()._seconds(op)


class _SilencingError(MeasurementError):
    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().__reduce__()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + 180.0
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)
