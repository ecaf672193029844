# SPDX-License-Identifier: Apache-2.0
"""A new device from ten networks: how well published measurements of other devices predict it.

The data are those of HELP (NeurIPS 2021), a folder each of FBNet and NAS-Bench-201 with `architectures.csv` and
`latency_ms.csv`, one column a device. The protocol is that of HELP: FBNet learns from networks 0-3999 and is scored on
4000-4999, NAS-Bench-201 on 0-899 and 900-1899; the fastest and slowest tenth of the scored networks is dropped.

    python examples/transfer_to_a_new_device.py FOLDER --space fbnet
    python examples/transfer_to_a_new_device.py FOLDER --space nasbench201 --split each

``--split limits`` prints how well the best sum over layers ranks the networks of each device, and what limits it: the
rounding of the published latencies, or a speed that changed from network to network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nni_latency import FBNetSpace, TableEstimator
from nni_latency.estimators import TransferEstimator, score
from nni_latency.estimators.transfer import architectures_of, encoding_of, latencies_of, read_columns

#: Networks to learn from and to score, by space.
ROWS = {"fbnet": (4000, 5000), "nasbench201": (900, 1900)}

FOLDERS = {"fbnet": "help-fbnet", "nasbench201": "help-nasbench201"}

#: Devices that HELP validates with; the others are known.
VALIDATION = ("titanx_1", "titanx_32", "titanx_64", "titanx_256", "gold_6240")

#: Five phones and CPUs, as the only known devices for GPUs.
PHONES = ("silver_4114", "samsung_a50", "pixel3", "essential_ph_1", "samsung_s7")
PHONES_AND_CPUS = ("silver_4114", "silver_4210r", "samsung_a50", "pixel3", "essential_ph_1")

#: Networks before and after one that show how fast the device was at that time.
AROUND = 10

Series = dict[str, np.ndarray]
Result = tuple[float, float, float]


def main() -> None:
    """Read, learn, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the two data folders")
    parser.add_argument("--space", choices=list(ROWS), default="fbnet")
    parser.add_argument(
        "--split", choices=["help", "each", "gpus", "recover", "limits"], default="help", help="what is known"
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[5, 10, 20, 50], help="networks measured")
    parser.add_argument("--seeds", type=int, default=20, help="random choices of networks (default: 20)")
    options = parser.parse_args()
    trial = Trial(options.folder / FOLDERS[options.space], options.space)
    if options.split == "recover":
        trial.recover((100, 300, 900))
        return
    if options.split == "limits":
        trial.limits()
        return
    for name, known, new in splits(options.split, list(trial.series)):
        trial.transfer(name, known, new, options.samples, options.seeds)


def splits(which: str, names: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """List what is known and what is new."""
    if which == "help":
        yield "HELP", [name for name in names if name not in VALIDATION], [name for name in names if name in VALIDATION]
    elif which == "gpus":
        gpus = [name for name in names if name.startswith(("1080ti", "titanx"))]
        yield "one CPU and four phones", list(PHONES), gpus
        yield "two CPUs and three phones", list(PHONES_AND_CPUS), gpus
    else:
        for new in names:
            yield f"all but {new}", [name for name in names if name != new], [new]


class Trial:
    """The data of one space.

    Parameters
    ----------
    folder : Path
        Where they are.
    space : str
        Which.
    """

    def __init__(self, folder: Path, space: str) -> None:
        content = read_columns(folder / "architectures.csv")
        self.space: Any = FBNetSpace(num_classes=100, input_size=32) if space == "fbnet" else space
        encoding = encoding_of(self.space)
        self.networks = encoding.indices(architectures_of(content, encoding.labels))
        self.series: Series = latencies_of(read_columns(folder / "latency_ms.csv"), content.index, "ms")
        first, last = ROWS[space]
        self.learned, self.scored = np.arange(first), np.arange(first, last)

    def transfer(self, name: str, known: list[str], new: list[str], samples: list[int], seeds: int) -> None:
        """Learn the known devices, adapt to each new one, print the scores."""
        begin = time.perf_counter()
        estimator = TransferEstimator(self.space).fit_sources(
            self.networks[self.learned], {device: self.series[device][self.learned] for device in known}
        )
        print(f"{name}: {len(known)} known devices learned in {time.perf_counter() - begin:.1f} s", flush=True)
        for count in samples:
            picks = estimator.suggest(count)
            self.report(f"{count} suggested", new, {device: [self.score(estimator, device, picks)] for device in new})
        drawn = [np.random.default_rng(seed).permutation(self.learned)[:10] for seed in range(seeds)]
        if drawn:
            results = {device: [self.score(estimator, device, picks) for picks in drawn] for device in new}
            self.report("10 random", new, results)

    def score(self, estimator: TransferEstimator, device: str, picks: np.ndarray) -> Result:
        """Return Spearman's correlation, the share within 10 %, and the share inside the intervals."""
        truth = self.series[device]
        estimator.fit(self.networks[picks], truth[picks])
        values, low, high = estimator.predict_interval(self.networks[self.scored])
        measured = truth[self.scored]
        kept = middle(measured)
        scores = score(values[kept], measured[kept])
        return scores.spearman, scores.within10, float(np.mean((low <= measured) & (measured <= high)))

    def report(self, what: str, new: list[str], results: dict[str, list[Result]]) -> None:
        """Print the means over devices, the worst of them, and the correlation of each."""
        means = {device: np.mean(rows, axis=0) for device, rows in results.items()}
        overall, worst = np.mean(list(means.values()), axis=0), min(mean[0] for mean in means.values())
        each = ", ".join(f"{device} {means[device][0]:.3f}/{self.ceiling(device):.3f}" for device in new)
        print(
            f"  {what}: Spearman {overall[0]:.4f}, worst {worst:.4f}, within 10 % {overall[1]:.1%}, inside the "
            f"interval {overall[2]:.1%}; each, over what a sum of all can reach: {each}",
            flush=True,
        )

    def ceiling(self, device: str) -> float:
        """Return Spearman's correlation of the best sum over layers, fitted on all networks to learn from."""
        return rank_correlation(self.sums(device), self.series[device][self.scored])

    def sums(self, device: str) -> np.ndarray:
        """Return the best sum over layers of the networks to score [s], fitted on all networks to learn from."""
        sizes = self.networks.max(axis=0) + 1
        columns = [self.networks[:, [layer]] == np.arange(size) for layer, size in enumerate(sizes)]
        design = np.hstack([*columns, np.ones((len(self.networks), 1))]).astype(float)
        weights = np.linalg.lstsq(design[self.learned], self.series[device][self.learned], rcond=None)[0]
        return design[self.scored] @ weights

    def limits(self) -> None:
        """Print how well the best sum ranks the networks of every device, and what keeps it from 1."""
        for device, truth in self.series.items():
            sums, measured = self.sums(device), truth[self.scored]
            speed = local_speed(measured / sums)
            step = 1e-3 if np.allclose(measured, np.round(measured, 3), rtol=0, atol=1e-9) else 0.0
            # Were the sums the truth, this is what the published rounding would leave of their order.
            rounded = rank_correlation(sums, np.round(sums / step) * step) if step else 1.0
            print(
                f"{device}: a sum can reach {rank_correlation(sums, measured):.3f}, at the speed of the moment "
                f"{rank_correlation(sums * speed, measured):.3f}; rounding to {step * 1e3:g} ms alone leaves "
                f"{rounded:.3f}; the speed changed by {np.std(np.log(speed)):.1%}",
                flush=True,
            )

    def recover(self, counts: tuple[int, ...]) -> None:
        """Recover the table of every device from the first networks, without any other device."""
        for device, truth in self.series.items():
            line = []
            for count in counts:
                found = TableEstimator.from_networks(self.space, self.networks[:count], truth[:count])
                assert found.recovery is not None
                measured = truth[self.scored]
                values, low, high = found.recovery.predict_interval(self.networks[self.scored])
                kept, inside = middle(measured), np.mean((low <= measured) & (measured <= high))
                line.append(f"{count}: {score(values[kept], measured[kept]).spearman:.4f} ({inside:.0%} inside)")
            print(f"{device}: {', '.join(line)}; a sum can reach {self.ceiling(device):.4f}", flush=True)


def rank_correlation(values: np.ndarray, latencies: np.ndarray) -> float:
    """Return Spearman's correlation, without the networks that have the lowest and highest tenth of latencies."""
    kept = middle(latencies)
    return score(values[kept], latencies[kept]).spearman


def local_speed(ratios: np.ndarray) -> np.ndarray:
    """Return the median of the networks around each one in the order of the file, itself excluded."""
    places = np.arange(len(ratios))[:, None]
    window = np.clip(places - AROUND, 0, len(ratios) - 2 * AROUND - 1) + np.arange(2 * AROUND + 1)
    return np.nanmedian(np.where(window == places, np.nan, ratios[window]), axis=1)


def middle(latencies: np.ndarray) -> np.ndarray:
    """Return the places of all but the fastest and the slowest tenth."""
    tenth = len(latencies) // 10
    return np.argsort(latencies, kind="stable")[tenth:-tenth]


if __name__ == "__main__":
    main()
