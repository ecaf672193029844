# SPDX-License-Identifier: Apache-2.0
"""A registry of plugins in the place of that of the package."""

from __future__ import annotations

import importlib

#: Modules that look plugins up.
_READERS = (
    "cli._added",
    "cli._measuring",
    "loading._connections",
    "loading._estimators",
    "loading._runtimes",
    "spaces._finding",
)


def use_registry(monkeypatch, registry):
    """Let the package find the plugins of a registry."""
    for module in _READERS:
        monkeypatch.setattr(importlib.import_module(f"nni_latency.{module}"), "load_registry", lambda: registry)
