# SPDX-License-Identifier: Apache-2.0
"""Draw the latency of a convolution over its output channels, predicted and measured on this machine.

    nni-latency learn kernels --kernel conv --budget 10min --out kernels.json
    python examples/kernel_staircase.py kernels.json --out staircase.png

A runtime computes several channels at a time, so that latency rises in steps. A forest of configuration, FLOPs and
parameters, fitted on the same kernels, is drawn beside.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, KernelScores, measure_kernels
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.plots import draw_sizes
from nni_latency.units import format_percent


@click.command()
@click.argument("predictors", type=click.Path(path_type=Path))
@click.option("--kernel", default="conv_bn_relu(CIN=64,COUT=64,HW=28,KERNEL_SIZE=3,STRIDES=1)", show_default=True)
@click.option("--name", default="COUT", help="The size that varies.", show_default=True)
@click.option("--sizes", default="16:129:3", help="First, end and step.", show_default=True)
@click.option("--out", default=Path("staircase.png"), type=click.Path(path_type=Path), help="PNG file.")
def main(predictors: Path, kernel: str, name: str, sizes: str, out: Path) -> None:
    """Measure, predict and draw."""
    known, chosen = KernelPredictors.load(predictors), Kernel.parse(kernel)
    runtime = TorchEager(threads=known.platform.threads, precision=known.platform.precision)
    line = [chosen.replace(**{name: size}) for size in range(*map(int, sizes.split(":")))]
    measured = measure_kernels(line, runtime)
    predictor = next(item for item in known.predictors.values() if chosen.kind in item.kinds_)
    seen = [item for item in known.kernels if item.kernel.kind in predictor.kinds_]
    forest = KernelPredictor(candidates=("forest",)).fit([item.kernel for item in seen], [item.value for item in seen])
    truth = np.array([item.value for item in measured])
    for label, said in (("chosen", predictor), ("forest", forest)):
        scores = KernelScores.of(said.predict([item.kernel for item in measured]), truth)
        click.echo(f"{label}: {format_percent(scores.within10)} within 10 %, RMSPE {format_percent(scores.rmspe)}")
    click.echo(f"Wrote {draw_sizes(known, chosen, name, measured, out, baseline=forest)}")


if __name__ == "__main__":
    main()
