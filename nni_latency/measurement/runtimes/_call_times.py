"""Timing every call of a torch function inside a network that runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from nni_latency.measurement._chain import Clock, Stage


def time_calls(stage: Stage, value: Any, clock: Clock) -> list[float]:
    """Run a network and time its calls of torch functions.

    A mark costs about a microsecond, so the sum is a little more than an unmarked run takes.

    Returns
    -------
    list of float
        By call, the time since the end of the one before [s], never below the clock's resolution.
    """
    marks = [clock.mark()]
    with _CallMarks(marks, clock.mark):
        stage(value)
    if len(marks) > 1:
        # What follows the last call belongs to it.
        marks[-1] = clock.mark()
    return [max(seconds, clock.resolution) for seconds in clock.intervals(marks)]


class _CallMarks(TorchFunctionMode):
    """Marks the end of every call of a torch function while it is entered."""

    def __init__(self, marks: list[Any], mark: Callable[[], Any]) -> None:
        super().__init__()
        self._marks = marks
        self._mark = mark

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        self._marks.append(self._mark())
        return result
