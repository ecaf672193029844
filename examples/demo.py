# SPDX-License-Identifier: Apache-2.0
"""The whole way once: a table of this device, a search under a target, and a measurement of the network found.

Run it with ``make demo``. It prints every command before it runs it, so each can be repeated by hand.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from nni_latency import LookupTable, TableEstimator

FOLDER = Path("demo")
TABLE = FOLDER / "table.json"

# A full FBNet supernet runs 22 x 9 candidates every step. Half the width and half the depth fit two cores.
SCALE = ("--space-args", "width=0.5,depth=0.5,num_classes=10")


def run(*arguments: str) -> None:
    """Print a command of nni-latency and run it; its failure is the demo's."""
    print(f"\n$ nni-latency {shlex.join(arguments)}", flush=True)
    outcome = subprocess.run([sys.executable, "-m", "nni_latency", *arguments], check=False)
    if outcome.returncode:
        sys.exit(outcome.returncode)


def say(text: str) -> None:
    """Print a paragraph before what a command prints."""
    print(f"\n{text}", flush=True)


def choose_target(table: Path) -> float:
    """Return a target [ms] two thirds of the way from the fastest to the slowest network of this device."""
    low, high = TableEstimator(LookupTable.load(table)).cost.range
    return float(f"{(low + 2 * high) / 3 * 1e3:.2g}")


def main() -> None:
    """Build, show, search."""
    print(
        "FBNet at half width and half depth, 12 layers with nine candidates each (the full space runs the same code), "
        "input 224x224, on this CPU.\nThis takes about three minutes, and longer on a busy machine."
    )
    say("1. Measure all candidates inside whole networks, and write their latencies to a table.")
    run("build-lut", "--space", "fbnet", *SCALE, "--budget", "25s", "--out", str(TABLE), "--overwrite", "--fresh")
    say("2. What the table holds: latencies by layer and candidate. It predicts any of 9^12 networks.")
    run("show", str(TABLE))
    target = choose_target(TABLE)
    say(
        f"3. Search a network for small images of digits that takes at most {target:g} ms, two thirds of the way "
        "from the fastest to the slowest one. Then measure it: the table has not seen it."
    )
    run(
        *("search", "--space", "fbnet", *SCALE, "--latency-estimator", str(TABLE)),
        *("--target", f"{target:g}ms", "--dataset", "digits", "--epochs", "5"),
        *("--out", str(FOLDER), "--overwrite", "--fresh"),
    )
    say(
        "'prediction' above is how far the table was from the measurement. The machine's speed changes from minute to "
        f"minute: four reference networks were measured again and take that out. {FOLDER / 'search.png'} is a picture."
    )


if __name__ == "__main__":
    main()
