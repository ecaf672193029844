# SPDX-License-Identifier: Apache-2.0
"""The reference of commands, made of click's own commands: ``.. command:: NAME`` and ``.. commands::``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nni_latency.cli import main
from nni_latency.cli._help import help_sections

#: What is code in a help text: options, and what stands in quotes.
_CODE = re.compile(r"(?<![\w-])(--[a-z][\w-]*|'[^']+'(?!\w))")


class Command(SphinxDirective):
    """``.. command:: NAME`` shows the synopsis, the help and all options of a command; its content are examples."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the command."""
        # The options are defined in many modules, so that a page is as new as its last build.
        self.env.note_reread()
        words = self.arguments[0].split()
        context = click.Context(main, info_name="nni-latency")
        for word in words:
            found = context.command.get_command(context, word) if isinstance(context.command, click.Group) else None
            if found is None:
                raise self.error(
                    f"There is no command {self.arguments[0]!r}. Are its plugin and nni_latency installed?"
                )
            context = click.Context(found, parent=context, info_name=word)
        examples = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, examples)
        return [*_synopsis(context), *_inner(context, words), *examples.children, *_options(context, "-".join(words))]


class Commands(SphinxDirective):
    """``.. commands::`` lists all commands with a link to the page of each."""

    def run(self) -> list[nodes.Node]:
        """Return a list of definitions."""
        self.env.note_reread()
        context = click.Context(main, info_name="nni-latency")
        lines = []
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            summary = command.get_short_help_str(limit=200) if command else ""
            lines += [f":doc:`commands/{name}`", f"   {summary.rstrip('.')}.", ""]
        listed = nodes.container()
        self.state.nested_parse(StringList(lines, "commands"), 0, listed)
        return list(listed.children)


def _synopsis(context: click.Context) -> Iterator[nodes.Node]:
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    yield nodes.literal_block(usage, usage, language="text", classes=["synopsis"])
    for paragraph in (context.command.help or "").split("\n\n"):
        yield _paragraph(" ".join(paragraph.split()))


def _inner(context: click.Context, words: list[str]) -> Iterator[nodes.Node]:
    """List the commands of a group, whose sections have their names as titles."""
    if not isinstance(context.command, click.Group):
        return
    listed = nodes.definition_list()
    for name, command in context.command.commands.items():
        title = " ".join([*words, name])
        link = nodes.reference("", title, internal=True, refid=nodes.make_id(title))
        summary = _paragraph(command.get_short_help_str(limit=200))
        listed += nodes.definition_list_item("", nodes.term("", "", link), nodes.definition("", summary))
    yield listed


def _options(context: click.Context, name: str) -> Iterator[nodes.Node]:
    for title, options in help_sections(context.command.params, everything=True).items():
        yield nodes.rubric("", title)
        yield nodes.definition_list("", *(_option(item, context, name) for item in options), classes=["options"])


def _option(item: click.Parameter, context: click.Context, name: str) -> nodes.definition_list_item:
    flags, text = item.get_help_record(context) or ("", "")
    text = " ".join(text.split())
    if item.envvar:
        text = f"{text} Environment variable: '{item.envvar}'."
    term = nodes.term("", "", nodes.literal("", flags))
    # Two hyphens, so that no section has the same name: "serve keys" is a command, too.
    term["ids"].append(f"{name}{max(item.opts, key=len)}")
    return nodes.definition_list_item("", term, nodes.definition("", _paragraph(text)))


def _paragraph(text: str) -> nodes.paragraph:
    """Make a paragraph of a help text, in which what is typed is code."""
    made = nodes.paragraph()
    for place, part in enumerate(_CODE.split(text)):
        made += nodes.literal("", part.strip("'")) if place % 2 else nodes.Text(part)
    return made


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("command", Command)
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
