"""`NetworkRuns`: what one process measured of one network, by operator, as the memo keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Measurement, Protocol, Summary

#: Most that a mark after a call can cost [s]; a larger difference between marked and unmarked runs has other reasons.
_MOST_MARK = 1e-5

#: Share of its marked time that an operator keeps at least, however much its marks cost.
_LEAST_LEFT = 0.1

#: Digits kept of a time; more are noise.
_DIGITS = 6


@dataclass(frozen=True)
class NetworkRuns:
    """What one process measured of one network. Immutable; every statistic is derived.

    Parameters
    ----------
    network : str
        Digest of the network; empty for an operator that was measured alone.
    reference : float
        Median time of the reference operator meanwhile [s].
    whole : tuple of float
        Time of the whole network [s], by timed run without marks; empty for an operator alone.
    operators : tuple of str
        Keys of its operators in order; empty where the network was measured from the outside alone.
    n_calls : tuple of int
        Calls of torch functions that each operator stands for, which is how many marks its time holds.
    parts : tuple of tuple of float
        By operator, its time [s] in every marked run.
    protocol : mapping, optional
        How it was measured.

    Raises
    ------
    InvalidValueError
        If lengths do not fit each other, or a time is not a positive, finite number.
    """

    network: str
    reference: float
    whole: tuple[float, ...] = ()
    operators: tuple[str, ...] = ()
    n_calls: tuple[int, ...] = ()
    parts: tuple[tuple[float, ...], ...] = ()
    protocol: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not len(self.operators) == len(self.n_calls) == len(self.parts):
            raise InvalidValueError(
                f"There must be as many 'operators' as 'n_calls' and 'parts'. Got {len(self.operators)}, "
                f"{len(self.n_calls)} and {len(self.parts)}."
            )
        if len({len(times) for times in self.parts}) > 1 or not (self.whole or self.parts):
            raise InvalidValueError("Every operator must have as many runs as the others, and something a run.")
        if self.network and not self.whole:
            raise InvalidValueError("A network must have runs of the whole.")
        for times in ((self.reference,), self.whole, *self.parts):
            if not all(math.isfinite(seconds) and seconds > 0 for seconds in times):
                raise InvalidValueError("Every time must be a positive, finite number.")
        if any(count < 0 for count in self.n_calls) or any(not times for times in self.parts):
            raise InvalidValueError("Every operator must have a run and a count of calls that is not negative.")

    @classmethod
    def of(cls, content: Any) -> NetworkRuns:
        """Make one of a line of a memo.

        Raises
        ------
        InvalidValueError
            If it is no such line; the message says why.
        """
        if not isinstance(content, dict):
            raise InvalidValueError(f"It must be an object. Got {type(content).__name__}.")
        try:
            protocol = content.get("protocol")
            return cls(
                str(content["network"]),
                float(content["reference"]),
                tuple(map(float, content["whole"])),
                tuple(map(str, content["operators"])),
                tuple(map(int, content["n_calls"])),
                tuple(tuple(map(float, times)) for times in content["parts"]),
                dict(protocol) if protocol is not None else None,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InvalidValueError):
                raise
            raise InvalidValueError(
                f"A field is absent or of another type ({type(error).__name__}: {error})."
            ) from error

    def content(self) -> dict[str, Any]:
        """Return it as plain lists and numbers, times with six digits."""
        plain = asdict(self)
        plain["reference"] = _rounded(self.reference)
        plain["whole"] = [_rounded(seconds) for seconds in self.whole]
        plain["parts"] = [[_rounded(seconds) for seconds in times] for times in self.parts]
        return plain

    def rounded(self) -> NetworkRuns:
        """Return it as it is read back, so that what measured and what reads later say the same."""
        return NetworkRuns.of(self.content())

    def summarise_whole(self, protocol: Protocol) -> Summary:
        """Return the time of the whole network [s]."""
        return Measurement(self.whole, protocol).summary

    def summarise_parts(self, protocol: Protocol) -> list[Summary]:
        """Return the time of every operator [s], so that they add up to the whole network as it runs without marks.

        What the marks cost is the difference of the marked and the unmarked runs, spread evenly over the calls. Lower
        quartiles of parts add up to less than that of the whole, which a common factor makes good. An operator that
        was measured alone had no marks inside, and stands as it was measured.
        """
        taken = [Measurement(times, protocol).summary for times in self.parts]
        if not self.network or not taken:
            return taken
        whole = self.summarise_whole(protocol).value
        marked = Measurement(tuple(math.fsum(run) for run in zip(*self.parts, strict=True)), protocol).summary.value
        mark = min(max(0.0, (marked - whole) / max(1, sum(self.n_calls))), _MOST_MARK)
        left = [
            max(part.value - count * mark, _LEAST_LEFT * part.value)
            for part, count in zip(taken, self.n_calls, strict=True)
        ]
        factor = whole / math.fsum(left)
        return [_corrected(part, value, factor) for part, value in zip(taken, left, strict=True)]


def _corrected(part: Summary, left: float, factor: float) -> Summary:
    """Take what the marks cost off an operator's time, and bring it to the speed of runs without marks."""
    marks = part.value - left
    low, high = min(left, max(part.low - marks, _LEAST_LEFT * part.low)), max(left, part.high - marks)
    return Summary(left * factor, low * factor, high * factor, part.n_samples, part.n_dropped)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")
