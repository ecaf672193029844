# SPDX-License-Identifier: Apache-2.0
"""How candidates are timed decides what their sum is worth: alone, alone but interleaved, or in context.

Candidates of the FBNet space are timed in each of these ways, and so are whole random networks, all in one run and in
turns, so that the drift of the machine meets everything alike. Then the sums are compared with the networks.

    python examples/alone_or_in_context.py --minutes 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nni_latency import FBNetSpace
from nni_latency.estimators import Scores, score
from nni_latency.measurement import Stage, Subject, balanced_round, quantile, time_chain, trim
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.tables import MeasurePlan, fit_residency
from nni_latency.validation import draw_networks

#: The order in which NNI 2.3 and nnabla-nas time a candidate: warm-ups, runs, and the share dropped at each end.
N_WARMUP, N_RUN, OUTLIER = 3, 15, 0.05

#: Networks on which the straight line is fitted.
N_LINE = 8

Costs = list[np.ndarray]


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="time spent in turns (default: 5)")
    parser.add_argument("--size", type=int, default=224, help="side of the input picture (default: 224)")
    parser.add_argument("--networks", type=int, default=24, help="random networks that are the truth (default: 24)")
    options = parser.parse_args()
    plan = FBNetSpace(input_size=options.size).measure_plan()
    trial = Trial(plan, options.networks)
    print(f"{options.size} px, torch eager, one thread, {options.minutes:g} minutes in turns")
    with trial.runtime.session():
        trial.load()
        alone = trial.time_alone()
        trial.take_turns(options.minutes * 60)
    report(trial, alone)


class Trial:
    """Candidates, networks, and the times that were taken of them.

    Parameters
    ----------
    plan : MeasurePlan
        The space.
    n_networks : int
        Random networks that are the truth.
    """

    def __init__(self, plan: MeasurePlan, n_networks: int) -> None:
        self.plan, self.runtime = plan, TorchEager()
        drawn = draw_networks(plan, n_networks + N_LINE)
        random_ones = [selection for name, selection in drawn.items() if name.startswith("random")]
        self.truth = [plan.indices_of(selection) for selection in random_ones]
        self.builds = [plan.network_of(selection) for selection in random_ones]
        self.whole: list[list[float]] = [[] for _ in self.truth]
        self.interleaved: list[list[list[float]]] = [[[] for _ in range(size)] for size in plan.sizes]
        self.in_context: list[list[list[float]]] = [[[] for _ in range(size)] for size in plan.sizes]
        self.runs: list[tuple[tuple[int, ...], float]] = []

    def load(self) -> None:
        """Load every candidate and every network, and find what goes into each layer."""
        self.networks = [self._prepare(build) for build in self.builds]
        self.stages = [
            [self._prepare(candidate.build) for candidate in layer.candidates.values()] for layer in self.plan.layers
        ]
        value = self.inputs = self.runtime.inputs(self.plan.input_shape)
        self.flow: list[Any] = []
        for column in self.stages:
            self.flow.append(value)
            value = column[0](value)

    def _prepare(self, build: Callable[[], Any]) -> Stage:
        return self.runtime.prepare(Subject("module", build), None)

    def time_alone(self) -> Costs:
        """Time every candidate alone, one after another: warm-ups, runs, trimmed mean."""
        costs = []
        for column, value in zip(self.stages, self.flow, strict=True):
            costs.append(np.array([self._trimmed_mean(stage, value) for stage in column]))
        return costs

    def _trimmed_mean(self, stage: Stage, value: Any) -> float:
        for _ in range(N_WARMUP):
            self._time(stage, value)
        return float(np.mean(trim([self._time(stage, value) for _ in range(N_RUN)], OUTLIER)[0]))

    def take_turns(self, seconds: float) -> None:
        """Time everything else in rounds: networks whole, candidates alone, candidates in context."""
        end, index = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for times, network in zip(self.whole, self.networks, strict=True):
                self._time(network, self.inputs)
                times.append(self._time(network, self.inputs))
            for layer, column in enumerate(self.stages):
                for choice, stage in enumerate(column):
                    self._time(stage, self.flow[layer])
                    self.interleaved[layer][choice].append(self._time(stage, self.flow[layer]))
            for network in balanced_round(self.plan.sizes, index):
                chain = [column[choice] for column, choice in zip(self.stages, network, strict=True)]
                time_chain(chain, self.inputs, self.runtime.clock)
                times = time_chain(chain, self.inputs, self.runtime.clock)
                self.runs.append((network, sum(times)))
                for layer, (choice, taken) in enumerate(zip(network, times, strict=True)):
                    self.in_context[layer][choice].append(taken)
            index += 1
        self.rounds = index

    def _time(self, stage: Stage, value: Any) -> float:
        return time_chain([stage], value, self.runtime.clock)[0]


def report(trial: Trial, alone: Costs) -> None:
    """Print how well every way does, on the networks that no line was fitted on."""
    truth = np.array([quantile(times, 0.25) for times in trial.whole])
    halves = [np.array([quantile(times[start::2], 0.25) for times in trial.whole]) for start in (0, 1)]
    interleaved, in_context = lower_quartiles(trial.interleaved), lower_quartiles(trial.in_context)
    print(f"{trial.rounds} rounds; the whole networks repeat within {score(*halves).mape:.1%}\n")
    print(f"{'how the candidates were timed':58}  bias   MAPE  within 10 %  Spearman")
    test = slice(N_LINE, None)

    def show(name: str, predict: Callable[[tuple[int, ...]], float]) -> None:
        found = score([predict(network) for network in trial.truth[test]], truth[test])
        print(f"{name:58} {line_of(found)}")

    show("alone, one after another, trimmed mean", lambda network: total(alone, network))
    show("alone, interleaved rounds, lower quartile", lambda network: total(interleaved, network))
    sums = [total(interleaved, network) for network in trial.truth[:N_LINE]]
    slope, offset = np.polyfit(sums, truth[:N_LINE], 1)
    line = f"the same, and a line fitted on {N_LINE} networks"
    show(line, lambda network: float(slope * total(interleaved, network) + offset))
    show("in context, balanced rounds, lower quartile", lambda network: total(in_context, network))
    runs = np.array([total(in_context, network) for network, _ in trial.runs])
    factor, _ = fit_residency(runs, [seconds for _, seconds in trial.runs])
    show("the same, calibrated by the same runs", lambda network: factor * total(in_context, network))


def lower_quartiles(samples: list[list[list[float]]]) -> Costs:
    """Reduce the samples of every candidate."""
    return [np.array([quantile(times, 0.25) for times in layer]) for layer in samples]


def total(costs: Costs, network: tuple[int, ...]) -> float:
    """Add up the candidates of a network."""
    return float(sum(column[choice] for column, choice in zip(costs, network, strict=True)))


def line_of(found: Scores) -> str:
    """Write the scores as one line of the table."""
    return f"{found.bias:+5.1%}  {found.mape:5.1%}  {found.within10:11.0%}  {found.spearman:8.3f}"


if __name__ == "__main__":
    main()
