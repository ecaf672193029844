"""`HttpMeter`: an external power meter that tells its power over HTTP, such as a plug."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement.meters._sampled import SampledMeter

#: What meters call their power [W], the first that is there counts.
_NAMES = ("apower", "power", "power_w", "watts", "watt", "active_power", "w", "value")

#: Longest answer [byte] and time to it [s].
_LONGEST, _TIMEOUT = 65536, 5.0

#: Letters of a wrong answer that are shown.
_SHOWN = 60


class HttpMeter(SampledMeter):
    """Asks an address for the power again and again: a number, or JSON with a field such as ``power``.

    It is asked for the power now, so no clock but this machine's takes part: a reading belongs to the middle of its
    request. It reads all that hangs on the meter.

    Parameters
    ----------
    url : str
        The address; behind ``#`` the path of the field, as in ``http://plug/status#meters.0.power``.
    every : float, default=0.1
        Time between requests [s].

    Raises
    ------
    InvalidValueError
        If it is no address.
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
        """Make it of ``http:URL`` or the address itself."""
        return cls(argument if argument.startswith("http") else f"{scheme}:{argument}")

    @property
    def description(self) -> str:
        """What it is."""
        return f"{self.url}#{self.field}" if self.field else self.url

    def readings(self) -> Sequence[tuple[float, float]]:
        """Ask once."""
        begin = time.perf_counter()
        try:
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT) as answer:
                text = answer.read(_LONGEST).decode()
            watts = power_of(json.loads(text), self.field)
        except json.JSONDecodeError as error:
            raise MeasurementError(f"the answer is no number and no JSON: {text[:_SHOWN]!r}") from error
        except (OSError, ValueError, OverflowError) as error:
            raise MeasurementError(_reason(error)) from error
        return [((begin + time.perf_counter()) / 2, watts)]


def _reason(error: Exception) -> str:
    """Say why there is no power, without what urllib wraps around it."""
    inner = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError):
        return str(error)
    return str(getattr(inner, "strerror", None) or inner)


def power_of(content: Any, field: str = "") -> float:
    """Return the power in an answer [W].

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
