"""Where the commands write: results to stdout, progress and remarks to stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table

from nni_latency.cli._printable import printable
from nni_latency.platforms import FACTS, Platform
from nni_latency.tables import LookupTable
from nni_latency.units import format_count

#: Entries that are listed by name at most.
_LISTED = 8


class _SafeConsole(Console):
    """A console that prints the text of files as text; only rich itself controls the terminal."""

    def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
        for segment in super().render(*args, **options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def results() -> Console:
    """Return the console for results."""
    return _SafeConsole(highlight=False)


def remarks() -> Console:
    """Return the console for progress and remarks."""
    return _SafeConsole(stderr=True, highlight=False)


def progress(console: Console) -> Progress:
    """Return a progress bar with the time left in the field ``left``."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[left]}"),
        console=console,
    )


def facts_table(platform: Platform, *, wide: bool) -> Table:
    """Return the facts of a platform for a person; with their meanings where there is room."""
    table = Table(title="Platform", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("id", platform.id)
    meanings = {fact.name: fact.meaning for fact in FACTS}
    for name, value in platform.facts.items():
        table.add_row(name, escape(_plain(name, value)), *([f"[dim]{escape(meanings.get(name, ''))}"] if wide else []))
    return table


def pairs_table(title: str, pairs: Mapping[str, Any]) -> Table:
    """Return names and values for a person."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in pairs.items():
        table.add_row(name, escape(str(value)))
    return table


def print_doubts(table: LookupTable, console: Console) -> None:
    """Say what is doubtful about a table: candidates that failed or never settled, and unsteady conditions."""
    for layer in table.layers:
        for choice, reason in layer.failures.items():
            console.print(f"Could not be measured: {escape(f'{layer.name}:{choice}: {reason}')}", soft_wrap=True)
    if table.unsettled:
        names = ", ".join(f"{layer}:{choice}" for layer, choice in table.unsettled[:_LISTED])
        more = f" and {len(table.unsettled) - _LISTED} more" if len(table.unsettled) > _LISTED else ""
        console.print(
            f"{len(table.unsettled)} entries did not settle within the budget: {escape(names)}{more}. "
            "Give a larger --budget, or measure on a quieter machine.",
            soft_wrap=True,
        )
    for remark in table.remarks:
        console.print(escape(remark), soft_wrap=True)


def print_names(console: Console, what: str, names: Sequence[str]) -> None:
    """Say how many there are of something, and name every one; nothing where there is none."""
    if names:
        console.print(f"{len(names)} {what}: {escape(', '.join(names))}", soft_wrap=True)


def _plain(name: str, value: Any) -> str:
    if name.endswith("memory"):
        return f"{value / 2**30:.1f} GiB"
    return format_count(value) if isinstance(value, (int, float)) and abs(value) >= 1e6 else str(value)
