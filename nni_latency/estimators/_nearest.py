"""The entry whose operator is most alike, for candidates and operators that a table lacks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from nni_latency.operators import OpSpec, work_of
from nni_latency.tables import Entry, OperatorEntry

AnyEntry = TypeVar("AnyEntry", Entry, OperatorEntry)

#: Counts by which operators are alike.
_COUNTS = ("macs", "acts", "inp", "params", "memory")


def nearest_entry(op: OpSpec | None, entries: Iterable[AnyEntry]) -> AnyEntry | None:
    """Return the entry whose operator is most alike: of the same kind if there is one, and of the closest counts."""
    alike = [entry for entry in entries if entry.op is not None and entry.features is not None]
    if op is None or not alike:
        return None
    wanted = work_of(op)[0]

    def distance(entry: AnyEntry) -> tuple[bool, float]:
        have = entry.features
        logs = (abs(math.log((getattr(wanted, n) + 1) / (getattr(have, n) + 1))) for n in _COUNTS)
        return entry.op is None or entry.op.kind != op.kind, sum(logs)

    return min(alike, key=distance)
