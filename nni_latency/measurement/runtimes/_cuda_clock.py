"""The clock of a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from nni_latency.errors import MeasurementError
from nni_latency.measurement._bench import CandidateError


class CudaClock:
    """Events on the current stream: time on the GPU, read after it has caught up."""

    # CUDA documents about half a microsecond for the time between two events.
    resolution = 5e-7

    def mark(self) -> Any:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def intervals(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last event and return the times between neighbours [s].

        Raises
        ------
        CandidateError
            If what ran failed: kernels run after their calls have returned, so it shows here.
        MeasurementError
            If the device cannot tell the time between events.
        """
        try:
            marks[-1].synchronize()
        except RuntimeError as error:
            raise CandidateError(str(error).partition("\n")[0]) from error
        try:
            return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
        except RuntimeError as error:
            raise MeasurementError(f"The GPU's clock events do not work: {error}") from error
