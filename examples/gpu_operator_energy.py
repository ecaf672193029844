# SPDX-License-Identifier: Apache-2.0
"""Energy of networks from the energy of their operators, on published measurements of GPUs.

The files are those of ml-operator-profiling for one device: operators and whole networks of torchvision, with the
columns ``operator``, ``input_shape``, ``latency_s`` and ``energy_mj``. They stay where they are.

    python examples/gpu_operator_energy.py a30=path/to/a30_operators.csv,path/to/a30_models.csv

Give several devices to leave each out in turn. Settings are chosen by cross-validation on operators alone; whole
networks are only scored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nni_latency.energy import (
    DeviceFacts,
    EnergyScores,
    MeasuredNetworkEnergy,
    MeasuredOperator,
    OperatorSum,
    PortableModel,
    cross_validate,
    leave_one_device_out,
    read_networks,
    read_operators,
)
from nni_latency.operators import OpSpec, trace
from nni_latency.plots import draw_portable

#: The operators of torchvision's networks, for machines without torchvision.
TRACED = Path(__file__).with_name("torchvision_operators.json")

#: Settings among which cross-validation chooses.
SETTINGS = tuple(PortableModel(max_features=share) for share in (1.0, 0.5))

Ops = list[OpSpec]


def main() -> None:
    """Read, choose, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="+", metavar="NAME=OPERATORS[,NETWORKS]", help="measured tables of a device")
    parser.add_argument("--plot", type=Path, help="PNG file of the operators that were held out")
    options = parser.parse_args()
    operators: dict[str, list[MeasuredOperator]] = {}
    networks: dict[str, list[MeasuredNetworkEnergy]] = {}
    for given in options.devices:
        name, equals, files = given.partition("=")
        paths = files.split(",")
        if not equals or not all(Path(path).is_file() for path in paths):
            parser.error(f"Give a device as NAME=OPERATORS.csv,NETWORKS.csv, with files that exist. Got {given!r}.")
        operators[name] = read_operators(paths[0])
        networks[name] = read_networks(paths[1]) if len(paths) > 1 else []
    traced = read_traced(TRACED)
    found = [report_device(name, operators[name], networks[name], traced) for name in operators]
    facts = {name: DeviceFacts.of(items) for name, items in operators.items()}
    if len(operators) > 1:
        for name, scores in leave_one_device_out(operators, facts).items():
            print(f"\n{name}, predicted from the other devices and its facts")
            print_scores(scores)
            found.append(scores)
    if options.plot:
        model = PortableModel().fit(operators, facts)
        model.held_out_ = tuple(item for scores in found for item in scores.held_out)
        model.bounds_ = {"energy": max(scores.bounds[1] for scores in found[: len(operators)])}
        print(f"Wrote {draw_portable(model, options.plot)}")


def report_device(
    name: str, operators: list[MeasuredOperator], networks: list[MeasuredNetworkEnergy], traced: Mapping[Any, Ops]
) -> EnergyScores:
    """Print what is predicted of operators that were not seen, and of whole networks; return the former's scores."""
    scores = {model: cross_validate(operators, model=model, name=name) for model in SETTINGS}
    best = min(scores, key=lambda model: scores[model].energy[0])
    print(f"{name}: {len(operators)} different operators, each predicted from four fifths of the others")
    print(f"settings by cross-validation: max_features={best.max_features:g}")
    print_scores(scores[best])
    if networks:
        print_networks(networks, OperatorSum(model=best).fit(operators), traced)
    return scores[best]


def print_scores(scores: EnergyScores) -> None:
    """Print errors of operators."""
    print(f"{'':34}median    mean")
    for what, name in (
        ("time", "time"),
        ("power", "power"),
        ("energy", "energy, power times time"),
        ("constant", "energy, constant power times time"),
    ):
        median, mean = getattr(scores, what)
        print(f"{name:34}{median:6.1%}  {mean:6.1%}")


def print_networks(networks: list[MeasuredNetworkEnergy], model: OperatorSum, traced: Mapping[Any, Ops]) -> None:
    """Print every network as the sum of its operators over what was measured of it, and the errors of all."""
    print("\nsum of operators over whole network      time           energy         energy by   operators")
    print("                                     plain  corrected  plain  corrected  constant   measured")
    errors = []
    for network in networks:
        total = model.total(ops_of(network, traced))
        time, energy = network.seconds, network.joules
        ratios = [
            total.plain_seconds / time, total.seconds / time, total.plain_joules / energy, total.joules / energy,
            total.constant_joules / energy,
        ]  # fmt: skip
        errors.append(np.abs(np.array(ratios) - 1))
        label = f"{network.name} at {network.input_shape[-1]}"
        print(f"{label:36}" + "".join(f"{ratio:8.1%}  " for ratio in ratios) + f"{total.measured:8.0%}")
    print(f"{'mean absolute error':36}" + "".join(f"{error:8.1%}  " for error in np.mean(errors, axis=0)))


def ops_of(network: MeasuredNetworkEnergy, traced: Mapping[Any, Ops]) -> Ops:
    """Return the operators of a network: those in the file, or those that a trace of torchvision's finds."""
    key = (network.name, network.input_shape)
    if key in traced:
        return traced[key]
    import torch
    import torchvision

    with torch.device("meta"):
        module = getattr(torchvision.models, network.name)()
        return [item.op for item in trace(module, torch.zeros(network.input_shape)).operators]


def read_traced(path: Path) -> dict[Any, Ops]:
    """Read operators of networks, each as often as it runs."""
    found: dict[Any, Ops] = {}
    for item in json.loads(path.read_text(encoding="utf-8")):
        ops = found.setdefault((item["network"], tuple(item["input_shape"])), [])
        for count, content in item["operators"]:
            ops += [OpSpec.of(content["kind"], content["input_shapes"], **content["attributes"])] * count
    return found


if __name__ == "__main__":
    main()
