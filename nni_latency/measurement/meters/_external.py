# SPDX-License-Identifier: Apache-2.0
"""External power meters: a CSV file that grows, and a power reading over HTTP."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import http.client
import json
import math
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from nni_latency.errors import FileFormatError, InvalidValueError, MeasurementError, reason_of
from nni_latency.files import is_file
from nni_latency.measurement.meters._base import SampledMeter
from nni_latency.platforms import affinity
from nni_latency.units import format_seconds, number_of

#: Prefixes of the columns of time, and of power with the factor that converts it to watts.
_TIMES = ("time", "date", "t_s", "seconds")
_POWERS = {"power_mw": 1e-3, "mw": 1e-3, "milliwatt": 1e-3, "power": 1.0, "watt": 1.0, "w": 1.0}

#: Pattern of the load that aligns the clocks, a digit per step, which resembles no shift of itself; and step [s].
LOAD_PATTERN, _STEP = (1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0), 0.5

#: Largest offset of the clocks [s], resolution of the search for it [s], and least correlation with the load.
_REACH, _FINE, _CLEAR = 30.0, 0.02, 0.6

#: Longest delay of the file [s].
_LAG = 20.0

#: Most attempts to detect the load, and the time for which an offset remains valid [s].
_TRIES, _KEPT = 3, 900.0

#: Names of fields with the power [W]; the first one present counts.
_NAMES = ("apower", "power", "power_w", "watts", "watt", "active_power", "w", "value")

#: Longest response [byte], and longest time to it [s].
_LONGEST, _TIMEOUT = 65536, 5.0

#: Number of characters of a wrong response that are shown.
_SHOWN = 60


class CsvMeter(SampledMeter):
    """Follows the file of an external power meter and aligns its clock with this machine's.

    The file has a header with a column of time (seconds, or dates as in ISO 8601) and one of power (``power_w``,
    ``power_mw``, ``watts``, ...), and lines are added to it while it is read. When a session opens, the processors
    work and rest in a pattern of 8 s, and the offset of the clocks is that with the largest correlation between pattern
    and power. If others' work hides the pattern, it is repeated up to twice. A session that opens within a quarter of
    an hour, in any process, uses the same offset.

    Parameters
    ----------
    path : str or Path
        The file.
    offset : float, optional
        The meter's clock less this machine's [s], if it is known; then no load is made.
    every : float, default=0.1
        Time between reads of the file [s].
    work : callable, optional
        Makes the load, for a number of seconds.

    Raises
    ------
    InvalidValueError
        If there is no such file.
    """

    resolution = 0.1
    settling = 2.0
    silence = ", so the program that writes the file has ended, or the offset of its clock is wrong"

    def __init__(
        self,
        path: str | Path,
        offset: float | None = None,
        *,
        every: float = 0.1,
        work: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(every)
        self.path, self.offset = Path(path), offset
        self._work = work or keep_busy
        self._read, self._rest, self._columns = 0, "", (0, 0, 1.0)
        #: Offset of the meter's clock to this machine's [s], once it is known.
        self.offset_ = offset or 0.0
        self._aligned = -math.inf
        if not is_file(self.path):
            raise InvalidValueError(
                "The meter 'csv' follows the file that the program of a power meter writes, as in csv:power.csv. There "
                f"is no file {str(path)!r}."
            )

    @classmethod
    def of(cls, device: str, argument: str = "") -> CsvMeter:
        """Make the meter from ``csv:FILE`` or ``csv:FILE,offset=SECONDS``."""
        path, given, seconds = argument.partition(",offset=")
        try:
            return cls(path, float(seconds) if given else None)
        except ValueError as error:
            if isinstance(error, InvalidValueError):
                raise
            raise InvalidValueError(f"The offset of {path!r} must be seconds. Got {seconds!r}.") from error

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return f"csv:{self.path.name}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Read the header, go to the end of the file, and align the clocks.

        Raises
        ------
        FileFormatError
            If there are no columns of time and power.
        MeasurementError
            If the file does not grow, or does not show the load.
        """
        with self._file() as file:
            header = file.readline()
            self._columns = columns_of(header, str(self.path))
            # Programs write in blocks, so the last line may be continued.
            *_, self._rest = file.read().split("\n")
            self._read = file.tell()
        if self.offset is None and time.time() > self._aligned + _KEPT:
            self.offset_ = self._align()
            self._aligned = time.time()
        yield

    def readings(self) -> Sequence[tuple[float, float]]:
        """Return the readings that were added to the file, by this machine's clock."""
        base = time.time() - time.perf_counter()
        return [(moment - self.offset_ - base, watts) for moment, watts in self._added()]

    def _added(self) -> list[tuple[float, float]]:
        """Return the lines that were added: time by the meter's clock [s] and power [W]."""
        with self._file() as file:
            if file.seek(0, os.SEEK_END) < self._read:
                raise MeasurementError(f"{self.path} became shorter: its program began a new file.")
            file.seek(self._read)
            text = self._rest + file.read()
            self._read = file.tell()
        *lines, self._rest = text.split("\n")
        when, power, factor = self._columns
        found = []
        for row in csv.reader(lines):
            try:
                found.append((_seconds(row[when]), factor * float(row[power])))
            except (IndexError, ValueError):
                if any(field.strip() for field in row):
                    raise MeasurementError(
                        f"{self.path} has a line without a time and a power: {','.join(row)!r}"
                    ) from None
        return found

    @contextlib.contextmanager
    def _file(self) -> Iterator[TextIO]:
        try:
            # The last character may be cut off, too.
            with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
                yield file
        except OSError as error:
            raise MeasurementError(f"{self.path} cannot be read any more: {error}") from error

    def _align(self) -> float:
        """Determine the offset by a load, which is repeated if others' work hides it."""
        for _ in range(_TRIES):
            offset, clear = self._offset()
            if clear >= _CLEAR:
                return offset
        raise MeasurementError(
            f"{self.path} does not show the load that was made to align the clocks (correlation {clear:.2f}): other "
            "processes were busy, or it is the meter of another machine. Where the clocks agree, give "
            "csv:FILE,offset=0"
        )

    def _offset(self) -> tuple[float, float]:
        """Make the load and search for it; return the offset [s] and the correlation."""
        begin, readings = time.time(), list[tuple[float, float]]()
        for place, digit in enumerate(LOAD_PATTERN, start=1):
            # Until the scheduled end of the step, so that delays do not add up.
            (self._work if digit else time.sleep)(max(0.0, begin + place * _STEP - time.time()))
        until = time.time() + _LAG
        length = len(LOAD_PATTERN) * _STEP
        while time.time() < until:
            readings += self._added()
            # Further readings are needed if the clocks differ.
            if readings and len(readings) > len(LOAD_PATTERN) and readings[-1][0] - readings[0][0] > length:
                break
            time.sleep(self.every)
        if len(readings) < len(LOAD_PATTERN):
            raise MeasurementError(
                f"{self.path} got {number_of(len(readings), 'line')} in {format_seconds(time.time() - begin)}: its "
                "program has ended, or writes too seldom."
            )
        return clock_offset([moment for moment, _ in readings], [watts for _, watts in readings], begin)


def columns_of(header: str, name: str) -> tuple[int, int, float]:
    """Return the columns of time and power, and the factor of the power.

    Raises
    ------
    FileFormatError
        If there are none.

    Examples
    --------
    >>> columns_of("timestamp,voltage,power_mw", "log.csv")
    (0, 2, 0.001)
    """
    names = [field.strip().lower() for field in next(csv.reader([header]), [])]
    when = next((place for place, field in enumerate(names) if field.startswith(_TIMES)), None)
    for beginning, factor in _POWERS.items():
        power = next((place for place, field in enumerate(names) if field.startswith(beginning)), None)
        if when is not None and power is not None:
            return when, power, factor
    raise FileFormatError(
        f"{name} has no columns of time and power, such as 'timestamp,power_w'. Its first line is {header.strip()!r}."
    )


def clock_offset(times: ArrayLike, watts: ArrayLike, begin: float) -> tuple[float, float]:
    """Determine the offset of the clock of a power meter by a load.

    Parameters
    ----------
    times : array-like of shape (n_readings,)
        Times of the readings by the meter's clock [s].
    watts : array-like of shape (n_readings,)
        The readings [W].
    begin : float
        Beginning of the load by this machine's clock [s].

    Returns
    -------
    offset : float
        The meter's clock less this machine's [s].
    clear : float
        Correlation of load and power at that offset.
    """
    when, power = np.asarray(times, dtype=np.float64), np.asarray(watts, dtype=np.float64)
    moments = np.arange(0.0, len(LOAD_PATTERN) * _STEP, _STEP / 10)
    load = np.array(LOAD_PATTERN, dtype=np.float64)[(moments // _STEP).astype(int).clip(0, len(LOAD_PATTERN) - 1)]
    load -= load.mean()
    offsets = np.arange(-_REACH, _REACH, _FINE)
    best = (0.0, -1.0)
    for offset in offsets[np.argsort(np.abs(offsets))]:
        at = begin + offset + moments
        if at[0] < when[0] - _STEP or at[-1] > when[-1] + _STEP:
            continue
        seen = np.interp(at, when, power)
        seen -= seen.mean()
        size = math.sqrt(float(load @ load) * float(seen @ seen))
        found = float(load @ seen) / size if size > 0 else 0.0
        if found > best[1] + 1e-6:
            best = (float(offset), found)
    return best


def keep_busy(seconds: float) -> None:
    """Keep all processors of this process busy for some seconds."""
    end, block = time.perf_counter() + seconds, bytes(1 << 20)

    def work() -> None:
        while time.perf_counter() < end:
            # It releases the interpreter's lock meanwhile.
            hashlib.sha256(block).digest()

    threads = [threading.Thread(target=work) for _ in affinity()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _seconds(text: str) -> float:
    """Read a time: seconds, or a date."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()).timestamp()


class HttpMeter(SampledMeter):
    """Requests the power from an address repeatedly: a number, or JSON with a field such as ``power``.

    The response is the current power, so only this machine's clock is involved: a reading belongs to the middle of its
    request. It includes everything that is connected to the meter.

    Parameters
    ----------
    url : str
        The address; after ``#`` the path of the field, as in ``http://plug/status#meters.0.power``.
    every : float, default=0.1
        Time between requests [s].

    Raises
    ------
    InvalidValueError
        If it is not an address.
    """

    resolution = 0.1
    settling = 2.0

    def __init__(self, url: str, every: float = 0.1) -> None:
        super().__init__(every)
        self.url, _, self.field = url.partition("#")
        if not self.url.startswith(("http://", "https://")):
            raise InvalidValueError(
                f"The meter 'http' takes an address, as in http://plug.local/status#power. Got {url!r}."
            )

    @classmethod
    def of(cls, scheme: str, device: str, argument: str) -> HttpMeter:
        """Make the meter from ``http:URL`` or the address itself."""
        return cls(argument if argument.startswith("http") else f"{scheme}:{argument}")

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return f"{self.url}#{self.field}" if self.field else self.url

    def readings(self) -> Sequence[tuple[float, float]]:
        """Return the current power."""
        begin = time.perf_counter()
        try:
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT) as answer:
                text = answer.read(_LONGEST).decode()
            watts = power_of(json.loads(text), self.field)
        except json.JSONDecodeError as error:
            raise MeasurementError(f"the answer is neither a number nor JSON: {text[:_SHOWN]!r}") from error
        except (OSError, http.client.HTTPException, ValueError, OverflowError, RecursionError) as error:
            raise MeasurementError(_reason(error)) from error
        return [((begin + time.perf_counter()) / 2, watts)]


def _reason(error: Exception) -> str:
    """Return the reason of a failed request, without the wrapper of urllib."""
    inner = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError):
        return str(error)
    if isinstance(error, http.client.HTTPException):
        return reason_of(error)
    return str(getattr(inner, "strerror", None) or inner)


def power_of(content: Any, field: str = "") -> float:
    """Return the power in a response [W].

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> power_of({"meters": [{"power": 12.5, "is_valid": True}]}), power_of({"a": {"b": "3"}}, "a.b")
    (12.5, 3.0)
    """
    if field:
        for part in field.split("."):
            try:
                content = content[int(part)] if isinstance(content, list) else content[part]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"the answer has no field {field!r}") from None
        found: Any = content
    else:
        found = next(_candidates(content), None)
    if found is None or isinstance(found, (bool, dict, list)):
        names = ", ".join(_NAMES)
        raise ValueError(f"the answer has no number under any of {names}; name its field behind '#'")
    watts = float(found)
    if not 0 <= watts < math.inf:
        raise ValueError(f"the power is {watts!r}")
    return watts


def _candidates(content: Any) -> Iterator[Any]:
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        yield content
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    named = {str(key).lower(): value for key, value in items}
    yield from (named[name] for name in _NAMES if isinstance(named.get(name), (int, float)))
    for value in named.values():
        if isinstance(value, (dict, list)):
            yield from _candidates(value)
