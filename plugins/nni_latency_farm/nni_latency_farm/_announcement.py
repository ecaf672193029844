"""What a worker says of itself when it joins: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.measurement import Meter
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform


@dataclass(frozen=True)
class Traits:
    """What builders need to know of a runtime before they measure with it. Immutable.

    Parameters
    ----------
    supports_layer_timing, divides, sees_calls, takes_onnx : bool
        As the attributes of `nni_latency.measurement.runtimes.Runtime`.
    least_runs : int
        Likewise.
    isolated : bool
        Whether every bench lies in a process of its own.
    """

    supports_layer_timing: bool = True
    divides: bool = False
    sees_calls: bool = False
    takes_onnx: bool = False
    least_runs: int = 1
    isolated: bool = True

    @classmethod
    def of(cls, runtime: Runtime) -> Traits:
        """Read them off a runtime."""
        return cls(
            runtime.supports_layer_timing,
            runtime.divides,
            runtime.sees_calls,
            runtime.takes_onnx,
            runtime.least_runs,
            runtime.benches().isolated,
        )


@dataclass(frozen=True)
class Announcement:
    """What a worker says of itself when it joins. Immutable.

    Parameters
    ----------
    name : str
        What people call the worker.
    platform : Platform
        Where its numbers are taken.
    traits : Traits
        What its runtime can do.
    conditions : mapping
        What the machine was like when it joined, as `nni_latency.platforms.Conditions.as_dict` tells it.
    stand_in : Announcement, optional
        The runtime of the same device that can be timed inside, where its own cannot.
    meters : mapping of str to str
        What it can read besides the clock, by name: the metric of each, such as ``energy``.

    Examples
    --------
    >>> here = Announcement("rack-7", Platform("epyc-7763"), Traits())
    >>> Announcement.of(here.content()) == here
    True
    """

    name: str
    platform: Platform
    traits: Traits
    conditions: Mapping[str, Any] = field(default_factory=dict)
    stand_in: Announcement | None = None
    meters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_runtime(cls, name: str, runtime: Runtime, meters: Mapping[str, Meter] | None = None) -> Announcement:
        """Announce a runtime of this machine, and what can be read here."""
        inner = runtime.stand_in()
        return cls(
            name,
            runtime.platform,
            Traits.of(runtime),
            runtime.conditions().as_dict(),
            cls.of_runtime(name, inner, meters) if inner is not None else None,
            {meter: found.metric for meter, found in (meters or {}).items()},
        )

    def content(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "name": self.name,
            "platform": self.platform.as_dict(),
            "traits": dict(vars(self.traits)),
            "conditions": dict(self.conditions),
            "meters": dict(self.meters),
            "stand_in": self.stand_in.content() if self.stand_in else None,
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Announcement:
        """Make one of what `content` returned."""
        inner = content["stand_in"]
        return cls(
            content["name"],
            Platform(**content["platform"]),
            Traits(**content["traits"]),
            content["conditions"],
            cls.of(inner) if inner else None,
            content["meters"],
        )
