# SPDX-License-Identifier: Apache-2.0
"""Long windows of a meter against many short ones: real timings, and meters that are simulated on them.

    python examples/long_or_short_windows.py --seconds 20

Three small networks run again and again, and every run is timed. A meter is laid over these times: a counter of energy
that is updated once in a period, while a run draws a constant power. Energy by run is read in windows of one length,
one behind the other, and the median of some windows is their answer. The windows are dealt out to five groups, in turns
or one part of the time each. How far apart the answers of the groups are, in proportion, is what such a window is
worth: in turns but for the drift of the machine, in parts with it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nni_latency.measurement import Subject, time_chain
from nni_latency.measurement.runtimes import TorchEager

#: Lengths of windows [s].
LENGTHS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)

#: Periods of meters [s]: none, powercap, a GPU's counter of energy, sampled power.
PERIODS = (0.0, 0.001, 0.02, 0.1)

#: Groups of windows, and the power of a run [W].
GROUPS, WATTS = 5, 15.0

Array = NDArray[np.float64]


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each network runs (default: 20)")
    options = parser.parse_args()
    measured = {name: run_times(network, options.seconds) for name, network in networks().items()}
    for name, times in measured.items():
        spread = np.quantile(times, [0.05, 0.5, 0.95]) * 1e3
        print(f"{name}: {len(times)} runs, {spread[1]:.2f} ms, nine of ten between {spread[0]:.2f} and {spread[2]:.2f}")
    for dealt in ("in turns", "in parts"):
        print(f"\nspread of {GROUPS} groups of windows {dealt}, median over the networks")
        print(f"{'window':10}" + "".join(f"{f'period {period * 1e3:g} ms':>15}" for period in PERIODS))
        for length in LENGTHS:
            if 2 * length * GROUPS <= options.seconds:
                periods = [period for period in PERIODS if period <= length]
                spreads = [
                    [spread_of(times, length, period, dealt) for times in measured.values()] for period in periods
                ]
                print(f"{f'{length:g} s':10}" + "".join(f"{np.median(row):15.2%}" for row in spreads))


def networks() -> dict[str, nn.Module]:
    """Make the networks."""
    return {
        "convolutions": nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))),
        "pointwise": nn.Sequential(*(nn.Conv2d(32, 32, 1) for _ in range(12))),
        "linear": nn.Sequential(nn.Flatten(), nn.Linear(32 * 28 * 28, 64), *(nn.Linear(64, 64) for _ in range(8))),
    }


def run_times(network: nn.Module, seconds: float) -> Array:
    """Run a network for some time and return what every run took [s]."""
    runtime, times = TorchEager(), list[float]()
    with runtime.session():
        inputs = runtime.inputs((1, 32, 28, 28))
        stage = runtime.prepare(Subject("network", lambda: network), inputs)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            times += time_chain([stage], inputs, runtime.clock)
    return np.array(times)


def spread_of(times: Array, length: float, period: float, dealt: str) -> float:
    """Return how far apart the groups are: the standard deviation of their answers as a share of the mean.

    Parameters
    ----------
    times : ndarray of shape (n_runs,)
        What every run took [s].
    length : float
        Of a window, at least [s].
    period : float
        How often the meter is updated [s]; 0 for one that always is.
    dealt : {"in turns", "in parts"}
        Which windows make a group.
    """
    ends = np.cumsum(times)
    counted = WATTS * (np.floor(ends / period) * period if period else ends)
    found = windows(ends, counted, length)
    groups = [found[first::GROUPS] for first in range(GROUPS)] if dealt == "in turns" else np.array_split(found, GROUPS)
    answers = [float(np.median(group)) for group in groups]
    return float(np.std(answers, ddof=1) / np.mean(answers))


def windows(ends: Array, counted: Array, length: float) -> Array:
    """Return the energy of a run in every window [J], of whole runs, one window behind the other."""
    edges = [0]
    while True:
        following = int(np.searchsorted(ends, ends[edges[-1]] + length))
        if following >= len(ends):
            break
        edges.append(following)
    places = np.array(edges)
    found: Array = np.diff(counted[places]) / np.diff(places)
    return found


if __name__ == "__main__":
    main()
