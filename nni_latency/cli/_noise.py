"""How much the commands say: the options ``--quiet`` and ``--verbose`` of the group and of every command."""

from __future__ import annotations

from typing import Any

import click

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


def _is(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_PREFIX + name))


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta[f"{_PREFIX}{parameter.name}"] = True
    if _is("quiet") and _is("verbose"):
        raise click.UsageError("--quiet and --verbose exclude each other. Give one of them.")
