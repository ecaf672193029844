# SPDX-License-Identifier: Apache-2.0
"""A simulated noisy machine whose truth is known: what the tests of the statistics share.

How slow it is changes at three time scales, large networks suffer more, single runs are disturbed, and where a process
lies in memory makes its layers faster or slower. A network deviates from the sum of its layers by a share of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nni_latency.measurement import Protocol, balanced_round, light_network
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import (
    MeasurePlan,
    NetworkMeasurements,
    PlanCandidate,
    PlanLayer,
    Residency,
    SpaceReference,
    reference_networks,
)
from nni_latency.tables._layer_schedule import Round, Samples
from nni_latency.tables._networks import network_times
from nni_latency.tables._summary import summarise
from nni_latency.validation import draw_networks

_CHOICES = {"skip": 0.004, "light": 0.25, "grouped": 0.3, "wide": 0.6, "middle": 0.9, "large": 1.6, "largest": 1.9}
_SHAPE = (1, 16)


def _plan() -> MeasurePlan:
    """Make a plan of 14 layers, of which some hold the same operators; the middle layers are the costliest."""
    layers = []
    for index in range(14):
        # Two layers in a row have equal operators.
        size = 1 + (index // 2) % 5
        candidates = {
            choice: PlanCandidate(OpSpec.of("identity", [(1, 16 * size)], choice=choice), lambda: None)
            for choice in _CHOICES
        }
        layers.append(PlanLayer(f"layer{index}", candidates))
    return MeasurePlan(SpaceReference("simulated"), _SHAPE, tuple(layers))


PLAN = _plan()

#: True costs of the candidates of every layer [s].
COSTS = [[1e-3 * (0.5 + 0.15 * ((index // 2) % 5)) * cost + 4e-6 for cost in _CHOICES.values()] for index in range(14)]

_MEDIAN = 14 * float(np.mean(COSTS))

_CURVE = Residency(0.2, 0.3 * _MEDIAN)


@dataclass(frozen=True)
class Seen:
    """What a visit of a network measured, as the schedules hand it on."""

    reference: float
    parts: list[list[float]]
    whole: list[float]
    process: int = 0


class Machine:
    """Measures networks of `PLAN`; the truth is the same for machines of one `space`."""

    platform = Platform("simulated", "fake")

    def __init__(self, seed, *, space=None, quiet=False, error=0.012, curve=_CURVE, placement=0.01):
        self.generator = np.random.default_rng(seed)
        self.space, self.error, self.curve = seed if space is None else space, error, curve
        self.placement = placement
        share = 0.08 if quiet else 1.0
        self.scale = share * np.array([0.08, 0.08, 0.06])
        self.noise, self.operator, self.spikes = (0.006, 0.01, 0.005) if quiet else (0.025, 0.06, 0.04)
        self.levels = np.zeros(3)
        self.day = self.generator.normal(0, 0.05 * share)
        self.process = -1
        self.begin_process()

    def begin_process(self):
        """Place weights and activations anew."""
        self.process += 1
        self.places = [np.exp(self.generator.normal(0, self.placement, len(column))) for column in COSTS]

    def truth(self, network):
        """Return what a network takes on the undisturbed machine [s]."""
        total = sum(column[choice] for column, choice in zip(COSTS, network, strict=True))
        deviation = np.random.default_rng([self.space, *network]).normal(0, self.error)
        return float(self.curve(total) * np.exp(deviation))

    def _slowness(self):
        changed = self.generator.random(3) < 1 / np.array([4.0, 40.0, 400.0])
        drawn = np.where(self.generator.random(3) < 0.6, self.generator.exponential(self.scale), 0.0)
        self.levels = np.where(changed, drawn, self.levels)
        return self.levels.sum() + self.day

    def _disturbed(self, count):
        spikes = np.where(self.generator.random(count) < self.spikes, np.abs(self.generator.normal(0, 0.3, count)), 0)
        return np.exp(self.generator.normal(0, self.noise, count) + spikes)

    def visit(self, network):
        """Visit a network as a bench does."""
        parts = np.array([c[i] * p[i] for c, p, i in zip(COSTS, self.places, network, strict=True)])
        slow = self._slowness()
        whole, share = self.truth(network), self.truth(network) / sum(c[i] for c, i in zip(COSTS, network, strict=True))
        # Large networks suffer more.
        factor = np.exp(slow * (1 + 0.3 * (parts.sum() / _MEDIAN - 1)))
        placed = parts.sum() / sum(c[i] for c, i in zip(COSTS, network, strict=True))
        reference = 1e-3 * np.exp(0.7 * slow + self.generator.normal(0, self.operator))
        return Seen(
            float(reference),
            [(parts * share * factor * self._disturbed(len(parts))).tolist()],
            [float(whole * placed * factor * self._disturbed(1)[0])],
            self.process,
        )

    def rounds(self, count):
        """Measure the rounds of a build."""
        references = [PLAN.indices_of(reference) for reference in PLAN.references]
        for index in range(count):
            if index and index % (count // 3 or 1) == 0:
                self.begin_process()
            alignment = (0.0, 1.0, 0.5)[index % 3]
            networks = balanced_round(PLAN.sizes, index, costs=COSTS, alignment=alignment)
            networks += [light_network([range(len(column)) for column in COSTS], COSTS, index), *references]
            order = self.generator.permutation(len(networks))
            drawn = tuple(networks[place] for place in order)
            yield Round(drawn, tuple(map(self.visit, drawn)))


def build(machine, rounds=45):
    """Build the table of a machine."""
    samples = Samples(PLAN.sizes)
    for record in machine.rounds(rounds):
        samples.add(record)
    return summarise(PLAN, machine.platform, Protocol(), samples)


def measure(machine, rounds=20):
    """Measure whole networks as `measure_networks` does."""
    networks = draw_networks(PLAN, 24, seed=machine.space)
    everything = {**networks, **reference_networks(PLAN, networks)}
    indices = [PLAN.indices_of(selection) for selection in everything.values()]
    samples = Samples((len(indices),))
    for index in range(rounds):
        if index and index % (rounds // 3) == 0:
            machine.begin_process()
        order = machine.generator.permutation(len(indices)).tolist()
        visits = [machine.visit(indices[place]) for place in order]
        whole = tuple(Seen(visit.reference, [], visit.whole, visit.process) for visit in visits)
        samples.add(Round(tuple((place,) for place in order), whole))
    times = network_times(everything, samples.runs, Protocol())
    references = {name: item for name, item in times.items() if name not in networks}
    found = {name: times[name] for name in networks}
    return NetworkMeasurements(found, machine.platform, references, tuple(samples.drift), 1.0, {})
