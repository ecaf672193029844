# SPDX-License-Identifier: Apache-2.0
"""Commands that plugins add to ``nni-latency``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from nni_latency.errors import LatencyError
from nni_latency.plugins import Registration, load_registry


@dataclass(frozen=True)
class AddedCommands:
    """What plugins add, and what is wrong with them.

    Parameters
    ----------
    commands : mapping of str to Registration
        By name.
    problems : list of str
        A sentence for each plugin that did not load, or whose command has the name of a built-in one.
    """

    commands: Mapping[str, Registration] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def added_commands(builtin: Container[str]) -> AddedCommands:
    """Return the commands of plugins. Errors of plugins are returned, not raised, so that built-in commands work."""
    try:
        registry = load_registry()
    except LatencyError as error:
        return AddedCommands(problems=[str(error)])
    problems = [f"The plugin {item.name!r} did not load: {item.error}." for item in registry.plugins if item.error]
    problems += [
        f"The plugin {item.owner!r} registers the command {name!r}, which nni-latency has already."
        for name, item in registry.commands.items()
        if name in builtin
    ]
    return AddedCommands(
        {name: item for name, item in sorted(registry.commands.items()) if name not in builtin}, problems
    )


def runs_networks(name: str | None) -> bool:
    """Whether a command of a plugin runs networks of the user."""
    added = added_commands(()).commands.get(name or "")
    return added is not None and added.runs_networks
