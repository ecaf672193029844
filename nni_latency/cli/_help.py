# SPDX-License-Identifier: Apache-2.0
"""Help in two lengths: ``--help`` lists what most people need, ``--help-all`` every option in sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

_META = "nni_latency.help_all"

#: With so few options, all are listed.
_FEW = 12


class Option(click.Option):
    """An option of a group, which help lists in a section.

    Parameters
    ----------
    section : str
        Title of the section.
    is_rare : bool
        Whether only ``--help-all`` lists it.
    """

    def __init__(self, *args: Any, section: str = "", is_rare: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.section, self.is_rare = section, is_rare


def help_sections(parameters: Sequence[click.Parameter], *, everything: bool) -> dict[str, list[click.Parameter]]:
    """Return the options that help lists, by the title of their section: all, or those that most people need."""
    if not everything:
        options = [item for item in parameters if isinstance(item, click.Option)]
        few = len(options) <= _FEW
        return {"Options": [item for item in options if few or not getattr(item, "is_rare", False)]}
    found: dict[str, list[click.Parameter]] = {}
    for item in parameters:
        if isinstance(item, click.Option):
            found.setdefault(getattr(item, "section", "") or "Options", []).append(item)
    return found


def help_all_option() -> click.Option:
    """Make ``--help-all``."""

    def show(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            context.meta[_META] = True
            click.echo(context.get_help(), color=context.color)
            context.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show all options and exit.",
    )


def format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command: those that most people need, or all."""
    everything = bool(context.meta.get(_META))
    for title, options in help_sections(command.get_params(context), everything=everything).items():
        records = [record for item in options if (record := item.get_help_record(context)) is not None]
        with formatter.section(title):
            formatter.write_dl(records)
    if everything:
        formatter.write_paragraph()
        formatter.write_text("Every command also takes --quiet and --verbose.")
