# SPDX-License-Identifier: Apache-2.0
"""How far an ACTS fit is off on this machine: on blocks that it never saw, and on five whole networks.

It measures the predefined micro-benchmarks as ``nni-latency learn device`` does; then the same points again, in
rounds that they share with random blocks of other channels, sizes, strides and kinds in other proportions; then whole
networks. Both variants are fitted on the predefined points and scored on the rest. Scores within the shared rounds tell
how good the fit is; those of a fit on the first points, minutes older, contain what changed since in the speed of
the machine. What is measured already in the folder is not measured again, and an interrupted run goes on.

    python examples/score_acts.py --out score-acts                      # about 13 minutes
    python examples/score_acts.py --out score-acts --spaces darts enas  # five random networks of these as well
    python examples/score_acts.py --out score-acts-gpu --device cuda:0
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nni_latency import FBNetSpace
from nni_latency.estimators import ActsEstimator, MeasuredNetworkEstimator
from nni_latency.estimators.acts import BlockScores, Variant, score_blocks
from nni_latency.files import write_atomically
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.micro_benchmarks import BLOCKS, KINDS, SERIES, BenchmarkPoints, Block, draw_blocks, run_benchmarks
from nni_latency.operators import capture_operators, count_operators
from nni_latency.plots import draw_fit, draw_predictions
from nni_latency.spaces import HUB_SPACES, draw_samples, example_inputs_of, make_space, network_of
from nni_latency.tables import KnownCosts, as_store

#: A block and the batch sizes at which it is measured.
Series = tuple[Block, tuple[int, ...]]

#: Multiply-adds of a test block at its batch size, at most; a batch is drawn among those that stay below.
MOST_MACS = 1.5e9

#: Side of the pictures that the known networks take.
SIZE = 224

#: Networks that are drawn from each space.
PER_SPACE = 5

#: How whole networks are measured, the five known ones or those of a space in one go.
ON_NETWORKS = Protocol(n_warmup=1, n_run=3, rounds=24, time_budget=45.0)

#: What builds a network, and the shape of its input.
Network = tuple[Callable[[], nn.Module], tuple[int, ...]]


def main() -> None:
    """Measure what is missing, fit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("score-acts"), help="folder (default: score-acts)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    parser.add_argument("--threads", type=int, default=1, help="threads per block (default: 1)")
    parser.add_argument("--blocks", type=int, default=200, help="test blocks (default: 200)")
    parser.add_argument("--seed", type=int, default=2024, help="of the test blocks (default: 2024)")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for the points to fit on (default: 150)")
    parser.add_argument("--test-budget", type=float, default=480.0, help="seconds for both together (default: 480)")
    parser.add_argument("--skip-networks", action="store_true", help="leave out the five known networks")
    parser.add_argument("--spaces", nargs="*", choices=HUB_SPACES, default=[], help="spaces to draw networks from")
    options = parser.parse_args()
    runtime = TorchEager(options.device, threads=options.threads)
    older = measured(options.out / "points.json", runtime, SERIES, options.budget)
    series = (*as_measured(older), *test_series(options.blocks, options.seed))
    together = measured(options.out / "together.json", runtime, series, options.test_budget)
    known, unknown = split(together, {point.block for point in older.points})
    groups = [] if options.skip_networks else [KNOWN]
    groups += [drawn_networks(name, PER_SPACE) for name in options.spaces]
    store = as_store(str(options.out / "networks.sqlite"))
    truth = MeasuredNetworkEstimator(runtime=runtime, protocol=ON_NETWORKS, store=store)
    for networks in groups:
        print(f"Measuring {', '.join(networks)}", flush=True)
        truth.measure(examples_of(networks).values())
    print(f"{runtime.platform.id}: {len(known.points)} points, {len(unknown.points)} test blocks")
    reference = KnownCosts(store, runtime.platform).reference(ON_NETWORKS)
    for variant in ("published", "refined"):
        estimator = fitted(variant, known)
        report(estimator, fitted(variant, older), known, unknown, options.out)
        for networks in groups:
            # The points hold for another speed of the machine than the networks, which the reference operator tells.
            report_networks(estimator, truth, networks, float(np.median(known.drift)) / reference)


def fitted(variant: Variant, points: BenchmarkPoints) -> ActsEstimator:
    """Fit a variant on points."""
    estimator = ActsEstimator(variant=variant)
    return estimator.fit(points.workloads, points.latencies, groups=points.blocks, platform=points.platform)


def as_measured(points: BenchmarkPoints) -> tuple[Series, ...]:
    """Return the predefined blocks with the batch sizes that were measured."""
    found: dict[str, list[int]] = {}
    for point in points.points:
        found.setdefault(point.block, []).append(point.input_shape[0])
    return tuple((block, tuple(sorted(found[block.name]))) for block in BLOCKS if block.name in found)


def split(points: BenchmarkPoints, names: set[str]) -> tuple[BenchmarkPoints, BenchmarkPoints]:
    """Return the points of some blocks, and the others."""
    inside, outside = (
        tuple(point for point in points.points if (point.block in names) is wanted) for wanted in (True, False)
    )
    return replace(points, points=inside), replace(points, points=outside)


def measured(path: Path, runtime: TorchEager, series: tuple[Series, ...], budget: float) -> BenchmarkPoints:
    """Return the points of a file, which is measured if it is not there."""
    if path.exists():
        return BenchmarkPoints.load(path)
    protocol = Protocol(n_warmup=0, time_budget=budget, threads=runtime.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"Measuring {path} for at most {budget:g} s")
    return run_benchmarks(runtime, protocol, path, series=series)


def test_series(count: int, seed: int) -> tuple[Series, ...]:
    """Draw blocks, each with one batch size."""
    generator = np.random.default_rng(0)
    return tuple((block, (draw_batch(block, generator),)) for block in draw_blocks(count, seed=seed))


def draw_batch(block: Block, generator: np.random.Generator) -> int:
    """Draw a batch size that keeps the block below `MOST_MACS`."""
    with torch.device("meta"):
        module, inputs = block.build(), torch.empty(block.input_shape(1))
    macs = count_operators(op for _, op in capture_operators(module, inputs, by="graph")).features.macs
    return int(generator.choice([batch for batch in (1, 2, 4, 8, 16) if batch == 1 or batch * macs <= MOST_MACS]))


def examples_of(networks: dict[str, Network]) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return networks with an input each."""
    return {name: (build(), torch.zeros(shape)) for name, (build, shape) in networks.items()}


def report(
    estimator: ActsEstimator,
    older: ActsEstimator,
    known: BenchmarkPoints,
    unknown: BenchmarkPoints,
    out: Path,
) -> None:
    """Print scores, write fit and pictures."""
    scores = score_blocks(estimator.predict(unknown.workloads), unknown.latencies)
    print(f"\n{estimator.variant}: bound by {estimator.bound_}, correction {estimator.correction_}")
    print(f"  held out  {line(estimator.held_out_scores(known.latencies))}")
    print(f"  test      {line(scores)}")
    print(f"  older fit {line(score_blocks(older.predict(unknown.workloads), unknown.latencies))}")
    errors = np.abs(np.log(estimator.predict(unknown.workloads) / unknown.latencies))
    covered = (errors <= np.log(estimator.interval_factor_)).mean()
    print(f"  {covered:.1%} of the test blocks lie within the factor {estimator.interval_factor_:.3f}")
    estimator.save(out / f"{estimator.variant}.json")
    draw_fit(estimator, known, out / f"{estimator.variant}-fit.png")
    draw_predictions(estimator, unknown, out / f"{estimator.variant}-test.png")
    write_atomically(out / f"{estimator.variant}-scores.json", json.dumps(asdict(scores), indent=1) + "\n")


def report_networks(
    estimator: ActsEstimator, truth: MeasuredNetworkEstimator, networks: dict[str, Network], speed: float
) -> None:
    """Print how far whole networks are off: the known ones one by one, those of spaces together."""
    errors: dict[str, list[float]] = {}
    for name, network in examples_of(networks).items():
        seconds, found = truth.estimate(*network).value * speed, estimator.estimate(*network).value
        if name in KNOWN:
            print(f"  {name:16} {seconds * 1e3:7.1f} ms, predicted {found * 1e3:7.1f} ms, {found / seconds - 1:+6.1%}")
        else:
            errors.setdefault(name.split("/")[0], []).append(found / seconds - 1)
    for space, off in errors.items():
        print(f"  {space:16} {len(off)} networks, MAPE {np.abs(off).mean():.1%}, bias {np.mean(off):+.1%}")


def line(scores: BlockScores) -> str:
    """Return scores in a line."""
    return (
        f"{scores.n} blocks, median error {scores.median:.1%}: {scores.median_short:.1%} of {scores.n_short} below 2 ms"
        f", {scores.median_long:.1%} above; correlation {scores.correlation:.4f}, R2 {scores.r2:.4f}"
    )


def rows(kind: str, table: list[tuple[int, int, dict[str, int]]], before: int) -> tuple[list[nn.Module], int]:
    """Build stages of blocks: by stage the channels, how many blocks, and arguments of the first."""
    parts = []
    for after, count, first in table:
        for index in range(count):
            arguments = {**first, "stride": first["stride"] if index == 0 else 1}
            parts.append(KINDS[kind](channels=before, out=after, **arguments))
            before = after
    return parts, before


def resnet18() -> nn.Module:
    """Build ResNet-18."""
    parts, last = rows("basic", [(64, 2, {"stride": 1}), *((w, 2, {"stride": 2}) for w in (128, 256, 512))], 64)
    stem = KINDS["stem"](channels=3, out=64, kernel=7, pool=True)
    return nn.Sequential(stem, *parts, KINDS["head"](channels=last, classes=1000))


def resnet50() -> nn.Module:
    """Build ResNet-50."""
    stages = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]
    table = [(4 * width, count, {"stride": stride, "width": width}) for width, count, stride in stages]
    parts, last = rows("bottleneck", table, 64)
    stem = KINDS["stem"](channels=3, out=64, kernel=7, pool=True)
    return nn.Sequential(stem, *parts, KINDS["head"](channels=last, classes=1000))


def mobilenet_v2() -> nn.Module:
    """Build MobileNetV2."""
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    table = [(out, count, {"stride": stride, "expansion": factor}) for factor, out, count, stride in stages]
    parts, last = rows("inverted-residual", table, 32)
    stem = KINDS["stem"](channels=3, out=32, kernel=3, pool=False)
    final = KINDS["conv"](channels=last, out=1280, kernel=1)
    return nn.Sequential(stem, *parts, final, KINDS["head"](channels=1280, classes=1000))


def efficientnet_b0() -> nn.Module:
    """Build EfficientNet-B0."""
    stages = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)]
    stages += [(6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]
    table = [
        (out, count, {"stride": stride, "expansion": factor, "kernel": kernel})
        for factor, out, count, stride, kernel in stages
    ]
    parts, last = rows("mbconv", table, 32)
    stem = KINDS["stem"](channels=3, out=32, kernel=3, pool=False)
    final = KINDS["conv"](channels=last, out=1280, kernel=1)
    return nn.Sequential(stem, *parts, final, KINDS["head"](channels=1280, classes=1000))


def fbnet_c() -> nn.Module:
    """Build FBNet-C."""
    plan = FBNetSpace().measure_plan()
    network: nn.Module = plan.network_of(plan.published["fbnet-c"])()
    return network


def drawn_networks(space: str, count: int) -> dict[str, Network]:
    """Draw networks of a space of NNI's hub."""
    model_space = make_space(space)
    shape = tuple(example_inputs_of(model_space).shape)
    samples = draw_samples(model_space, count, 0)
    return {f"{space}/{index}": (network_of(model_space, sample), shape) for index, sample in enumerate(samples)}


#: The five known networks, with the shape of their input.
KNOWN: dict[str, Network] = {
    build.__name__: (build, (1, 3, SIZE, SIZE))
    for build in (resnet18, resnet50, mobilenet_v2, efficientnet_b0, fbnet_c)
}


if __name__ == "__main__":
    main()
