"""`RandomOneShot`: uniform sampling of paths that keeps to a range of costs until the end."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.nas import _nni
from nni_latency.units import number_of


class RandomOneShot(_nni.RandomOneShot):
    """Train a supernet by random paths, all of them within the filter, the exported one too.

    NNI 3.0 trains on filtered paths, but exports one that no filter has seen, and gives up after 100 draws. Here the
    filter holds for the export, and the draws can be many more: they cost microseconds with a `LatencyProfiler`.

    Parameters
    ----------
    filter : callable, optional
        Takes a sample and returns whether it may be trained: a `LatencyFilter`, or any filter of NNI.
    attempts : int, default=10000
        How often a path is drawn for one that passes the filter.
    **kwargs
        Further parameters of NNI's `RandomOneShot`.

    Raises
    ------
    InvalidValueError
        If `attempts` is no int >= 1.
    UnreachableTargetError
        During the search, if no path drawn passes the filter.
    """

    def __init__(self, filter: Any = None, *, attempts: int = 10_000, **kwargs: Any) -> None:  # noqa: A002
        if not isinstance(attempts, int) or attempts < 1:
            raise InvalidValueError(f"The 'attempts' of RandomOneShot must be an int >= 1. Got {attempts!r}.")
        super().__init__(filter, **kwargs)
        self.attempts = attempts

    def configure_oneshot_module(self, training_module: Any) -> ObedientSamplingModule:
        """Make the module that draws and trains."""
        return ObedientSamplingModule(training_module, self.filter, self.attempts)


class ObedientSamplingModule(_nni.RandomSamplingLightningModule):
    """Draw until a path passes the filter, for every training step and for the export.

    Parameters
    ----------
    training_module : LightningModule
        How the evaluator trains.
    keep : callable or None
        The filter.
    attempts : int
        How often to draw.
    """

    def __init__(self, training_module: Any, keep: Any, attempts: int) -> None:
        super().__init__(training_module, keep)
        self._sampling_patience = attempts

    def _repeat_until_valid(self, func: Any) -> dict[str, Any]:
        for attempt in range(self._sampling_patience):
            self._sampling_attempt = attempt + 1
            sample: dict[str, Any] = func()
            if self.filter is None or self.filter(sample):
                return sample
        raise UnreachableTargetError(
            f"None of {number_of(self._sampling_patience, 'random path')} passes the filter. Widen its range, or draw "
            "more often with 'attempts'."
        )

    def export(self) -> dict[str, Any]:
        """Return a random path that passes the filter."""
        return self._repeat_until_valid(super(_nni.RandomSamplingLightningModule, self).export)
