# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nni_latency_farm as farm
import nni_latency_farm.commands as commands
from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_remotes(register: Register) -> None:
    """Register the workers of a farm, ``farm:URL``."""
    register("farm", _open)


@hookimpl
def register_commands(register: Register) -> None:
    """Register the commands that run a farm."""
    register("farm", _command)


def _open(address: str, on_wait: Callable[[str], None]) -> Any:
    return farm.Farm(address, farm.FarmSecurity.of_environment(), on_wait=on_wait)


def _command() -> Any:
    """Measure on several machines: start a scheduler, join it, see how it is doing."""
    return commands.farm_command
