# SPDX-License-Identifier: Apache-2.0
"""Networks of an adapter on a device, with random weights instead of those that would have to be sent."""

from __future__ import annotations

import importlib.util
import math
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.devices import _agent
from nni_latency.devices._connection import Connection
from nni_latency.devices._session import Answer, Session
from nni_latency.errors import InvalidValueError
from nni_latency.measurement.runtimes import SETTLING_RUNS, Arrays, Place, Placed

#: Numbers from which on random ones are made on the device instead of sent.
_LARGE = 4096

#: By so many bytes a weight is looked for in a network.
_BEGINNING = 64

#: A format may have the transpose of these.
_RANK_OF_MATRICES = 2

Hole = tuple[int, int, int, float]


def find_holes(data: bytes, weights: Iterable[NDArray[Any]]) -> list[Hole]:
    """Find weights in a serialised network, whatever its format.

    Parameters
    ----------
    data : bytes
        The network.
    weights : iterable of ndarray
        Weights of 32 bits; those that do not lie in it in one piece are passed over.

    Returns
    -------
    list of (int, int, int, float)
        Offset, length, seed, and standard deviation of each, by offset.

    Examples
    --------
    >>> values = np.arange(64, dtype=np.float32)
    >>> find_holes(b"head" + values.tobytes() + b"tail", [values])
    [(4, 256, 0, 18.47295)]
    """
    found: dict[int, Hole] = {}
    cursor = 0
    for values in weights:
        for form in (values, values.T) if values.ndim == _RANK_OF_MATRICES else (values,):
            raw = np.ascontiguousarray(form, np.float32).tobytes()
            at = _find(data, raw, cursor)
            if at >= 0:
                found.setdefault(at, (at, len(raw), 0, float(f"{float(values.std()):.7g}")))
                cursor = at + len(raw)
                break
    apart: list[Hole] = []
    for at, length, _, scale in (found[place] for place in sorted(found)):
        if not apart or at >= apart[-1][0] + apart[-1][1]:
            apart.append((at, length, len(apart), scale))
    return apart


def _find(data: bytes, raw: bytes, cursor: int) -> int:
    for begin in (cursor, 0):
        at = data.find(raw[:_BEGINNING], begin)
        while at >= 0:
            if data[at : at + len(raw)] == raw:
                return at
            at = data.find(raw[:_BEGINNING], at + 1)
    return -1


class DevicePlace(Place):
    """An adapter on a device.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    module : str
        Name of the module that is the adapter; it is not imported here.
    settings : mapping
        What it is made with there.
    on_wait : callable
        As for `Session`.
    """

    def __init__(
        self,
        connection: Connection,
        module: str,
        settings: Mapping[str, Any],
        on_wait: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        found = importlib.util.find_spec(module) if module else None
        if found is None or found.origin is None:
            raise InvalidValueError("This runtime has no adapter that could be sent to a device.")
        self.session = Session(connection, Path(found.origin), settings, on_wait)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the adapter reports of the runtime; the device is reached for it."""
        self.session.open()
        found: Mapping[str, Any] = self.session.opened["facts"]
        return found

    @property
    def device_facts(self) -> Mapping[str, Any]:
        """What the device is, under the names of `nni_latency.platforms.FACTS`; an adapter may describe its GPU."""
        gpu = self.facts.get("device", {})
        found = {**self.session.hello, "cpu_affinity": self.session.opened["cores"], **gpu}
        if gpu:
            found.pop("cpu_signature", None)
        return found

    def load(self, data: bytes, weights: Iterable[NDArray[Any]] = ()) -> Placed:
        """Prepare a network for the device, which loads it when it first runs."""
        holes = find_holes(data, weights)
        return DevicePlaced(self.session, self.session.keep(_agent.shrink(data, holes)), keeps_weights=not holes)


class DevicePlaced(Placed):
    """A network on a device, which lets go of it when this object is gone."""

    def __init__(self, session: Session, name: str, *, keeps_weights: bool) -> None:
        self.session, self.name, self._keeps_weights = session, name, keeps_weights
        self._answers: dict[str, Any] = {}
        weakref.finalize(self, session.release, name).atexit = False

    @property
    def keeps_weights(self) -> bool:
        """Whether the device has the original weights."""
        return self._keeps_weights

    def run(self, arrays: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        return self._run(arrays, 1, values=True)

    def settled(self, arrays: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        """Run it several times and return the last results, or arrays of their shapes."""
        return self._run(arrays, runs, values=self.keeps_weights)

    def settle(self, arrays: Arrays, runs: int) -> None:
        """Nothing: a device runs what it has loaded a few times before it times it."""

    def _run(self, arrays: Arrays, runs: int, *, values: bool) -> Sequence[NDArray[Any]]:
        answer = self._ask("run", arrays, exact=values, runs=runs, values=values)
        described = answer.values["results"]
        if not values:
            return [np.broadcast_to(np.zeros((), item["dtype"]), item["shape"]) for item in described]
        return [
            np.frombuffer(blob, item["dtype"]).reshape(item["shape"])
            for item, blob in zip(described, answer.blobs, strict=True)
        ]

    def times(self, arrays: Arrays, runs: int) -> list[float]:
        """Time runs there [s]."""
        return [
            float(seconds) for seconds in self._ask("times", arrays, runs=runs, settling=SETTLING_RUNS).values["times"]
        ]

    def profile(self, feed: Callable[[], Arrays], runs: int) -> Mapping[str, Any]:
        """Run it several times on the same inputs, with a profile."""
        found: Mapping[str, Any] = self._ask("profile", feed(), runs=runs, settling=SETTLING_RUNS).values["profile"]
        return found

    def call(self, method: str) -> Any:
        """Return what a visit brought of a method, or ask for it."""
        if method not in self._answers:
            self.learn(self.session.ask("call", needs=[self.name], network=self.name, method=method))
        return self._answers[method]

    def learn(self, answer: Answer) -> None:
        """Keep answers of methods."""
        blobs = iter(answer.blobs)
        for method, value in answer.values["answers"].items():
            self._answers[method] = zlib.decompress(next(blobs)) if value is None else value

    def _ask(self, what: str, arrays: Arrays, *, exact: bool = False, **fields: Any) -> Answer:
        inputs = described_arrays(self.session, arrays, exact=exact)
        needs = [self.name, *(item["content"] for item in inputs)]
        return self.session.ask(what, needs=needs, network=self.name, inputs=inputs, **fields)


def described_arrays(session: Session, arrays: Arrays, *, exact: bool = False) -> list[dict[str, Any]]:
    """Describe arrays for a device; unless they must be `exact`, many floating-point numbers are drawn there."""
    found = []
    for array in arrays:
        data = np.ascontiguousarray(array).tobytes()
        is_real = not exact and array.dtype == np.float32 and array.size >= _LARGE
        deviation = float(array.std()) if is_real else 0.0
        holes = [(0, len(data), 0, float(f"{deviation:.7g}"))] if 0 < deviation < math.inf else []
        name = session.keep(_agent.shrink(data, holes))
        found.append({"content": name, "dtype": str(array.dtype), "shape": list(array.shape)})
    return found
