# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from __future__ import annotations

from typing import Any

import nni_latency_service.commands as commands
from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_estimators(register: Register) -> None:
    """Register the estimator ``service:URL#PLATFORM``, which queries a service."""
    register("service", "nni_latency_service.query:RemoteEstimator.of")


@hookimpl
def register_commands(register: Register) -> None:
    """Register the commands that query a latency and run a service."""
    register("query", _query, runs_networks=True)
    register("serve", _serve)


def _query() -> Any:
    """Ask for a latency: from a record, a measurement or a prediction."""
    return commands.query_command


def _serve() -> Any:
    """Serve latencies over HTTP: known, measured or predicted."""
    return commands.serve_command
