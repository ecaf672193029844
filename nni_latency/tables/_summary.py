"""From samples to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._residency import fit_residency
from nni_latency.tables._samples import Samples
from nni_latency.tables._table_layer import TableLayer

#: Entries and curve depend on each other; after so many turns neither changes any more.
_TURNS = 4


def summarise(
    plan: MeasurePlan,
    platform: Platform,
    protocol: Protocol,
    samples: Samples,
    *,
    failures: Mapping[tuple[int, int], str] = MappingProxyType({}),
    duration: float = 0.0,
) -> LookupTable:
    """Make the table of what was measured.

    An entry is what a candidate costs in a network that is too large for the cache. A sample taken in a smaller network
    is first divided by what the network's size saves there, and that is found from the same runs: entries and curve are
    found in turns.
    """
    seen, times = samples.parts
    networks, totals = samples.runs
    relative = np.ones(len(seen))
    excess = samples.reference_excess(protocol)
    for _ in range(_TURNS):
        entries = _entries(plan, protocol, seen, times / relative[:, None])
        calibration, residency = fit_residency(_sums(networks, entries), totals / excess, 0.5)
        if residency is None:
            break
        sums = _sums(seen, entries) * calibration
        relative = residency(sums) / sums
    return LookupTable(
        space=plan.space,
        platform=platform,
        layers=_layers(plan, entries, failures),
        input_shape=plan.input_shape,
        protocol=protocol,
        calibration=calibration,
        rounds=len(samples.drift),
        duration=round(duration, 3),
        residency=residency,
        reference=samples.reference(protocol),
        drift=tuple(float(f"{seconds:.6g}") for seconds in samples.drift),
    )


def _entries(
    plan: MeasurePlan, protocol: Protocol, networks: NDArray[np.int64], times: NDArray[np.float64]
) -> list[dict[int, Entry]]:
    """Make the entries of every layer, by index of the candidate."""
    entries: list[dict[int, Entry]] = []
    for layer, column, chosen in zip(plan.layers, times.T, networks.T, strict=True):
        ops = [candidate.op for candidate in layer.candidates.values()]
        entries.append(
            {
                choice: _entry(ops[choice], Measurement(tuple(column[chosen == choice].tolist()), protocol))
                for choice in np.unique(chosen).tolist()
            }
        )
    return entries


def _entry(op: OpSpec, measurement: Measurement) -> Entry:
    summary = measurement.summary
    return Entry(summary.value, summary.low, summary.high, summary.n_samples, summary.n_dropped, op)


def _sums(networks: NDArray[np.int64], entries: Sequence[Mapping[int, Entry]]) -> NDArray[np.float64]:
    """Add up the entries of networks."""
    total = np.zeros(len(networks))
    for chosen, layer in zip(networks.T, entries, strict=True):
        values = np.zeros(int(chosen.max()) + 1)
        for choice, entry in layer.items():
            values[choice : choice + 1] = entry.value
        total += values[chosen]
    return total


def _layers(
    plan: MeasurePlan, entries: Sequence[Mapping[int, Entry]], failures: Mapping[tuple[int, int], str]
) -> tuple[TableLayer, ...]:
    layers = []
    for index, (layer, measured) in enumerate(zip(plan.layers, entries, strict=True)):
        names = tuple(layer.candidates)
        failed = {names[choice]: reason for (place, choice), reason in failures.items() if place == index}
        # What has failed in the end has no entry, even if it was measured before.
        kept = {names[choice]: entry for choice, entry in sorted(measured.items()) if names[choice] not in failed}
        layers.append(TableLayer(layer.name, names, kept, layer.searched, layer.default, failed))
    return tuple(layers)
