"""How much the commands say: ``--quiet`` and ``--verbose``, before or behind any command; no remark twice."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import click

from nni_latency.cli._printable import printable
from nni_latency.errors import LatencyWarning

_PREFIX = "nni_latency.noise."


def noise_options() -> list[click.Option]:
    """Make both options; what they say holds for the whole command line."""
    texts = {
        "quiet": "Print no progress and no remarks.",
        "verbose": "Cut no list short, show all facts, and where an error arose.",
    }
    return [
        click.Option([f"--{name}"], is_flag=True, expose_value=False, help=text, callback=_note)
        for name, text in texts.items()
    ]


def is_quiet() -> bool:
    """Whether only results are printed."""
    return _is("quiet")


def is_verbose() -> bool:
    """Whether everything is printed."""
    return _is("verbose")


def is_new(remark: str) -> bool:
    """Whether the command makes a remark for the first time; from now on it does not."""
    context = click.get_current_context(silent=True)
    made: set[str] = set() if context is None else context.meta.setdefault(f"{_PREFIX}remarks", set())
    if remark in made:
        return False
    made.add(remark)
    return True


@contextlib.contextmanager
def warnings_as_remarks() -> Iterator[None]:
    """Print every warning of this package once, as a remark; other warnings as Python does."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, LatencyWarning):
            by_python(message, category, *where, **more)
        elif not is_quiet() and is_new(str(message)):
            click.echo(printable(str(message)), err=True)

    with warnings.catch_warnings():
        by_python = warnings.showwarning
        warnings.simplefilter("always", LatencyWarning)
        warnings.showwarning = show
        yield


def _is(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_PREFIX + name))


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta[f"{_PREFIX}{parameter.name}"] = True
    if _is("quiet") and _is("verbose"):
        raise click.UsageError("--quiet and --verbose exclude each other. Give one of them.")
