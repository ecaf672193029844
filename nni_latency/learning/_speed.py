# SPDX-License-Identifier: Apache-2.0
"""Speed of this machine, by the time of a reference operator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from nni_latency.measurement import quantile, time_chain
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.platforms import Platform, list_devices

#: Duration of a measurement, and untimed runs before it [s].
_LONG, _WARM = 0.4, 0.1

#: Quantile of the times: interference of other processes only adds time.
_STATISTIC = 0.25

#: Largest number of speeds that `speeds_now` measures, so that it takes at most 1.2 s.
_MOST = 2

#: Relative difference of speeds that matters.
DIFFERS = 0.05


def measure_reference(device: str = "cpu", threads: int = 1) -> float:
    """Measure the time of the reference operator in eager torch on a device of this machine, within half a second [s].

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    threads : int, default=1
        Threads of a processor.

    Raises
    ------
    UnknownNameError
        If there is no such device.
    """
    runtime = TorchEager(device, threads=threads)
    with runtime.session():
        stage, value = runtime.reference()
        begin, times = time.perf_counter(), list[float]()
        while not times or time.perf_counter() < begin + _WARM + _LONG:
            seconds = time_chain([stage], value, runtime.clock)
            if time.perf_counter() > begin + _WARM or not times:
                times += seconds
    return quantile(times, _STATISTIC)


def devices_here() -> dict[str, str]:
    """Return the devices of this machine: how each is named by platforms, and by runtimes such as ``cuda:0``."""
    found: dict[str, str] = {}
    for name in list_devices():
        found.setdefault(Platform.current(name).device, name)
    return found


def speeds_now(platforms: Iterable[Platform], devices: Mapping[str, str] | None = None) -> dict[str, float]:
    """Compare the speed of this machine with that at which platforms were learned.

    Parameters
    ----------
    platforms : iterable of Platform
        Platforms, the most important first; those without the fact ``reference``, and those of other machines, are
        skipped.
    devices : mapping, optional
        Devices of this machine as from `devices_here`.

    Returns
    -------
    dict of str to float
        Time of the reference operator over that of the fact, by platform id. Platforms of two devices and numbers of
        threads are measured at most.
    """
    here = devices_here() if devices is None else devices
    times: dict[tuple[str, int], float] = {}
    found = {}
    for platform in platforms:
        learned, key = platform.facts.get("reference"), (platform.device, platform.threads)
        if platform.device not in here or not isinstance(learned, float) or (key not in times and len(times) == _MOST):
            continue
        if key not in times:
            times[key] = measure_reference(here[platform.device], platform.threads)
        found[platform.id] = times[key] / learned
    return found
