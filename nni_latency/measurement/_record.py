"""`Record`: the raw numbers of one visit. Every statistic is derived from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nni_latency.measurement._fallback import Fallback

#: Significant digits that are kept of a sample; more are noise.
DIGITS = 9

#: Clocks of a steady GPU differ by less than this share within a window.
CLOCK_CHANGE = 0.05


@dataclass(frozen=True)
class Visit:
    """What a bench measured while it stayed at one network.

    Parameters
    ----------
    reference : float
        Time of the reference operator just before [s].
    parts : list of list of float
        Time of every part [s], by timed run; empty where the network has one part only, unless the bench sees calls:
        then that of every call of a torch function.
    samples : mapping of str to list of float
        By metric, in its SI unit: the cost of the whole network in runs without a mark between the parts.
    fallbacks : tuple of Fallback, default=()
        Nodes that did not run where, or in the precision, that was asked for.
    """

    reference: float
    parts: Sequence[Sequence[float]]
    samples: Mapping[str, Sequence[float]]
    fallbacks: tuple[Fallback, ...] = field(default=(), kw_only=True)

    @property
    def whole(self) -> Sequence[float]:
        """Latency of the whole network [s], by timed run."""
        return self.samples.get("latency", ())

    @property
    def marks(self) -> tuple[str, ...]:
        """What makes the visit doubtful, as sentences: clocks or a power limit that changed in the middle of it.

        Examples
        --------
        >>> Visit(1.0, [], {"latency": [1.0], "gpu_clock": [1.41e9, 1.05e9]}).marks
        ('The GPU went from 1.41 to 1.05 GHz while it was measured.',)
        """
        clocks, limits = self.samples.get("gpu_clock", ()), self.samples.get("gpu_power_limit", ())
        found = []
        if clocks and max(clocks) - min(clocks) > CLOCK_CHANGE * max(clocks):
            first, *_, last = clocks
            ends = (first, last) if abs(last - first) > CLOCK_CHANGE * max(clocks) else (max(clocks), min(clocks))
            found.append(f"The GPU went from {ends[0] / 1e9:.2f} to {ends[1] / 1e9:.2f} GHz while it was measured.")
        if limits and max(limits) > min(limits):
            found.append(f"The GPU's power limit went from {limits[0]:g} to {limits[-1]:g} W while it was measured.")
        return tuple(found)


@dataclass(frozen=True)
class Record(Visit):
    """The raw numbers of one visit, and what they belong to. Immutable.

    Parameters
    ----------
    subjects : tuple of str
        Keys of the subjects that ran one after another.
    round : int
        Number of the round within the campaign.
    process : int
        Number of the worker process within the campaign.
    duration : float
        Time that the visit took, warm-up runs included [s].
    at : float
        When it ended [s since 1970, UTC].
    """

    subjects: tuple[str, ...] = ()
    round: int = 0
    process: int = 0
    duration: float = 0.0
    at: float = 0.0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Record:
        """Make one of plain values.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not what `content` returned.
        """
        return cls(
            float(content["reference"]),
            tuple(tuple(map(float, run)) for run in content["parts"]),
            {str(metric): tuple(map(float, values)) for metric, values in content["samples"].items()},
            tuple(map(str, content["subjects"])),
            int(content["round"]),
            int(content["process"]),
            float(content["duration"]),
            float(content["at"]),
            fallbacks=tuple(map(Fallback.of_content, content.get("fallbacks", ()))),
        )

    def content(self) -> dict[str, Any]:
        """Return it as plain lists and numbers, with nine significant digits."""
        fallbacks = {"fallbacks": [item.content() for item in self.fallbacks]} if self.fallbacks else {}
        return {
            "subjects": list(self.subjects),
            "round": self.round,
            "process": self.process,
            "duration": rounded(self.duration),
            "at": round(self.at, 3),
            "reference": rounded(self.reference),
            "samples": {metric: [rounded(value) for value in values] for metric, values in self.samples.items()},
            "parts": [[rounded(seconds) for seconds in run] for run in self.parts],
            **fallbacks,
        }

    def rounded(self) -> Record:
        """Return it as a store reads it back, so that an interrupted campaign ends like one that was not."""
        return Record.of(self.content())


@dataclass(frozen=True)
class Failure:
    """A subject that cannot be measured, by its key, and why."""

    subject: str
    reason: str


def rounded(value: float) -> float:
    """Keep the digits of a sample that mean something.

    >>> rounded(0.1234567891234)
    0.123456789
    """
    return float(f"{value:.{DIGITS}g}")
