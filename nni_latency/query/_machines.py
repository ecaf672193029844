"""Machines that measure for a query: this one, or those of a farm."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

from nni_latency.errors import UnknownNameError
from nni_latency.measurement import Benches, Limits, LocalBenches
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform

#: How long the platforms of a farm are remembered [s].
_MEMORY = 5.0


class Machines(Protocol):
    """What measures for a query. Safe in several threads."""

    def platforms(self) -> Sequence[Platform]:
        """Return where it can measure at this moment."""

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform, by its id.

        Raises
        ------
        UnknownNameError
            If there is no such platform.
        """


class LocalMachines:
    """The machine that this process is on, with some runtimes.

    Parameters
    ----------
    runtimes : sequence of Runtime
        What executes networks; of two with one platform, the first.
    limits : Limits, optional
        What a worker process may use, for networks of somebody else.
    """

    def __init__(self, runtimes: Sequence[Runtime], limits: Limits | None = None) -> None:
        self._runtimes = {runtime.platform.id: runtime for runtime in reversed(runtimes)}
        self._limits = limits

    def platforms(self) -> list[Platform]:
        """Return where it can measure."""
        return [runtime.platform for runtime in self._runtimes.values()]

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform; raises `UnknownNameError` if there is no such platform."""
        if platform not in self._runtimes:
            raise UnknownNameError.of("platform", platform, sorted(self._runtimes))
        return LocalBenches(self._runtimes[platform], limits=self._limits)


class FarmMachines:
    """The machines of a farm.

    Parameters
    ----------
    farm : Farm
        The client of a running farm.
    """

    def __init__(self, farm: Any) -> None:
        self._farm = farm
        self._found: tuple[float, list[Platform]] = (-math.inf, [])

    def platforms(self) -> list[Platform]:
        """Return the platforms that workers have announced, as of a few seconds ago."""
        at, found = self._found
        if time.monotonic() - at > _MEMORY:
            found = [item.platform for item in self._farm.platforms()]
            self._found = time.monotonic(), found
        return found

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform; raises `UnknownNameError` if no worker has announced it."""
        found: Benches = self._farm.benches(platform)
        return found
