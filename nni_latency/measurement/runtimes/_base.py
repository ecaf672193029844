"""The seam between measuring and what executes a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from nni_latency.measurement._chain import Clock, Stage
from nni_latency.platforms import Platform


class Runtime(ABC):
    """What executes a model: prepares modules and inputs, and says what time it is.

    Not thread-safe: one session at a time in a process. Modules given to `load` may be moved and changed.
    Errors of the device surface as `MeasurementError`.
    """

    #: Its name in platform ids, such as ``torch``.
    name: str

    @property
    @abstractmethod
    def platform(self) -> Platform:
        """Where its numbers are taken."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """A clock that sees the end of the work, not only its start."""

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """Set threads and everything else that must hold while it runs; put it back afterwards."""

    @abstractmethod
    def load(self, module: Any) -> Stage:
        """Prepare a module and return what runs it."""

    @abstractmethod
    def inputs(self, shape: Sequence[int]) -> Any:
        """Make an input of random numbers of that shape."""
