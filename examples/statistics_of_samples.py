# SPDX-License-Identifier: Apache-2.0
"""Which statistic of raw samples repeats best, and whether windows should be long or many.

    python examples/statistics_of_samples.py [DATABASE]

With a database, the raw samples of its whole networks are compared; without one, three small networks are measured for
half a minute each. Every statistic sees the same samples. Three questions are asked of each:

- chance: how far are its values apart from the even and from the odd rounds of one campaign;
- drift: how far are its values apart from the first and from the second half of a campaign;
- disturbance: by how much is it larger in the half of the visits in which the reference operator was slower.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nni_latency.database import open_store
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    LocalBenches,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Record,
    Store,
    Subject,
)
from nni_latency.measurement.runtimes import TorchEager

#: Visits of a network from which its halves say something, the same for windows, and the longest of these [runs].
FEWEST, FEWEST_WINDOWS, WINDOW = 20, 6, 8

Statistic = Callable[[np.ndarray], float]


def within_three_sigma(samples: np.ndarray) -> float:
    """Return the mean of the samples that lie within three standard deviations of the mean of all."""
    near = np.abs(samples - samples.mean()) <= 3 * samples.std()
    return float(samples[near].mean())


STATISTICS: dict[str, Statistic] = {
    "mean": lambda samples: float(samples.mean()),
    "mean within three sigma": within_three_sigma,
    "median": lambda samples: float(np.median(samples)),
    "lower quartile": lambda samples: float(np.quantile(samples, 0.25)),
    "minimum": lambda samples: float(samples.min()),
}


def main() -> None:
    """Read or measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", nargs="?", help="a database of measurements")
    options = parser.parse_args()
    store = measured() if options.database is None else open_store(options.database)
    networks = list(visits_of(store))
    print(f"{len(networks)} networks of at least {FEWEST} visits, {sum(map(len, networks))} visits")
    for heading, how in (
        ("as they were taken", raw),
        ("over the time of the reference operator just before", relative),
    ):
        print(f"\nsamples {heading}\n{'':26}chance           drift            disturbance")
        print(f"{'':26}{'median    90 %   ' * 3}")
        for name, statistic in STATISTICS.items():
            print(row(name, [differences(visits, statistic, how) for visits in networks]))
    several = list(visits_of(store, FEWEST_WINDOWS, WINDOW))
    for name in ("median", "lower quartile") if several else ():
        print(f"\n{name} of {len(several)} networks as they were taken, by consecutive runs of a window")
        for length in (1, 2, 4, 8):
            found = [differences(visits, STATISTICS[name], raw, length) for visits in several]
            print(row(f"windows of {length}", found))


def raw(record: Record) -> np.ndarray:
    """Return the samples of a visit as they were taken [s]."""
    return np.array(record.whole)


def relative(record: Record) -> np.ndarray:
    """Return the samples of a visit in units of the reference operator's time."""
    return np.array(record.whole) / record.reference


def visits_of(store: Store, fewest: int = FEWEST, runs: int = 1) -> Iterator[list[Record]]:
    """Yield the visits of every whole network that was visited often enough in one campaign."""
    for campaign in store.campaigns():
        by_network: dict[tuple[str, ...], list[Record]] = {}
        for record in campaign.records:
            if len(record.subjects) == 1 and len(record.whole) >= runs:
                by_network.setdefault(record.subjects, []).append(record)
        yield from (visits for visits in by_network.values() if len(visits) >= fewest)


def differences(
    visits: Sequence[Record], statistic: Statistic, how: Callable[[Record], np.ndarray], length: int = 1
) -> tuple[float, float, float]:
    """Return how far a statistic is apart from two divisions of the visits, and by how much a disturbance raises it."""

    def value(chosen: Sequence[Record]) -> float:
        runs = [how(record) for record in chosen]
        cut = [part[: len(part) // length * length].reshape(-1, length).mean(axis=1) for part in runs]
        return statistic(np.concatenate(cut))

    half = len(visits) // 2
    by_reference = sorted(visits, key=lambda record: record.reference)
    return (
        abs(value(visits[::2]) / value(visits[1::2]) - 1),
        abs(value(visits[:half]) / value(visits[half:]) - 1),
        value(by_reference[half:]) / value(by_reference[:half]) - 1,
    )


def row(name: str, found: Sequence[tuple[float, float, float]]) -> str:
    """Return a line of the table."""
    cells = [f"{statistics.median(column):7.2%} {np.quantile(column, 0.9):7.2%}" for column in zip(*found, strict=True)]
    return f"{name:26}" + "  ".join(cells)


def measured() -> Store:
    """Measure three small networks, ten runs a visit."""
    from torch import nn

    networks = {
        "convolutions": nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))),
        "pointwise": nn.Sequential(*(nn.Conv2d(32, 32, 1) for _ in range(12))),
        "linear": nn.Sequential(nn.Flatten(), nn.Linear(32 * 28 * 28, 64), *(nn.Linear(64, 64) for _ in range(8))),
    }
    store, runtime = MemoryStore(), TorchEager()
    protocol = Protocol(n_run=16, rounds=200, time_budget=90.0, half_width=0.0, processes=1)
    subjects = [Subject.of_module(network, (1, 32, 28, 28), name) for name, network in networks.items()]
    benches = LocalBenches(runtime)
    with store.campaign(CampaignHeader("networks", {}, benches.platform, protocol)) as log:
        Campaign(NetworkSchedule(subjects, protocol, isolated=benches.isolated), benches, log).run()
    return store


if __name__ == "__main__":
    main()
