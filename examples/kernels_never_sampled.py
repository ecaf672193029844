# SPDX-License-Identifier: Apache-2.0
"""Adaptive against random sampling of kernels: how well kernels are predicted that neither has measured.

    python examples/kernels_never_sampled.py --runtime openvino --kernels conv_bn_relu --budget 240

Two campaigns of the same budget begin with configurations from known networks, or anywhere, and add those from which
most can be learned, or any. Both measure the same test kernels, drawn like those of networks, in their own rounds, and
never learn from them. Prints the share of test kernels within 10 % after every iteration, and draws both curves.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nni_latency.kernels import KERNEL_PROTOCOL, Aim, KernelPredictors, Sampling, Standing, build_predictors, find_types
from nni_latency.measurement import MemoryStore
from nni_latency.plots import picture
from nni_latency.plugins import load_registry

#: Kernels in the beginning, and those that are never learned from, of each kind.
N_FIRST, N_TEST = 60, 100

#: Ways to sample, and what they are called.
WAYS = {"uncertain": "adaptive: where the model is uncertain", "random": "random"}

#: Share of kernels within 10 %, and how many were measured for it.
Curve = list[tuple[int, float]]


def main() -> None:
    """Measure both ways, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", default="openvino", help="what executes the kernels (default: openvino)")
    parser.add_argument("--kernels", default="conv_bn_relu", help="their kinds (default: conv_bn_relu)")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of measuring for each way (default: 240)")
    parser.add_argument("--out", type=Path, default=Path("kernels-never-sampled.png"), help="the picture")
    options = parser.parse_args()
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
