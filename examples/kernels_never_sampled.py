# SPDX-License-Identifier: Apache-2.0
"""Adaptive against random sampling of kernels: how well kernels are predicted that neither has measured.

    python examples/kernels_never_sampled.py --runtime openvino --kernels conv_bn_relu --budget 240

Two campaigns of the same budget begin with configurations from known networks, or anywhere, and add those from which
most can be learned, or any. Both measure the same test kernels, drawn like those of networks, in their own rounds, and
never learn from them. Prints the share of test kernels within 10 % after every iteration, and draws both curves.

With --limit nothing is measured: how well kernels repeat in the networks of a data set, which limits what a predictor
that sees a kernel alone can say of those that do. A kernel with the same operators and sizes is predicted by the median
of its times at three other places or more, in the same network and in other networks; and a network by the sum of such
medians from other networks, over those of its kernels that occur there. Kernels that occur once are not among them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nni_latency.datasets import NetworkEntry, load_networks
from nni_latency.kernels import KERNEL_PROTOCOL, Aim, KernelPredictors, Sampling, Standing, build_predictors, find_types
from nni_latency.measurement import MemoryStore
from nni_latency.plots import picture
from nni_latency.plugins import load_registry

#: Kernels in the beginning, and those that are never learned from, of each kind.
N_FIRST, N_TEST = 60, 100

#: Ways to sample, and what they are called.
WAYS = {"uncertain": "adaptive: where the model is uncertain", "random": "random"}

#: With --limit: the shortest kernels [s], the fewest other places, and the least share of a network found elsewhere.
LONG, FEWEST_OTHERS, LEAST_KNOWN = 3e-5, 3, 0.8

#: Share of kernels within 10 %, and how many were measured for it.
Curve = list[tuple[int, float]]


def main() -> None:
    """Measure both ways, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", default="openvino", help="what executes the kernels (default: openvino)")
    parser.add_argument("--kernels", default="conv_bn_relu", help="their kinds (default: conv_bn_relu)")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of measuring for each way (default: 240)")
    parser.add_argument("--out", type=Path, default=Path("kernels-never-sampled.png"), help="the picture")
    parser.add_argument("--limit", metavar="DATA", help="print how kernels repeat, in a data set or 'shipped'")
    options = parser.parse_args()
    if options.limit is not None:
        networks: dict[str, list[NetworkEntry]] = defaultdict(list)
        for item in load_networks(None if options.limit == "shipped" else options.limit).only(batch_size=1):
            if item.parts:
                networks[item.platform.id].append(item)
        for name, items in networks.items():
            say_limit(name, items)
        return
    curves = {way: measure(way, options.runtime, options.kernels.split(","), options.budget) for way in WAYS}
    draw(curves, options.runtime, options.out)
    print(f"Wrote {options.out}")


def measure(way: str, runtime: str, kinds: Sequence[str], budget: float) -> Curve:
    """Build predictors one way, and return how good they were after every iteration and in the end."""
    standings: list[Standing] = []
    with tempfile.TemporaryDirectory() as folder:
        found = build_predictors(
            find_types(kinds),
            load_registry().find("runtime", runtime).make("cpu", threads=1, precision="fp32"),
            Path(folder) / "kernels.json",
            protocol=replace(KERNEL_PROTOCOL, time_budget=budget),
            sampling=Sampling(N_FIRST, refinement=way, test_sample_num=N_TEST),  # type: ignore[arg-type]
            aim=Aim(on_standing=standings.append),
            store=MemoryStore(),
        )
    curve = [(standing.kernels, standing.tested.within10) for standing in standings if standing.tested]
    curve.append((len(found.kernels), at_the_end(found)))
    for kernels, share in curve:
        print(f"{WAYS[way]:<40} {kernels:5} kernels: {share:6.1%} of the test kernels within 10 %", flush=True)
    return curve


def at_the_end(found: KernelPredictors) -> float:
    """Return the share of test kernels within 10 % of what the best model says."""
    scores = found.test_scores()
    assert scores is not None
    return scores.within10


def say_limit(platform: str, networks: Sequence[NetworkEntry]) -> None:
    """Print how well kernels predict the same kernels at other places, and their sums networks."""
    kernels = [
        [(tuple(item.graph.operators[number].op for number in numbers), seconds) for numbers, seconds in item.parts]
        for item in networks
    ]
    times: dict[object, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, found in enumerate(kernels):
        for ops, seconds in found:
            times[ops][place].append(seconds)
    medians = {ops: {place: float(np.median(own)) for place, own in places.items()} for ops, places in times.items()}
    cases = {
        "same network": [pair for places in times.values() for own in places.values() for pair in of_others(own)],
        "other networks": [pair for places in medians.values() for pair in of_others([*places.values()])],
        "sums": list(sums_elsewhere(kernels, medians)),
    }
    for name, pairs in cases.items():
        shares = [abs(predicted / measured - 1) <= 0.1 for predicted, measured in pairs]
        share = f"{np.mean(shares):.1%}" if shares else "-"
        print(f"{platform:36} {name:16} {len(pairs):6} {share:>6} within 10 %", flush=True)


def of_others(times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the median of the others, and the time, of every place of a kernel that is long and has enough of them."""
    if len(times) > FEWEST_OTHERS:
        for place, seconds in enumerate(times):
            median = float(np.median([*times[:place], *times[place + 1 :]]))
            if median >= LONG:
                yield median, seconds


def sums_elsewhere(
    kernels: Sequence[Sequence[tuple[object, float]]], medians: Mapping[object, Mapping[int, float]]
) -> Iterator[tuple[float, float]]:
    """Yield what kernels of a network take in other networks, and in it, for networks most of which occur there."""
    for place, found in enumerate(kernels):
        known = [(ops, seconds) for ops, seconds in found if len(medians[ops]) > 1]
        measured = sum(seconds for _, seconds in known)
        if known and measured >= LEAST_KNOWN * sum(seconds for _, seconds in found):
            others = [[seconds for other, seconds in medians[ops].items() if other != place] for ops, _ in known]
            yield float(sum(map(np.median, others))), measured


def draw(curves: dict[str, Curve], runtime: str, out: Path) -> None:
    """Draw the share of test kernels within 10 % against how many were measured."""
    ends = " against ".join(f"{curve[-1][1]:.0%} ({WAYS[way].split(':')[0]})" for way, curve in curves.items())
    title = f"Kernels never sampled, within 10 %: {ends.replace('%', ' %')}\nTest kernels in {runtime}"
    with picture(out, title, height=3.8) as figure:
        axes = figure.subplots()
        for way, curve in curves.items():
            points = zip(*[(kernels, 100 * share) for kernels, share in curve], strict=True)
            axes.plot(*points, "o-", label=WAYS[way])
        axes.set(ylim=(0, 100), xlabel="kernels measured", ylabel="test kernels within 10 % [%]")
        axes.legend()


if __name__ == "__main__":
    main()
