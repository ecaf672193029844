"""What formats have in common that know searched layers by their order, and nothing else."""

from __future__ import annotations

import nni_latency.tables as tables
from nni_latency.errors import listed


def fixed_remarks(table: tables.LookupTable) -> tuple[str, ...]:
    """Name the entries of fixed layers, which these formats have no place for."""
    names = [f"{layer.name}:{choice}" for layer in table.layers if not layer.searched for choice in layer.entries]
    if not names:
        return ()
    return (f"The format has no place for fixed layers, which are left out: {listed(names)}.",)


def common_choices(table: tables.LookupTable) -> list[str]:
    """Return the candidates of all searched layers, each once, in their order."""
    return list(dict.fromkeys(choice for layer in table.searched for choice in layer.choices))
