# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from __future__ import annotations

from typing import Any

import nni_latency_service.commands as commands
import nni_latency_service.query as query
from nni_latency import hookimpl
from nni_latency.plugins import Register, RegisterCommand


@hookimpl
def register_estimators(register: Register) -> None:
    """Register the estimator ``service:URL#PLATFORM``, which queries a service."""
    register("service", _remote)


@hookimpl
def register_commands(register: RegisterCommand) -> None:
    """Register the commands that query a latency and run a service."""
    register("query", _query, runs_networks=True)
    register("serve", _serve)


def _remote(argument: str) -> Any:
    return query.RemoteEstimator.of(argument)


def _query() -> Any:
    """Ask for a latency: from a record, a measurement or a prediction."""
    return commands.query_command


def _serve() -> Any:
    """Serve latencies over HTTP: known, measured or predicted."""
    return commands.serve_command
