# SPDX-License-Identifier: Apache-2.0
"""Tables of devices that others measured: solved from the FBNet networks of HELP, and imported from jh88/fbnet.

These tables ship in ``lut/``; this makes them again. The data are read from a folder with ``help-fbnet/``
(``architectures.csv``, and ``latency_ms.csv`` with one column per device) and
``lookup-tables/fbnet-raspberry-pi-4.json``. The tables of HELP are solved from networks 0-3999 and scored on 4000-4999.

    python examples/published_tables.py FOLDER --out lut
    python examples/published_tables.py FOLDER --out lut --only pixel3
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nni_latency import FBNetSpace, LookupTable, TableEstimator
from nni_latency.costs import NORMAL
from nni_latency.estimators import Scores, score
from nni_latency.estimators.transfer import architectures_of, encoding_of, latencies_of, read_columns
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, validation_path
from nni_latency.tables.formats import import_table
from nni_latency.units import format_percent
from nni_latency.validation import KeptScores, Validation, save_validation

Array = np.ndarray[Any, Any]

#: Networks that tables are solved from; the others are held out.
SOLVED = 4000

#: Networks on each side of one, in the order of measuring, whose median is the speed of the device at that time.
AROUND = 10

#: From this correlation of neighbouring residuals on, the speed of the device is taken out.
DRIFTS = 0.4

#: Fits of table and speed in turn.
TURNS = 4

#: Significant digits of an entry.
DIGITS = 6

HELP = {
    "source": "HELP, NeurIPS 2021: whole networks",
    "paper": "arXiv:2106.08630",
    "repository": "https://github.com/HayeonLee/HELP",
    "licence": "MIT, copyright (c) 2024 HayeonLee",
}

HW_NAS_BENCH = {
    "source": "HW-NAS-Bench, ICLR 2021, by HELP: sums of blocks",
    "paper": "arXiv:2103.10584, arXiv:2106.08630",
    "repository": "https://github.com/GATECH-EIC/HW-NAS-Bench, https://github.com/HayeonLee/HELP",
    "licence": "MIT, copyright (c) 2022 GaTech-EIC; MIT, copyright (c) 2024 HayeonLee",
}

JH88 = {
    "source": "jh88/fbnet: blocks measured alone",
    "repository": "https://github.com/jh88/fbnet",
    "licence": "MIT, copyright (c) 2019 Hua",
}

UNPUBLISHED = "runtime, precision, threads: fp32 and t1 are assumed"


@dataclass(frozen=True)
class Device:
    """One column of HELP's data.

    Parameters
    ----------
    slug, name : str
        Device in the id of the platform, and its name.
    batch_size : int
        Batch size.
    origin : dict
        Facts about the source.
    remarks : tuple of str
        What to know about the numbers.
    """

    slug: str
    name: str
    batch_size: int = 1
    origin: Any = None
    remarks: tuple[str, ...] = ()

    @property
    def platform(self) -> Platform:
        """The platform, with its source."""
        facts = {"device_name": self.name, **(self.origin or HELP), "unpublished": UNPUBLISHED}
        return Platform(self.slug, "unknown", facts=facts)


SUMS = (
    "The published latencies are exact sums over the layers, of blocks that were measured alone. The error is that of "
    "these sums: how far a whole network on the device is from them is not known."
)
ROUNDED = "The latencies were published in whole milliseconds."

DEVICES = {
    **{f"1080ti_{batch}": Device("gtx-1080-ti", "NVIDIA GeForce GTX 1080 Ti", batch) for batch in (1, 32, 64)},
    **{f"titanx_{batch}": Device("titan-x", "NVIDIA Titan X", batch) for batch in (1, 32, 64)},
    "silver_4114": Device("xeon-silver-4114", "Intel Xeon Silver 4114"),
    "silver_4210r": Device("xeon-silver-4210r", "Intel Xeon Silver 4210R"),
    "gold_6240": Device("xeon-gold-6240", "Intel Xeon Gold 6240"),
    "samsung_a50": Device("samsung-a50", "Samsung Galaxy A50", remarks=(ROUNDED,)),
    "samsung_s7": Device("samsung-s7", "Samsung Galaxy S7", remarks=(ROUNDED,)),
    "essential_ph_1": Device("essential-ph-1", "Essential Phone PH-1", remarks=(ROUNDED,)),
    "pixel3": Device("pixel-3", "Google Pixel 3", origin=HW_NAS_BENCH, remarks=(SUMS,)),
}

PI = "raspberry-pi-4"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables and their validations, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the data")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--only", choices=[*DEVICES, PI], action="append", help="one device; may be repeated")
    options = parser.parse_args(arguments)
    wanted = options.only or [*DEVICES, PI]
    data = HelpData(options.folder / "help-fbnet") if set(wanted) - {PI} else None
    for name in wanted:
        if data is None or name == PI:
            table = imported_pi(options.folder / "lookup-tables" / "fbnet-raspberry-pi-4.json")
            table.save(file_of(table, options.out))
            print(f"{name}: imported, {format_percent(table.coverage)} of the candidates")
            continue
        table, validation = solved(data, name)
        path = table.save(file_of(table, options.out))
        save_validation(validation, validation_path(path))
        scores = validation.scores
        print(
            f"{name}: MAPE {format_percent(scores.mape)}, bias {format_percent(scores.bias, signed=True)}, within "
            f"10 %: {format_percent(scores.within10)}, Spearman {scores.spearman:.4f}, inside the interval "
            f"{format_percent(validation.coverage)}",
            flush=True,
        )


class HelpData:
    """The networks of HELP and their latencies [s].

    Parameters
    ----------
    folder : Path
        Where they are.
    """

    def __init__(self, folder: Path) -> None:
        content = read_columns(folder / "architectures.csv")
        encoding = encoding_of(FBNetSpace(num_classes=100, input_size=32))
        self.networks: Array = encoding.indices(architectures_of(content, encoding.labels))
        self.series = latencies_of(read_columns(folder / "latency_ms.csv"), content.index, "ms")


def solved(data: HelpData, name: str) -> tuple[LookupTable, Validation]:
    """Solve the table of a device, and score it on the networks that were held out."""
    device, seconds = DEVICES[name], data.series[name]
    plan = FBNetSpace(num_classes=100, input_size=32).measure_plan(device.batch_size)
    networks, held_out = data.networks[:SOLVED], data.networks[SOLVED:]
    table, drifts = _without_drift(plan, networks, seconds[:SOLVED], device.platform)
    estimator = TableEstimator(table)
    off = np.abs(seconds[:SOLVED] / estimator.predict(networks) - 1)
    remarks = [*table.remarks, *device.remarks]
    if drifts:
        steady = _at_its_speed(estimator.predict(held_out), seconds[SOLVED:])
        remarks.append(
            "The speed of the device changed while it was measured. It is taken out of the entries, as the median of "
            f"the {2 * AROUND} networks measured around each. The validation is against the latencies as published; at "
            f"the speed of the moment MAPE is {format_percent(steady.mape)}, within 10 %: "
            f"{format_percent(steady.within10)}, Spearman {steady.spearman:.3f}."
        )
    if ROUNDED in device.remarks:
        remarks.append(
            "For comparison: the least-squares sum over layers of all published networks, those of the validation "
            f"included, ranks these with a Spearman correlation of {ceiling(data.networks, seconds):.3f}."
        )
    table = replace(
        table.with_entries(_rounded),
        remarks=tuple(remarks),
        network_error=float(f"{np.quantile(off, 0.95) / NORMAL:.4g}"),
    )
    return table, scored(table, held_out, seconds[SOLVED:])


def _without_drift(plan: Any, networks: Array, seconds: Array, platform: Platform) -> tuple[LookupTable, bool]:
    """Solve a table, without the changes of the device's speed where there are any; say whether there are."""
    estimator = TableEstimator.from_networks(plan, networks, seconds, platform=platform)
    rest = np.log(seconds / estimator.predict(networks))
    if np.corrcoef(rest[1:], rest[:-1])[0, 1] < DRIFTS:
        return estimator.table, False
    for _ in range(TURNS):
        speed = local_speed(seconds / estimator.predict(networks))
        speed /= np.median(speed)
        estimator = TableEstimator.from_networks(plan, networks, seconds / speed, platform=platform)
    return estimator.table, True


def local_speed(ratios: Array) -> Array:
    """Return the median of each one's neighbours in the order of measuring, itself excluded.

    Parameters
    ----------
    ratios : ndarray of shape (n_networks,)
        Measured over predicted latencies.
    """
    found = []
    for place in range(len(ratios)):
        around = ratios[max(0, place - AROUND) : place + AROUND + 1]
        found.append(np.median(np.delete(around, min(place, AROUND))))
    return np.array(found)


def _at_its_speed(predicted: Array, measured: Array) -> Scores:
    return score(predicted * local_speed(measured / predicted), measured)


def ceiling(networks: Array, seconds: Array) -> float:
    """Return Spearman's correlation of the least-squares sum of all networks on those held out."""
    design = np.hstack([networks[:, [layer]] == np.arange(9) for layer in range(networks.shape[1])]).astype(float)
    weights = np.linalg.lstsq(design, seconds, rcond=None)[0]
    return score(design[SOLVED:] @ weights, seconds[SOLVED:]).spearman


def scored(table: LookupTable, networks: Array, seconds: Array) -> Validation:
    """Score a table. The networks stay where they were published; their scores are kept."""
    estimator = TableEstimator(table)
    estimates = [estimator.estimate_sample(network.tolist()) for network in networks]
    inside = [item.low <= measured <= item.high for item, measured in zip(estimates, seconds, strict=True)]
    scores = score([item.value for item in estimates], seconds)
    kept = KeptScores(scores, float(np.mean(inside)))
    return Validation(repr(estimator), table.metric, table.platform, (), 1.0, (), 0.0, {}, kept=kept)


def _rounded(entry: Entry) -> Entry:
    value, low, high = (float(f"{number:.{DIGITS}g}") for number in (entry.value, entry.low, entry.high))
    return replace(entry, value=value, low=low, high=high)


def imported_pi(path: Path) -> LookupTable:
    """Import the table of the Raspberry Pi 4."""
    facts = {
        "device_name": "Raspberry Pi 4 Model B 4GB",
        **JH88,
        "unpublished": "threads: all four cores, as TensorFlow takes them",
    }
    platform = Platform(PI, "tensorflow", "fp32", 4, facts)
    plan = FBNetSpace(preset="cifar10").measure_plan()
    table = import_table(path, plan, unit="us", platform=platform).table
    return replace(
        table.with_entries(_rounded),
        remarks=(
            "Every block was measured alone, as the mean of ten runs in eager TensorFlow 2; calling a block takes "
            "about 8 ms of each entry. No whole network was measured, so the error of their sums is not known.",
            "The skips that change the shape were not measured: --missing nearest puts other blocks in their place. "
            "Stem and head were not measured, and count as 0.",
        ),
    )


def file_of(table: LookupTable, folder: Path) -> Path:
    """Name the file of a table after its space and platform."""
    space = f"fbnet-{table.space.arguments['preset']}-{table.space.arguments['input_size']}"
    return folder / f"{space}-b{table.batch_size}.{table.platform.id}.json"


if __name__ == "__main__":
    main()
