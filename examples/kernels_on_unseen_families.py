# SPDX-License-Identifier: Apache-2.0
"""Predict whole networks of families that no kernel was sampled for, and measure them.

Kernels are sampled around configurations of a prior. The families here have no part in it, where it was counted without
the spaces of NNI's hub that belong to them:

    python examples/kernel_prior.py --out prior.json --without mobilenetv3 --without proxylessnas --without shufflenet
    nni-latency learn kernels --fusion all --runtime openvino --out rules.json
    nni-latency learn kernels --runtime openvino --prior prior.json --budget 30min --out kernels.json
    python examples/kernels_on_unseen_families.py kernels.json,rules.json --out families.png

Every family has ten members at random around the published network. They are measured in rounds, family after family.
Before and after each family some kernels of the file are measured again: how much longer those of a group take than
they took then is how much slower the machine is now for kernels of this group, and predictions are made for that speed.
One number for all kernels says less, and the reference operator even less, which finds all that it needs in the caches:
what neighbours on a shared machine take away is at times its memory bandwidth, so that a linear layer takes up to twice
as long and a convolution as long as ever.

With --data nothing is measured: the networks of a data set count, which were measured in turn over hours. One factor
for all of them is the speed of the machine then, the median of what was predicted over what was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from nni_latency.datasets import load_networks
from nni_latency.errors import MissingEntryError
from nni_latency.estimators import Estimate, KernelEstimator, score
from nni_latency.graphs import Family, find_families
from nni_latency.kernels import (
    KERNEL_PROTOCOL,
    Kernel,
    KernelPredictors,
    MeasuredKernel,
    PredictedKernels,
    kernel_of,
    kernel_types,
    measure_kernels,
)
from nni_latency.loading import load_kernels
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import OpSpec
from nni_latency.plots import picture
from nni_latency.plugins import load_registry
from nni_latency.tables import NetworkMeasurements, SpaceReference, measure_networks

#: The families of nn-Meter's test, those of NAS-Bench-201 apart.
FAMILIES = (
    *("alexnet", "vgg", "googlenet", "squeezenet", "resnet", "densenet"),
    *("mobilenetv1", "mobilenetv2", "mobilenetv3", "shufflenetv2", "mnasnet", "proxylessnas"),
)

#: Kernels that are measured again, by what they take [s]; how many of a group; and for how many of them counts what
#: all kernels say.
_SHORTEST, _LONGEST, _OF_GROUP, _PRIOR_WEIGHT = 2e-5, 5e-3, 8, 3


@dataclass(frozen=True)
class Members:
    """The networks of a family, as what measures networks asks for them."""

    family: Family

    @property
    def space(self) -> SpaceReference:
        """Which family it is."""
        return SpaceReference(f"family {self.family.name}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the networks' input, batch first."""
        return (1, *self.family.input_shape)

    @property
    def reference(self) -> Mapping[str, Any]:
        """The published network."""
        return {"seed": 0}

    @property
    def references(self) -> tuple[Mapping[str, Any], ...]:
        """The published network."""
        return (self.reference,)

    def network_of(self, selection: Mapping[str, Any]) -> Callable[[], Any]:
        """Return what makes a member."""
        return partial(self.family.network, selection["seed"])


@dataclass(frozen=True)
class Result:
    """What was predicted and measured of a network [s], and what is not known of it."""

    predicted: float
    measured: float
    missing: tuple[str, ...]


@click.command()
@click.argument("estimator")
@click.option("--family", "names", multiple=True, help="Just these families.  [default: twelve]")
@click.option("--members", default=10, show_default=True, help="Networks of every family.")
@click.option("--budget", default=45.0, show_default=True, help="Seconds of measuring for every family.")
@click.option("--data", help="A data set of networks in place of measuring, or 'shipped' for the one that ships.")
@click.option("--out", default=Path("families.png"), type=click.Path(path_type=Path), help="The picture.")
def main(estimator: str, names: tuple[str, ...], members: int, budget: float, data: str | None, out: Path) -> None:
    """Measure what ESTIMATOR predicts, KERNELS.json,RULES.json, and compare."""
    predicting = load_kernels(estimator)
    assert isinstance(predicting, KernelEstimator) and isinstance(predicting.costs, PredictedKernels), predicting
    platform = predicting.platform
    if data is not None:
        found = of_data_set(predicting, data, names or FAMILIES, members)
        for name, results in found.items():
            say(name, results)
        say("all", [result for results in found.values() for result in results])
        draw(found, f"measured in {platform.runtime} [ms]", out)
        return
    runtime = load_registry().find("runtime", platform.runtime).make("cpu", threads=1, precision=platform.precision)
    found = {}
    for family in find_families(names or FAMILIES):
        protocol = Protocol(time_budget=budget, processes=1)
        again = measure_again(predicting.costs, runtime)
        measured = measure_networks(
            Members(family), {str(seed): {"seed": seed} for seed in range(1, members + 1)}, runtime, protocol
        )
        again += measure_again(predicting.costs, runtime)
        found[family.name] = compare(at_speed(predicting, Slowness.of(predicting.costs, again)), family, measured)
        say(family.name, found[family.name])
        draw(found, f"measured in {platform.runtime} [ms]", out)
    say("all", [result for results in found.values() for result in results])


def compare(estimator: KernelEstimator, family: Family, measured: NetworkMeasurements) -> list[Result]:
    """Predict networks of a family that were measured."""
    results = []
    for name, times in measured.networks.items():
        try:
            estimate = estimator.estimate(family.network(int(name)), family.example_inputs())
        except MissingEntryError as error:
            click.echo(f"{family.name} {name} cannot be predicted: {error}")
            continue
        results.append(Result(estimate.value, times.summary.value, estimate.missing))
    for name, reason in measured.failures.items():
        click.echo(f"{family.name} {name} cannot be run: {reason}")
    return results


def of_data_set(estimator: KernelEstimator, data: str, names: Sequence[str], members: int) -> dict[str, list[Result]]:
    """Predict networks of a data set at the speed that the machine had when they were measured."""
    found: dict[str, list[Result]] = {name: [] for name in names}
    for network in load_networks(*([] if data == "shipped" else [data])):
        mine = found.get(network.family)
        if mine is None or len(mine) == members or network.platform.differences(estimator.platform):
            continue
        try:
            estimate = estimator.estimate(network.graph)
        except MissingEntryError as error:
            click.echo(f"{network.name} cannot be predicted: {error}")
            continue
        mine.append(Result(estimate.value, network.latency, estimate.missing))
    ratios = [result.predicted / result.measured for results in found.values() for result in results]
    if not ratios:
        raise click.ClickException(f"The data set has no networks of these families on {estimator.platform.id}.")
    factor = float(np.median(ratios))
    click.echo(f"Networks of the data set took {1 / factor:.2f} times as long as kernels say, in the median.")
    return {
        name: [replace(result, predicted=result.predicted / factor) for result in results]
        for name, results in found.items()
    }


def measure_again(costs: PredictedKernels, runtime: Runtime) -> tuple[MeasuredKernel, ...]:
    """Measure some kernels of every group again."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel, seconds in known_by(costs).items():
        # Short ones are known as well as the clock is fine, and long ones leave no time for others.
        if _SHORTEST < seconds < _LONGEST:
            groups[group_of(kernel)].append(kernel)
    asked = [kernel for kernels in groups.values() for kernel in kernels[:: max(1, len(kernels) // _OF_GROUP)]]
    return measure_kernels(asked, runtime, protocol=replace(KERNEL_PROTOCOL, time_budget=10.0), store=MemoryStore())


def known_by(costs: PredictedKernels) -> dict[Kernel, float]:
    """Return the kernels that were measured most often [s]."""
    return {item.kernel: item.value for item in costs.predictors.tested or costs.predictors.kernels}


def group_of(kernel: Kernel) -> str:
    """Return the group of which a kernel is."""
    return kernel_types()[kernel.kind].group


@dataclass(frozen=True)
class Slowness:
    """How many times as long kernels take now as when the file was made."""

    overall: float
    by_group: Mapping[str, float]

    @classmethod
    def of(cls, costs: PredictedKernels, again: Sequence[MeasuredKernel]) -> Slowness:
        """Tell it from kernels that are measured again; few of a group count as others do."""
        known, logs = known_by(costs), defaultdict[str, list[float]](list)
        for item in again:
            logs[group_of(item.kernel)].append(float(np.log(item.value / known[item.kernel])))
        overall = float(np.median([log for found in logs.values() for log in found]))
        by_group = {
            group: float(np.exp(overall + (np.median(found) - overall) * len(found) / (len(found) + _PRIOR_WEIGHT)))
            for group, found in logs.items()
        }
        return cls(float(np.exp(overall)), by_group)

    def __call__(self, kernel: Kernel | None) -> float:
        """Return the factor of a kernel, or of what is none."""
        return self.overall if kernel is None else self.by_group.get(group_of(kernel), self.overall)


class CostsAtSpeed(PredictedKernels):
    """Costs of kernels at another speed of the machine."""

    def __init__(self, predictors: KernelPredictors, slowness: Slowness) -> None:
        super().__init__(predictors)
        self._slowness = slowness

    def estimate_fused(self, ops: Sequence[OpSpec]) -> Estimate | None:
        """Return the cost of operators that run as one kernel [s]."""
        known, factor = super().estimate_fused(ops), self._slowness(kernel_of(ops))
        return known if known is None else known.mapped(lambda seconds: seconds * factor)


def at_speed(estimator: KernelEstimator, slowness: Slowness) -> KernelEstimator:
    """Return an estimator for a machine that is so much slower."""
    costs = CostsAtSpeed(estimator.costs.predictors, slowness)
    return KernelEstimator(
        estimator.rules, costs, fallback=estimator.fallback, constant=estimator.constant * slowness.overall
    )


def say(name: str, results: list[Result]) -> None:
    """Print how well networks are predicted."""
    if not results:
        return
    found = score([result.predicted for result in results], [result.measured for result in results])
    unknown = sorted({text for result in results for text in result.missing})
    click.echo(
        f"{name:14} {found.n:4} networks   bias {found.bias:+6.1%}   MAPE {found.mape:5.1%}   RMSPE {found.rmspe:5.1%}"
        f"   within 5 % {found.within5:4.0%}   within 10 % {found.within10:4.0%}"
        + (f"   not known: {'; '.join(unknown)[:150]}" if unknown else "")
    )


def draw(found: Mapping[str, list[Result]], label: str, out: Path) -> None:
    """Draw what was predicted against what was measured, a colour a family."""
    if not any(found.values()):
        return
    every = [item for results in found.values() for item in results]
    said = score([item.predicted for item in every], [item.measured for item in every])
    title = (
        f"{said.n} networks of {len(found)} families that no kernel was sampled for: {said.mape:.1%} off\n"
        "The sum of predicted kernels against the whole network"
    ).replace("%", " %")
    values = [value * 1e3 for item in every for value in (item.measured, item.predicted)]
    ends = np.array([min(values) * 0.9, max(values) * 1.1])
    with picture(out, title, height=4.4) as figure:
        axes = figure.subplots()
        for number, (name, results) in enumerate(found.items()):
            measured, predicted = (
                [getattr(item, field) * 1e3 for item in results] for field in ("measured", "predicted")
            )
            axes.plot(measured, predicted, "osv^D<>"[number % 7], color=f"C{number % 9}", label=name)
        axes.plot(ends, ends, color="black", lw=0.8)
        axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="grey", alpha=0.25, lw=0, label="within 10 %")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="sum of predicted kernels [ms]", xlim=ends, ylim=ends)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


if __name__ == "__main__":
    main()
