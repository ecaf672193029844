"""Tables of runtimes that run a network as one piece: whole networks are measured, and the entries solved for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Protocol, Visit, balanced_round, light_network, quantile
from nni_latency.operators import OpSpec, features_of
from nni_latency.tables._entry import Entry
from nni_latency.tables._journal import Failure, Journal, RoundRecord, prior_path
from nni_latency.tables._lookup_table import LookupTable, TableLayer
from nni_latency.tables._plan import MeasurePlan, network_plan
from nni_latency.tables._rounds import ALIGNMENTS, BuildProgress, Campaign
from nni_latency.tables._solving import Solution, solve_entries

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime

#: Share of the budget for timing the candidates in the runtime that stands in, and how narrow their intervals become.
_PRIOR_SHARE, _PRIOR_HALF_WIDTH = 0.25, 0.03

#: Networks of the first batch, and the fewest of any: what they take is not known before.
_FIRST_BATCH = 4

#: Visits of every network of a batch.
_VISITS = 10

#: Normal quantile of a two-sided interval of 95 %.
_NORMAL = 1.96


class OutsideCampaign:
    """Batches of whole networks until the budget is spent, then one solution for all entries.

    What the candidates cost in a runtime that can be timed inside, or what they compute, is the prior of the solution.

    Parameters
    ----------
    plan : MeasurePlan
        What to measure.
    runtime : Runtime
        What executes it.
    protocol : Protocol
        How to measure; its budget includes the time that the runtime takes to prepare networks.
    journal : Journal
        Where every batch goes before the next begins; a second one beside it holds the prior.
    done : list of RoundRecord
        Batches of earlier runs.
    """

    def __init__(
        self, plan: MeasurePlan, runtime: Runtime, protocol: Protocol, journal: Journal, done: list[RoundRecord]
    ) -> None:
        self.plan, self.runtime, self.protocol, self.journal = plan, runtime, protocol, journal
        self._reference = plan.indices_of(plan.reference)
        self._prior_journal = Journal(prior_path(journal.path), journal.header)
        self._records = list(done)
        self._resumed = len(done)
        self.failures: list[Failure] = []

    @property
    def spent(self) -> float:
        """Time spent so far, without the prior's [s]."""
        return sum(record.duration for record in self._records)

    def run(self, on_progress: Callable[[BuildProgress], None]) -> None:
        """Measure batches until the budget is spent.

        Raises
        ------
        MeasurementError
            If no network of a batch can be run.
        InvalidValueError
            If the budget was spent before three networks were measured.
        """
        prior = self._measure_prior()
        self._prior = [np.maximum(column, 1e-12) for column in prior]
        while self._share() < 1:
            index = max((item.index for item in self._records), default=-1) + 1
            begin = time.perf_counter()

            def tell(begin: float = begin) -> None:
                waited = time.perf_counter() - begin
                share = min(1.0, self._share(waited))
                on_progress(BuildProgress(len(self._records), self.spent + waited, share, self._resumed))

            record = self._measure_batch(index, tell)
            self.journal.append(record)
            self._records.append(record)
            on_progress(BuildProgress(len(self._records), self.spent, min(1.0, self._share()), self._resumed))

    def forget(self) -> None:
        """Remove the journal of the prior; the table is done."""
        self._prior_journal.remove()

    def _share(self, waited: float = 0.0) -> float:
        """Return the share of the work that is done, `waited` seconds into a batch."""
        budget = (1 - _PRIOR_SHARE) * self.protocol.time_budget
        return max(len(self._records) / self.protocol.rounds, (self.spent + waited) / budget)

    def _measure_prior(self) -> list[NDArray[np.float64]]:
        """Time the candidates where they can be timed inside; otherwise go by what they compute."""
        inner = self.runtime.stand_in()
        if inner is None:
            return [
                np.array([_work(candidate.op) for candidate in layer.candidates.values()]) for layer in self.plan.layers
            ]
        if self._prior_journal.exists():
            _, done, failures = self._prior_journal.read()
            self._prior_journal.drop_cut_line()
        else:
            self._prior_journal.start()
            done, failures = [], []
        protocol = replace(
            self.protocol,
            time_budget=_PRIOR_SHARE * self.protocol.time_budget,
            half_width=_PRIOR_HALF_WIDTH,
            processes=1,
        )
        campaign = Campaign(self.plan, inner, protocol, self._prior_journal, done, failures, self._reference)
        campaign.run(lambda _progress: None)
        self.failures = campaign.failures
        return [np.array(column) for column in campaign.samples.costs()]

    def _measure_batch(self, index: int, tell: Callable[[], None]) -> RoundRecord:
        """Measure the networks of a few balanced rounds whole, in turns, and keep what each came to."""
        begin = time.perf_counter()
        networks = [*self._draw(index)[: self._affordable()], self._reference]
        batch = _network_plan(self.plan, networks)
        protocol = replace(self.protocol, rounds=_VISITS, half_width=0.01, processes=1)
        campaign = Campaign(batch, self.runtime, protocol, _Nowhere(), [], [], (len(networks) - 1,))
        campaign.run(lambda _progress: tell(), tell)
        failed = {failure.choice for failure in campaign.failures}
        values = {
            place: quantile(campaign.samples.of(0, place), self.protocol.statistic)
            for place in range(len(networks))
            if place not in failed
        }
        if len(networks) - 1 not in values:
            raise MeasurementError(
                f"The reference network cannot be run on {self.runtime.platform.id}: {campaign.failures[-1].reason}."
            )
        reference = values[len(networks) - 1]
        return RoundRecord(
            index,
            time.perf_counter() - begin,
            tuple(networks[place] for place in values),
            tuple(Visit(reference, [], [value]) for value in values.values()),
        )

    def _affordable(self) -> int:
        """Return how many networks the rest of the budget allows for, by what they took so far."""
        if not self._records:
            return _FIRST_BATCH
        each = self.spent / sum(len(record.networks) for record in self._records)
        left = (1 - self._share()) * (1 - _PRIOR_SHARE) * self.protocol.time_budget
        return max(_FIRST_BATCH, int(left / each))

    def _draw(self, index: int) -> list[tuple[int, ...]]:
        failed = {(failure.layer, failure.choice) for failure in self.failures}
        available = [
            [choice for choice in range(size) if (layer, choice) not in failed]
            for layer, size in enumerate(self.plan.sizes)
        ]
        costs = [column.tolist() for column in self._prior]
        seed, drawn = self.protocol.seed, []
        for place, alignment in enumerate(ALIGNMENTS):
            number = index * len(ALIGNMENTS) + place
            drawn += balanced_round(self.plan.sizes, number, seed, wanted=available, costs=costs, alignment=alignment)
            drawn.append(light_network(available, costs, number, seed))
        return list(dict.fromkeys(network for network in drawn if network != self._reference))

    def table(self) -> LookupTable:
        """Solve for the entries.

        Raises
        ------
        InvalidValueError
            If there are fewer than three networks.
        """
        references = [record.visits[0].reference for record in self._records]
        unit = quantile(references, 0.5)
        rows = [
            (network, visit.whole[0] / visit.reference * unit)
            for record in self._records
            for network, visit in zip(record.networks, record.visits, strict=True)
        ]
        if len(rows) < 3:
            raise InvalidValueError("The time budget is too small: it was spent before three networks were measured.")
        architectures = np.array([network for network, _ in rows])
        features = [
            np.array([_counts(candidate.op) for candidate in layer.candidates.values()]) for layer in self.plan.layers
        ]
        names = [list(layer.candidates) for layer in self.plan.layers]
        solution = solve_entries(architectures, np.array([value for _, value in rows]), self._prior, features, names)
        return LookupTable(
            self.plan.space,
            self.runtime.platform,
            self._layers(solution, architectures),
            self.plan.input_shape,
            "latency",
            self.protocol,
            1.0,
            len(self._records),
            round(self.spent, 3),
            reference=unit,
            drift=tuple(float(f"{seconds:.6g}") for seconds in references),
        )

    def _layers(self, solution: Solution, architectures: NDArray[np.int64]) -> tuple[TableLayer, ...]:
        layers = []
        for index, layer in enumerate(self.plan.layers):
            failed = {item.choice: item.reason for item in self.failures if item.layer == index}
            entries = {}
            for choice, (name, candidate) in enumerate(layer.candidates.items()):
                count = int((architectures[:, index] == choice).sum())
                value, deviation = solution.values[index][choice], solution.deviations[index][choice]
                if choice not in failed:
                    low = max(0.0, float(value - _NORMAL * deviation))
                    entries[name] = Entry(float(value), low, float(value + _NORMAL * deviation), count, 0, candidate.op)
            names = tuple(layer.candidates)
            reasons = {names[choice]: reason for choice, reason in failed.items()}
            layers.append(TableLayer(layer.name, names, entries, layer.searched, layer.default, reasons))
        return tuple(layers)


class _Nowhere(Journal):
    """A journal that keeps nothing: a batch that is interrupted is measured anew."""

    def __init__(self) -> None:
        """Make one."""

    def append(self, record: RoundRecord | Failure) -> None:
        """Do nothing."""


def _network_plan(plan: MeasurePlan, networks: list[tuple[int, ...]]) -> MeasurePlan:
    names = [list(layer.candidates) for layer in plan.layers]
    selections = {
        str(place): {
            layer.name: names[index][choice]
            for index, (layer, choice) in enumerate(zip(plan.layers, network, strict=True))
        }
        for place, network in enumerate(networks)
    }
    return network_plan(plan, selections)


def _counts(op: OpSpec) -> list[float]:
    """Return what may explain the cost of an operator: multiply-adds, and bytes read and written."""
    found = features_of(op)
    return [float(found.macs), float(found.memory)]


def _work(op: OpSpec) -> float:
    """Return a rough guess of the cost of an operator [s], for a device of 20 GMAC/s and 10 GB/s."""
    macs, memory = _counts(op)
    return macs / 20e9 + memory / 10e9 + 1e-6
