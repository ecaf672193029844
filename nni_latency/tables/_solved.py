# SPDX-License-Identifier: Apache-2.0
"""Tables of runtimes that execute a network as a unit: whole networks are measured, and the entries solved for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import (
    Chain,
    Failure,
    Protocol,
    Record,
    Schedule,
    Store,
    StoredCampaign,
    Subject,
    balanced_round,
    light_network,
    quantile,
)
from nni_latency.operators import OpSpec, features_of
from nni_latency.platforms import Platform
from nni_latency.tables._building import METERS, Measuring, space_content
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._layer_schedule import ALIGNMENTS, LayerSchedule, Network
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._solving import Solution, solve_entries

#: Share of the budget for timing candidates in the substitute runtime, and the half-width sought for their intervals.
_PRIOR_SHARE, _PRIOR_HALF_WIDTH = 0.25, 0.03

#: Networks of the first batch, whose times are still unknown, and the fewest of any batch.
_FIRST_BATCH = 4

#: Rounds over the networks of a batch.
_VISITS = 10

Columns = list[NDArray[np.float64]]


class BatchSchedule(Schedule):
    """Batches of whole networks until the budget is spent, each on a separate bench.

    Parameters
    ----------
    plan : MeasurePlan
        Plan whose entries are solved for.
    protocol : Protocol
        Measuring protocol; its budget includes the time that the runtime needs to prepare networks.
    prior : list of ndarray
        Prior costs of the candidates, by layer.
    failed : sequence of (int, int)
        Layer and index of the candidates that cannot be executed.
    metric : str, default="latency"
        Metric to solve for.
    """

    kind = "solved"
    counts_preparation = True

    def __init__(
        self,
        plan: MeasurePlan,
        protocol: Protocol,
        prior: Columns,
        failed: Sequence[tuple[int, int]] = (),
        metric: str = "latency",
    ) -> None:
        super().__init__(protocol, isolated=False)
        self.plan, self.prior, self.metric = plan, prior, metric
        self._available = [
            [choice for choice in range(size) if (layer, choice) not in failed] for layer, size in enumerate(plan.sizes)
        ]
        self._reference = plan.indices_of(plan.reference)
        self._rounds: dict[int, list[Sequence[Record]]] = {}
        self._batch: list[Network] = []
        # Networks that are planned beyond the batch.
        self._left = 0

    @property
    def end(self) -> float:
        """Infinite: a session is one batch, and ends with it."""
        return float("inf")

    @property
    def share(self) -> float:
        """Share of the budget, or of the permitted batches, that was spent."""
        return max(len(self._rounds) / self.protocol.rounds, self.spent / self.protocol.time_budget)

    def sessions(self) -> Iterator[int]:
        """Yield batches until the budget is spent; an interrupted batch is measured again."""
        first = max(self._rounds, default=-1) + 1
        for batch in range(first, first + self.protocol.rounds):
            self.process = batch
            if self.share >= 1:
                return
            affordable = self._affordable()
            drawn = self._draw(batch)[:affordable]
            if not self._rounds:
                self._left = affordable
            elif len(self._rounds) == 1 or len(drawn) > self._left:
                self.iteration, self._left = self.iteration + 1, affordable
            self._left -= len(drawn)
            self._batch = [*drawn, self._reference]
            yield batch

    def planned(self) -> Iterator[list[Chain]]:
        """Yield the networks of all batches that the budget allows; until one was measured, those of the first."""
        left = self._left + len(self._batch) - 1
        most = self.protocol.rounds - len(self._rounds) if self._rounds else 1
        for batch in range(self.process, self.process + most):
            networks = self._draw(batch)[:left]
            yield [(self._subject(network),) for network in (*networks, self._reference)]
            left -= len(networks)
            if not left:
                return

    def next_round(self) -> list[Chain]:
        """Return all networks of the batch in a new order, until the batch has its rounds."""
        if len(self._rounds.get(self.process, ())) >= _VISITS:
            return []
        able = [network for network in self._batch if self._key(network) not in self.failures]
        order = balanced_round([len(able)], self.next, self.protocol.seed)
        return [(self._subject(able[place]),) for (place,) in order]

    def observe(self, records: Sequence[Record]) -> None:
        """Add a round."""
        super().observe(records)
        self._rounds.setdefault(records[0].process, []).append(records)

    def fail(self, failure: Failure) -> None:
        """Exclude a network.

        Raises
        ------
        MeasurementError
            If it is the reference network.
        """
        super().fail(failure)
        if failure.subject == self._key(self._reference):
            raise MeasurementError(f"The reference network cannot be run: {failure.reason}.")

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.float64], list[float]]:
        """Return networks, their times at one speed [s], and the reference network's time in every batch [s]."""
        found = [values for rounds in self._rounds.values() if (values := self._summarise(rounds))]
        references = [values[self._key(self._reference)] for values in found]
        unit = quantile(references, 0.5) if references else 1.0
        rows = [
            (_network(key), value / reference * unit)
            for values, reference in zip(found, references, strict=True)
            for key, value in values.items()
        ]
        return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), references

    def _summarise(self, rounds: Sequence[Sequence[Record]]) -> dict[str, float]:
        """Return the value of each network of a batch, corrected for drift; empty without the reference network."""
        drift = [quantile([record.reference for record in records], 0.5) for records in rounds]
        level, times = quantile(drift, 0.5), dict[str, list[float]]()
        for records, reference in zip(rounds, drift, strict=True):
            for record in records:
                # Power does not scale with the speed of the machine.
                factor = 1.0 if self.metric == "power" else level / reference
                samples = record.samples.get(self.metric, ())
                times.setdefault(record.subjects[0], []).extend(factor * sample for sample in samples)
        if self._key(self._reference) not in times:
            return {}
        kept = {key: values for key, values in times.items() if key not in self.failures}
        return {key: quantile(values, self.protocol.statistic) for key, values in kept.items()}

    def _affordable(self) -> int:
        """Return the number of networks that the rest of the budget allows, at their mean time so far."""
        if not self._rounds:
            return _FIRST_BATCH
        each = max(1e-9, self.spent / sum(len(rounds[0]) for rounds in self._rounds.values()))
        return max(_FIRST_BATCH, int((1 - self.share) * self.protocol.time_budget / each))

    def _draw(self, index: int) -> list[Network]:
        costs = [column.tolist() for column in self.prior]
        seed, drawn = self.protocol.seed, list[Network]()
        for place, alignment in enumerate(ALIGNMENTS):
            number = index * len(ALIGNMENTS) + place
            pools = self._available
            drawn += balanced_round(self.plan.sizes, number, seed, wanted=pools, costs=costs, alignment=alignment)
            drawn.append(light_network(pools, costs, number, seed))
        return list(dict.fromkeys(network for network in drawn if network != self._reference))

    def _key(self, network: Network) -> str:
        return ",".join(map(str, network))

    def _subject(self, network: Network) -> Subject:
        selection = {
            layer.name: list(layer.candidates)[choice] for layer, choice in zip(self.plan.layers, network, strict=True)
        }
        build = self.plan.network_of(selection)
        return Subject(self._key(network), build, self.plan.input_shape, specification={"selection": selection})


def solved_table(plan: MeasurePlan, measuring: Measuring, metric: str) -> LookupTable:
    """Measure whole networks and solve for the entries of their candidates.

    The prior is the cost of the candidates in a runtime that supports layer timing, or is computed from their work.

    Raises
    ------
    MeasurementError
        If the reference network cannot be executed.
    InvalidValueError
        If the budget was spent before three networks were measured.
    """
    budget = measuring.protocol.time_budget
    prior, failed = _measure_prior(plan, measuring)
    protocol = replace(measuring.protocol, time_budget=(1 - _PRIOR_SHARE) * budget)
    schedule = BatchSchedule(plan, protocol, prior, list(failed), metric)
    measured = measuring.run(schedule, _content(plan))
    table = solve_batches(schedule, failed, measuring.runtime.platform)
    return measured.mark(replace(table, protocol=measuring.protocol))


def _content(plan: MeasurePlan) -> dict[str, Any]:
    keys = [[candidate.op.op_key for candidate in layer.candidates.values()] for layer in plan.layers]
    return space_content(plan.space, plan.input_shape, keys)


def _measure_prior(plan: MeasurePlan, measuring: Measuring) -> tuple[Columns, dict[tuple[int, int], str]]:
    """Time the candidates in the substitute runtime; without one, estimate their costs from their work."""
    inner = measuring.runtime.stand_in()
    if inner is None:
        return _computed_prior(plan), {}
    protocol = replace(
        measuring.protocol,
        time_budget=_PRIOR_SHARE * measuring.protocol.time_budget,
        half_width=_PRIOR_HALF_WIDTH,
        processes=1,
    )
    # Without meters and callbacks.
    inside = Measuring(inner, protocol, measuring.store, measuring.fresh, timer=measuring.timer, wait=measuring.wait)
    schedule = LayerSchedule(plan, protocol, isolated=inside.benches.isolated)
    inside.run(schedule, _content(plan))
    return _columns(schedule), schedule.failed


def prior_of(plan: MeasurePlan, campaign: StoredCampaign, store: Store) -> tuple[Columns, dict[tuple[int, int], str]]:
    """Return the prior of a stored campaign, from the campaign of its substitute runtime."""
    for found in reversed(list(store.campaigns(kind=LayerSchedule.kind))):
        other, mine = found.header, campaign.header
        same_machine = (other.platform.device, other.platform.threads) == (mine.platform.device, mine.platform.threads)
        content = {name: value for name, value in mine.content.items() if name != METERS}
        if same_machine and other.content == content:
            schedule = LayerSchedule(plan, other.protocol)
            schedule.replay(found.records, found.failures)
            return _columns(schedule), schedule.failed
    return _computed_prior(plan), {}


def _columns(schedule: LayerSchedule) -> Columns:
    return [np.maximum(column, 1e-12) for column in schedule.samples.costs()]


def _computed_prior(plan: MeasurePlan) -> Columns:
    return [np.array([_work(candidate.op) for candidate in layer.candidates.values()]) for layer in plan.layers]


def solve_batches(schedule: BatchSchedule, failed: dict[tuple[int, int], str], platform: Platform) -> LookupTable:
    """Solve for the entries, given all observations of a schedule.

    Raises
    ------
    InvalidValueError
        If there are fewer than three networks.
    """
    plan, (architectures, times, references) = schedule.plan, schedule.rows()
    if len(times) < 3:
        raise InvalidValueError("The time budget is too small: it was spent before three networks were measured.")
    features = [np.array([_counts(candidate.op) for candidate in layer.candidates.values()]) for layer in plan.layers]
    names = [list(layer.candidates) for layer in plan.layers]
    # Contributions to the mean power do not depend on work: the prior is uniform.
    even = schedule.metric == "power"
    prior = [np.ones(size) for size in plan.sizes] if even else schedule.prior
    solution = solve_entries(architectures, times, prior, () if even else features, names)
    return LookupTable(
        metric=schedule.metric,
        space=plan.space,
        platform=platform,
        layers=_layers(plan, solution, architectures, failed),
        input_shape=plan.input_shape,
        protocol=schedule.protocol,
        rounds=len(references),
        duration=round(schedule.spent, 3),
        reference=quantile(references, 0.5),
        drift=tuple(float(f"{seconds:.6g}") for seconds in references),
    )


def _layers(
    plan: MeasurePlan, solution: Solution, architectures: NDArray[np.int64], failed: dict[tuple[int, int], str]
) -> tuple[TableLayer, ...]:
    layers = []
    for index, layer in enumerate(plan.layers):
        entries, names = {}, tuple(layer.candidates)
        for choice, (name, candidate) in enumerate(layer.candidates.items()):
            count = int((architectures[:, index] == choice).sum())
            value, deviation = float(solution.values[index][choice]), float(solution.deviations[index][choice])
            low, high = max(0.0, value - NORMAL * deviation), value + NORMAL * deviation
            entries[name] = Entry(value, low, high, count, 0, candidate.op)
        reasons = {names[choice]: reason for (place, choice), reason in failed.items() if place == index}
        layers.append(TableLayer.of_plan(layer, entries, reasons))
    return tuple(layers)


def _network(key: str) -> Network:
    return tuple(map(int, key.split(",")))


def _counts(op: OpSpec) -> list[float]:
    """Return explanatory features of an operator's cost: multiply-adds, and bytes read and written."""
    found = features_of(op)
    return [float(found.macs), float(found.memory)]


def _work(op: OpSpec) -> float:
    """Return a rough estimate of the cost of an operator [s], for a device of 20 GMAC/s and 10 GB/s."""
    macs, memory = _counts(op)
    return macs / 20e9 + memory / 10e9 + 1e-6
