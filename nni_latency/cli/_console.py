# SPDX-License-Identifier: Apache-2.0
"""Where the commands write: results to stdout, progress and remarks to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

import nni_latency.estimators as estimators
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._messages import breaks, is_new, is_quiet, is_verbose, printable
from nni_latency.cli._supervision import INTERRUPTED
from nni_latency.errors import LISTED, listed
from nni_latency.platforms import FACTS, Platform
from nni_latency.units import format_count, format_seconds, number_of

#: Width of what is no screen: tables take what they need.
_ENDLESS = 10_000

#: Letters that names keep before their values.
_NAMES = 24


class _SafeConsole(Console):
    """A console that prints the text of files as text, and paths whole; only rich itself controls the terminal."""

    #: Whether sentences are folded between words.
    folds = False

    def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
        for segment in super().render(*args, **options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        if all(isinstance(item, str) for item in objects):
            options.setdefault("soft_wrap", True)
            if self.folds:
                has_markup = options.pop("markup", True)
                objects = tuple(
                    _folded(Text.from_markup(item) if has_markup else Text(item), self.width) for item in objects
                )
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Leave it to the group of commands, which is called while the error is handled."""
        raise


def results() -> Console:
    """Return the console for results; in a file or a pipe it is as wide as needed."""
    is_screen = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = _SafeConsole(highlight=False, width=None if is_screen else _ENDLESS)
    console.folds = is_screen
    return console


def remarks() -> Console:
    """Return the console for progress and remarks."""
    console = _SafeConsole(stderr=True, highlight=False, quiet=is_quiet())
    console.folds = console.is_terminal
    return console


@contextlib.contextmanager
def loading_remark(text: str) -> Iterator[None]:
    """Say at once that a command loads what takes seconds: as a line, on a screen one that is gone afterwards."""
    console = remarks()
    if console.is_terminal and not console.quiet:
        with console.status(text):
            yield
        return
    console.print(text, markup=False)
    yield


def interrupted(kept: str) -> click.exceptions.Exit:
    """Say that a command was interrupted and what was kept of it, and return what ends it."""
    remarks().print(f"Interrupted. {kept}", markup=False)
    return click.exceptions.Exit(INTERRUPTED)


def progress(console: Console) -> Progress:
    """Return a progress bar with the time left in the field ``left``.

    Parameters
    ----------
    console : rich.console.Console
        Where it is shown: that of `remarks`.

    Returns
    -------
    rich.progress.Progress
        A context; every task is added with ``left=""``.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[left]}"),
        console=console,
    )


def time_left(seconds: float) -> str:
    """Return what a progress bar says about the time left [s], in whole seconds."""
    return f"{format_seconds(max(0, round(seconds)))} left"


class Part:
    """A line of a progress bar, with the time left by how long its part has taken so far.

    Parameters
    ----------
    bar : Progress
        The bar.
    name : str
        What is done.
    is_next : bool, optional
        Of a part that begins with the first call: whether it is shown before. By default it begins now.
    """

    def __init__(self, bar: Progress, name: str, *, is_next: bool | None = None) -> None:
        self._bar = bar
        self._task = bar.add_task(name, total=1.0, left="", start=False, visible=is_next is not False)
        self._first: tuple[float, float] | None = None
        if is_next is None:
            self(0.0)

    def __call__(self, share: float, name: str | None = None) -> None:
        """Move to the share that is done, perhaps under another name; what was done at the first call took no time."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, share)
            self._bar.start_task(self._task)
        begin, done = self._first
        left = (now - begin) * (1 - share) / (share - done) if share > done else 0.0
        text = time_left(left) if left else ""
        self._bar.update(self._task, visible=True, completed=share, description=name, left=text)


def platform_facts(platform: Platform, *, wide: bool) -> dict[str, str]:
    """Return the facts of a platform for a person; with their meanings where there is room."""
    meanings = {fact.name: f"  ({fact.meaning})" for fact in FACTS} if wide else {}
    facts = {name: f"{_plain(name, value)}{meanings.get(name, '')}" for name, value in platform.facts.items()}
    return {"id": platform.id, **facts}


def pairs_table(title: str, pairs: Mapping[str, Any]) -> Table:
    """Return names and values for a person."""
    table = Table(title=escape(title), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    longest = max(map(cell_len, pairs), default=0)
    table.add_column(overflow="fold", min_width=min(longest, _NAMES))
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(escape(name), escape(str(value)))
    return table


def doubts(table: tables.LookupTable) -> list[str]:
    """Say what is doubtful about a table: what failed or never settled, and unsteady conditions."""
    lines = [f"Could not be measured: {name}: {reason}" for name, reason in table.failures.items()]
    lines += [
        f"Could not be measured: {layer.name}:{choice}: {reason}"
        for layer in table.layers
        for choice, reason in layer.failures.items()
    ]
    if table.unsettled:
        names = named(f"{layer}:{choice}" for layer, choice in table.unsettled)
        lines.append(
            f"{number_of(len(table.unsettled), 'entry', 'entries')} did not settle within the budget: {names}. Give a "
            "larger --budget, or measure on a quieter machine."
        )
    return [*lines, *table.remarks]


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print plain text, a line each; a command prints no line twice."""
    for line in filter(is_new, lines):
        console.print(escape(line))


def sentence(remark: str) -> str:
    """Make a sentence of a remark without a full stop.

    Parameters
    ----------
    remark : str
        Such as ``no record is newer``.

    Returns
    -------
    str
        With a capital letter, and a full stop.
    """
    return f"{remark[:1].upper()}{remark[1:]}."


def named(names: Iterable[object]) -> str:
    """Name a few things, or with ``--verbose`` all."""
    return listed(names, most=None if is_verbose() else LISTED)


def print_names(console: Console, noun: str, what: str, names: Sequence[str]) -> None:
    """Say how many things there are of which something is true, and name a few; print nothing for none."""
    if names:
        console.print(escape(f"{number_of(len(names), noun)} {what}: {named(names)}"))


def check_reached(requirements: Iterable[validation.Requirement], scores: estimators.Scores) -> None:
    """Say which requirements scores miss, and end the command with code 1 if they miss any."""
    missed = [requirement for requirement in requirements if not requirement.is_met(scores)]
    for requirement in missed:
        remarks().print(f"Not reached: {requirement}; it is {getattr(scores, requirement.name):.4g}.")
    if missed:
        raise click.exceptions.Exit(1)


def _folded(text: Text, width: int) -> Text:
    """Fold a text between words."""
    lines = [part for line in text.split("\n", allow_blank=True) for part in line.divide(breaks(line.plain, width))]
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def _plain(name: str, value: Any) -> str:
    if name.endswith("memory"):
        return f"{value / 2**30:.1f} GiB"
    return format_count(value) if isinstance(value, (int, float)) and abs(value) >= 1e6 else str(value)
