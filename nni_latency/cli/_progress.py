"""The progress of measuring: a bar with the time left, and how to resume after an interruption."""

from __future__ import annotations

import contextlib
import math
import time
from types import TracebackType

import click
import rich.progress

import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._measuring_options import StoreOptions
from nni_latency.cli._supervision import INTERRUPTED
from nni_latency.errors import MeasurementError
from nni_latency.units import format_seconds, number_of


class Part:
    """A line of a progress bar, with the time left by how long its part has taken so far.

    Parameters
    ----------
    bar : Progress
        The bar.
    name : str
        What is done.
    is_next : bool
        Whether it is shown before it begins.
    """

    def __init__(self, bar: rich.progress.Progress, name: str, *, is_next: bool) -> None:
        self._bar = bar
        self._task = bar.add_task(name, total=1.0, left="", start=False, visible=is_next)
        self._first: tuple[float, float] | None = None

    def __call__(self, share: float) -> None:
        """Move to the share that is done; what was done when it began took no time."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, share)
            self._bar.start_task(self._task)
        begin, done = self._first
        left = (now - begin) * (1 - share) / (share - done) if share > done else 0.0
        self._bar.update(self._task, visible=True, completed=share, left=f"{format_seconds(left)} left" if left else "")


class Measuring:
    """A context in which something is measured behind a progress bar; Ctrl-C says how to resume.

    Parameters
    ----------
    what : str
        What is measured.
    runtime : Runtime
        Where.
    store : StoreOptions
        Where the measurements are kept.
    meters : tuple of Meter, default=()
        What is read besides the clock.
    """

    def __init__(
        self,
        what: str,
        runtime: runtimes.Runtime,
        store: StoreOptions,
        meters: tuple[measurement.Meter, ...] = (),
    ) -> None:
        self._what, self._runtime = what, runtime
        #: Further arguments of the functions that measure.
        self.how = tables.MeasuringOptions(
            store=store.database,
            fresh=store.fresh,
            on_progress=self.on_progress,
            on_start=self.on_start,
            meters=meters,
        )
        self._console = remarks()
        self._resumed = 0
        self._has_measured = False
        self._bar = progress(self._console)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Measuring:
        """Get ready; nothing is shown yet."""
        self._task = self._bar.add_task("warming up", total=1.0, left="")
        return self

    def on_start(self, rounds: int) -> None:
        """Show the bar: only now is everything checked, so an error appears without a bar before it."""
        self._resumed = rounds
        resumed = f", resuming after {number_of(rounds, 'round')}" if rounds else ""
        self._console.print(f"Measuring {self._what} on {self._runtime.platform.id}{resumed}", markup=False)
        self._open.enter_context(self._bar)

    def on_progress(self, state: measurement.Progress) -> None:
        """Move the bar."""
        self._has_measured = True
        left = format_seconds(state.remaining) if state.remaining > 0 else "0 s"
        wide = f", {number_of(state.unsettled, 'interval')} still wide" if state.unsettled else ""
        self._bar.update(
            self._task, completed=state.share, description=f"round {state.rounds}{wide}", left=f"at most {left} left"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._open.close()
        if error is None and self._resumed and not self._has_measured:
            self._console.print(
                "The database holds all that the budget allows: nothing was measured. Give a larger --budget to "
                "measure more, or --fresh to measure again."
            )
        if isinstance(error, measurement.CoarseMeterError):
            raise MeasurementError(f"{error} Here that is --max-window {math.ceil(error.needed)}s") from error
        if isinstance(error, KeyboardInterrupt):
            self._console.print(
                "Interrupted. Run the same command again to resume: the database keeps what was measured."
            )
            raise click.exceptions.Exit(INTERRUPTED) from None
