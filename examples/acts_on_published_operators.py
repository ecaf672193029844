# SPDX-License-Identifier: Apache-2.0
"""How far the ACTS estimator is off on operators that somebody else measured: convolutions on an NVIDIA A30.

The file is the ``a30_operators.csv`` of ml-operator-profiling, with the columns ``operator`` (the ``repr`` of a torch
module), ``input_shape`` and ``latency_s``. In each of 20 random splits 100 convolutions are fitted and all the others
predicted. An operator that was measured several times counts once, with the median, so that none is on both sides.

    python examples/acts_on_published_operators.py path/to/a30_operators.csv
"""

from __future__ import annotations

import argparse
import ast
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np

from nni_latency.estimators import ActsEstimator
from nni_latency.operators import OpSpec, features_of

Row = tuple[OpSpec, float]


def main() -> None:
    """Read, split, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=Path("../shared/data/gpu-operators/a30_operators.csv"))
    parser.add_argument("--splits", type=int, default=20, help="random splits (default: 20)")
    parser.add_argument("--points", type=int, default=100, help="convolutions to fit on (default: 100)")
    options = parser.parse_args()
    if not options.file.is_file():
        parser.error(f"There is no file {str(options.file)!r}: name the table of measured operators.")
    rows = read_convolutions(options.file)
    print(f"{len(rows)} different convolutions; {options.points} to fit on, {len(rows) - options.points} to predict")
    print(f"{'':42} median error over {options.splits} splits      mean    covered by   fit")
    print(f"{'':42} mean      worst split   best         error   90 % interval")
    for name, operators, settings in (
        ("published formula, errors in seconds", False, {"variant": "published"}),
        ("refined, ACTS, INP and FLOPs alone", False, {}),
        ("refined, operators", True, {}),
    ):
        print(f"{name:42} {score_splits(rows, options, operators, settings)}")


def read_convolutions(path: Path) -> list[Row]:
    """Read the convolutions, each once, with its median latency [s]."""
    found: dict[OpSpec, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["operator"].startswith("Conv2d("):
                found.setdefault(_parse(row["operator"], row["input_shape"]), []).append(float(row["latency_s"]))
    return [(op, float(np.median(times))) for op, times in found.items()]


def _parse(text: str, input_shape: str) -> OpSpec:
    """Read the ``repr`` of a convolution; nothing of it is run."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    _, out_channels = (ast.literal_eval(argument) for argument in call.args)
    given: dict[str, Any] = {item.arg or "": ast.literal_eval(item.value) for item in call.keywords}
    return OpSpec.of(
        "conv2d",
        [ast.literal_eval(input_shape)],
        out_channels=out_channels,
        kernel_size=given["kernel_size"],
        stride=given["stride"],
        padding=given.get("padding", (0, 0)),
        groups=given.get("groups", 1),
        bias=given.get("bias", True),
    )


def score_splits(rows: list[Row], options: argparse.Namespace, operators: bool, settings: dict[str, Any]) -> str:
    """Fit and predict in every split; return a line of the table."""
    seconds = np.array([latency for _, latency in rows])
    counts = [features_of(op) for op, _ in rows]
    totals = np.array([(item.acts, item.inp, item.flops) for item in counts])
    medians, means, covered = [], [], []
    begin = time.perf_counter()
    for split in range(options.splits):
        order = np.random.default_rng(split).permutation(len(rows))
        known, unknown = order[: options.points], order[options.points :]

        def given(chosen: np.ndarray) -> Any:
            return [[rows[index][0]] for index in chosen] if operators else totals[chosen]

        estimator = ActsEstimator(**settings).fit(given(known), seconds[known])
        ratios = estimator.predict(given(unknown)) / seconds[unknown]
        medians.append(np.median(np.abs(ratios - 1)))
        means.append(np.mean(np.abs(ratios - 1)))
        covered.append((np.abs(np.log(ratios)) <= np.log(estimator.interval_factor_)).mean())
    took = (time.perf_counter() - begin) / options.splits
    return (
        f"{np.mean(medians):5.1%}     {max(medians):5.1%}         {min(medians):5.1%}       "
        f"{np.mean(means):6.1%}   {np.mean(covered):5.1%}        {took:.2f} s"
    )


if __name__ == "__main__":
    main()
