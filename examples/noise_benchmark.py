# SPDX-License-Identifier: Apache-2.0
"""How good a table and its validation are on a noisy machine: ``python examples/noise_benchmark.py``.

A disturber runs on a processor that measuring does not use and alternates between idling, convolving and sweeping over
256 MB. Beside it ``nni-latency build-lut --space fbnet`` and ``nni-latency validate`` run several times in a row. Bias,
MAPE, repeatability, the error of the lightest network and the share of networks within their interval are printed and
written as JSON, run by run and as medians; beside them, as ``quartiles``, the repeatability of the
same raw samples where the time of a network is the lower quartile of its own runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: How long the disturber does one thing [s], and what it sweeps over [byte].
SHORTEST, LONGEST, SWEPT = 0.5, 10.0, 256 * 2**20

FIGURES = ("bias", "mape", "repeatability", "quartiles", "all_skip", "coverage", "speed")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="tables and validations in a row")
    parser.add_argument("--quiet", action="store_true", help="no disturber")
    parser.add_argument("--seed", type=int, default=0, help="of the disturber and of the networks")
    parser.add_argument("--folder", type=Path, default=Path("noise_benchmark"), help="for tables and results")
    parser.add_argument("--build", default="", help="further options of build-lut, such as '--budget 10s'")
    parser.add_argument("--validate", default="", help="further options of validate")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["NNI_LATENCY_DATABASE"] = str(options.folder / "database.sqlite")
    with disturbed(options.seed, quiet=options.quiet):
        runs = [measure(options, number) for number in range(options.runs)]
    medians = {name: statistics.median(run[name] for run in runs) for name in FIGURES}
    print(row("median", medians))
    content = {"quiet": options.quiet, "seed": options.seed, "runs": runs, "medians": medians}
    out = options.folder / "results.json"
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {out}")


def measure(options: argparse.Namespace, number: int) -> dict[str, float]:
    """Build a table, validate it, and return the figures."""
    table = options.folder / f"table-{number}.json"
    report = options.folder / f"table-{number}.validation.json"
    seed = str(options.seed + number)
    command("build-lut", "--space", "fbnet", "--out", str(table), "--overwrite", "--fresh", *options.build.split())
    command("validate", str(table), "--out", str(report), "--overwrite", "--seed", seed, *options.validate.split())
    found = figures(json.loads(report.read_text(encoding="utf-8")))
    found["quartiles"] = repeatability_of_quartiles(os.environ["NNI_LATENCY_DATABASE"])
    print(row(f"run {number + 1}", found), flush=True)
    return found


def figures(content: dict[str, Any]) -> dict[str, float]:
    """Take the figures out of the file of a validation."""
    light = next(item["error"] for item in content["networks"] if item["name"] == "all skip")
    return {
        "bias": content["scores"]["bias"],
        "mape": content["scores"]["mape"],
        "repeatability": content["repeatability"]["mape"],
        "all_skip": light,
        "coverage": content["coverage"],
        "speed": content["speed"],
    }


def repeatability_of_quartiles(database: str) -> float:
    """Return by how much the halves of the last validation differ, by the lower quartile of each network's runs."""
    from nni_latency.database import open_store

    halves: dict[str, tuple[list[float], list[float]]] = {}
    for record in list(open_store(database).campaigns(kind="networks"))[-1].records:
        halves.setdefault(record.subjects[0], ([], []))[record.round % 2].extend(record.whole)
    quartiles = [
        [statistics.quantiles(half, method="inclusive")[0] for half in pair]
        for name, pair in halves.items()
        if name.startswith("network ")
    ]
    return statistics.mean(abs(odd / even - 1) for even, odd in quartiles)


def row(name: str, found: dict[str, float]) -> str:
    """Return a line of the report."""
    return (
        f"{name:8s}" + "".join(f"  {key} {found[key]:+.1%}" for key in FIGURES[:-1]) + f"  speed {found['speed']:.3f}"
    )


def command(name: str, *arguments: str) -> None:
    """Run ``nni-latency``, on the first of the processors, and measure anew where the command keeps measurements."""
    begin = [sys.executable, "-m", "nni_latency", name]
    known = subprocess.run([*begin, "--help"], capture_output=True, text=True, check=True).stdout
    fresh = ["--fresh"] if "--fresh" in known else []
    subprocess.run([*begin, *arguments, *fresh], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def disturbed(seed: int, *, quiet: bool) -> Iterator[None]:
    """Run the disturber on the last processor, and keep this process and its children off it."""
    processors = sorted(os.sched_getaffinity(0))
    if quiet:
        yield
        return
    if len(processors) < 2:
        sys.exit("The disturber needs a processor of its own: this machine has one. Run with --quiet.")
    process = multiprocessing.get_context("spawn").Process(target=disturb, args=(seed, processors[-1]), daemon=True)
    process.start()
    os.sched_setaffinity(0, processors[:-1])
    try:
        yield
    finally:
        process.terminate()
        process.join()
        os.sched_setaffinity(0, processors)


def disturb(seed: int, processor: int) -> None:
    """Alternate between idling, convolving and sweeping over memory, each for a while."""
    os.sched_setaffinity(0, {processor})
    import torch

    torch.set_num_threads(1)
    generator = random.Random(seed)
    convolution, image = torch.nn.Conv2d(32, 32, 3), torch.randn(1, 32, 112, 112)
    memory = torch.zeros(SWEPT // 4)
    with torch.no_grad():
        while True:
            work = generator.choice(("idle", "convolve", "sweep"))
            end = time.monotonic() + generator.uniform(SHORTEST, LONGEST)
            while time.monotonic() < end:
                if work == "convolve":
                    convolution(image)
                elif work == "sweep":
                    memory.add_(1.0)
                else:
                    time.sleep(0.05)


if __name__ == "__main__":
    main()
