# SPDX-License-Identifier: Apache-2.0
"""Which platforms of a predictor are of this machine, and whether it is as fast as when they were learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nni_latency.graphs as graphs
import nni_latency.learning as learn
from nni_latency.cli._learn_machine import learn_command
from nni_latency.cli._report import Column
from nni_latency.platforms import Platform
from nni_latency.units import format_slowdown

#: Marks of platforms that were learned on this machine, and of those of another machine with the same device.
_LEARNED, _SAME_DEVICE = "learned here", "same device"

#: The column of the marks.
MACHINE = Column("this machine", "this_machine", absent="")


@dataclass(frozen=True)
class Here:
    """The platforms of a predictor that are of this machine.

    Parameters
    ----------
    platforms : tuple of Platform
        All platforms of the predictor.
    devices : mapping of str to str
        Devices of this machine, see `nni_latency.learning.devices_here`.
    older : tuple of Platform
        Platforms of the user's own predictor that were added to another version of the shipped one.
    """

    platforms: tuple[Platform, ...]
    devices: Mapping[str, str]
    older: tuple[Platform, ...] = ()

    @classmethod
    def of(cls, predictor: graphs.GraphPredictor, source: str) -> Here:
        """Compare the platforms of a predictor, read from a file, with this machine."""
        is_own = Path(source) == graphs.own_predictor()
        return cls(
            predictor.platforms_, learn.devices_here(), tuple(learn.older_platforms(predictor)) if is_own else ()
        )

    def mark(self, name: str) -> str | None:
        """Return the mark of a platform; None if it is of another machine."""
        platform = next(item for item in self.platforms if item.id == name)
        if platform.device not in self.devices:
            return None
        return _LEARNED if learn.is_learned(platform) else _SAME_DEVICE

    def first(self, names: Sequence[str]) -> list[str]:
        """Return ids of platforms with those of this machine in front; the order stays otherwise."""
        marks = (_LEARNED, _SAME_DEVICE, None)
        return sorted(names, key=lambda name: marks.index(self.mark(name)))

    def speeds(self, names: Sequence[str]) -> dict[str, float]:
        """Return the time of the reference operator now over that when a platform was learned, by platform id."""
        by_name = {item.id: item for item in self.platforms}
        learned = [by_name[name] for name in names if self.mark(name) == _LEARNED]
        return learn.speeds_now(learned, self.devices)

    def remarks(self, speeds: Mapping[str, float]) -> Iterator[str]:
        """Describe the speed that differs the most, and an own predictor that is older than the one that ships."""
        name = max(speeds, key=lambda item: abs(speeds[item] - 1), default="")
        ratio = speeds.get(name, 1.0)
        if abs(ratio - 1) > learn.DIFFERS:
            platform = next(item for item in self.platforms if item.id == name)
            yield (
                f"This machine is {format_slowdown(ratio)} now than when {name} was learned. If it stays so, learn it "
                f"again: {learn_command(platform)}"
            )
        if self.older:
            again = "; ".join(map(learn_command, self.older))
            yield f"Your own predictor was made from another version of the one that ships. Renew it: {again}"
