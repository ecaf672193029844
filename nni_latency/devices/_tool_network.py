# SPDX-License-Identifier: Apache-2.0
"""`ToolNetwork`: a network that a tool runs on a device."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from nni_latency.devices import _agent
from nni_latency.devices._place import find_holes
from nni_latency.devices._tool import Start, UnreadableError, Written
from nni_latency.measurement import CandidateError
from nni_latency.measurement.runtimes import ProfiledRun

#: What a number takes that has occurred before, once it is compressed, as a share of its size.
_REPEATED = 0.01

if TYPE_CHECKING:
    from nni_latency.devices._tool_device import ToolDevice


class ToolNetwork:
    """A network on a device. It is removed there when this object is gone."""

    def __init__(self, device: ToolDevice, files: Mapping[str, bytes], shapes: Sequence[tuple[int, ...]]) -> None:
        self.device, self.files, self.shapes = device, dict(files), list(shapes)
        digest = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in files.values()))
        self.name = f"net-{digest.hexdigest()[:20]}"
        #: What a run takes [s]; 0 before the first.
        self.usual = 0.0
        #: Files that the tool wrote when it ran the network first.
        self.first: dict[str, bytes] = {}
        weakref.finalize(self, device.release, self.name).atexit = False
        device.keep(self.name)

    def times(self, runs: int) -> list[float]:
        """Return times of whole runs [s]: as many, or fewer where the tool reports a mean or median over them."""
        return self._read(runs, with_layers=False)[0]

    def measured(self, runs: int) -> tuple[list[float], list[ProfiledRun]]:
        """Return times of whole runs, and of layers by run, from one start."""
        return self._read(runs, with_layers=True)

    def written(self, runs: int, **flags: bool) -> tuple[Start, Written]:
        """Start the tool and return what it wrote."""
        if self.usual:
            runs = max(1, min(runs, int(self.device.longest / self.usual)))
        with_layers = flags.get("with_layers", False)
        return self.device.start(self, runs=runs, with_layers=with_layers, warmups=self.device.warmups)

    def _read(self, runs: int, *, with_layers: bool) -> tuple[list[float], list[ProfiledRun]]:
        start, written = self.written(runs, with_layers=with_layers)
        tool = self.device.tool
        try:
            samples = tool.samples(written, start)
            layers = tool.layers(written, start) if with_layers else []
        except UnreadableError as error:
            last = next(iter(reversed(written.text.strip().splitlines())), "")
            raise CandidateError(f"{tool.name} ended, but {error}; the last line is {last.strip()[:200]!r}") from error
        if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
            raise CandidateError(f"{tool.name} reports the times {samples}, which are not valid")
        self.usual = min(samples)
        if with_layers and not any(run.nodes for run in layers):
            raise CandidateError(f"{tool.name} reports no layers")
        return samples, layers


def with_repeats(data: bytes, weights: Iterable[NDArray[Any]]) -> bytes:
    """Return a serialised network in which weights are random numbers that repeat, so that it can be compressed.

    Every weight has other numbers, so that no runtime takes two for the same.

    Examples
    --------
    >>> import zlib
    >>> import numpy as np
    >>> values = np.arange(8192, dtype=np.float32)
    >>> made = with_repeats(b"head" + values.tobytes() + b"tail", [values])
    >>> made[:4], made[-4:], len(made), len(zlib.compress(made, 1)) < 12000
    (b'head', b'tail', 32776, True)
    """
    return _agent.expand(_agent.shrink(data, find_holes(data, weights)))


def compressed(size: float) -> float:
    """Estimate what a weight of `with_repeats` takes once it is compressed, given the size of its numbers [byte]."""
    return min(size, 4 * _agent._PERIOD) + _REPEATED * size
