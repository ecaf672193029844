# SPDX-License-Identifier: Apache-2.0
"""Description of a worker, sent as plain values when it joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.measurement import Meter
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform


@dataclass(frozen=True)
class Traits:
    """Properties of a runtime that builders need before they measure with it. Immutable.

    Parameters
    ----------
    supports_layer_timing, divides, sees_calls, takes_onnx : bool
        As the attributes of `nni_latency.measurement.runtimes.Runtime`.
    least_runs : int
        As above.
    isolated : bool
        Whether every bench runs in a separate process.
    """

    supports_layer_timing: bool = True
    divides: bool = False
    sees_calls: bool = False
    takes_onnx: bool = False
    least_runs: int = 1
    isolated: bool = True

    @classmethod
    def of(cls, runtime: Runtime) -> Traits:
        """Return the traits of a runtime."""
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
    """Description of a worker when it joins. Immutable.

    Parameters
    ----------
    name : str
        Name of the worker.
    platform : Platform
        Platform of the measurements.
    traits : Traits
        Properties of its runtime.
    conditions : mapping
        Conditions of the machine when it joined, as returned by `nni_latency.platforms.Conditions.as_dict`.
    stand_in : Announcement, optional
        Runtime of the same device that supports layer timing, if its own does not.
    meters : mapping of str to str
        Metric of each meter by its name, such as ``energy``.

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
        """Create the announcement of a runtime and the meters of this machine."""
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
        """Return the announcement as plain values."""
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
        """Create an announcement from the result of `content`."""
        inner = content["stand_in"]
        return cls(
            content["name"],
            Platform(**content["platform"]),
            Traits(**content["traits"]),
            content["conditions"],
            cls.of(inner) if inner else None,
            content["meters"],
        )
