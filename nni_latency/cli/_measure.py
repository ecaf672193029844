# SPDX-License-Identifier: Apache-2.0
"""``nni-latency measure``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import click

import nni_latency.estimators as estimators
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
from nni_latency.cli._asked import ask_network
from nni_latency.cli._console import remarks
from nni_latency.cli._cost_report import ROWS, print_answers
from nni_latency.cli._measuring import PlatformOptions, ProtocolOptions, database_option, make_runtime
from nni_latency.cli._network import NETWORKS, NetworkOptions, make_networks, parse_networks
from nni_latency.cli._option import grouped, option
from nni_latency.cli._report import ReportingCommand
from nni_latency.cli._supervision import user_code
from nni_latency.errors import MeasurementError
from nni_latency.units import number_of

By = Literal["network", "module", "graph"]


@dataclass(frozen=True)
class _MeasureOptions:
    """What is timed, and where it is kept."""

    by: By = option(
        "Time the network as a whole, or add up its parts, timed inside the network: its modules, or all calls of its "
        "graph.",
        default="network",
    )
    top: int | None = option(
        f"Number of layers to list, by module or graph.  [default: {ROWS}; as JSON or CSV all, in order]",
        type=click.IntRange(1),
    )
    database: str | None = database_option(rare=True)


@click.command("measure", cls=ReportingCommand)
@click.argument("networks", nargs=-1, required=True, metavar=NETWORKS)
@grouped(
    # As estimators measure on demand; naming them here would load torch.
    budget={"default": "20s"},
)
def command(
    networks: tuple[str, ...],
    network: NetworkOptions,
    wanted: _MeasureOptions,
    platform: PlatformOptions,
    ending: ProtocolOptions,
) -> None:
    """Measure the latency of a network on this device, or compare several.

    NET is a class or function, such as net.py:Net or package.module:function, with --input 3,224,224; an ONNX file, in
    a runtime that reads it, such as onnxruntime; a published network, such as resnet18; or an architecture of a space,
    such as fbnet@fbnet-c or my_space.py:MySpace@sample.json. The file of a class is executed.

    What was measured is kept in a database, and answered from there the next time. Several networks are measured in
    turns, so that a change of the machine's speed is the same for all of them.
    """
    named = parse_networks(networks, network)
    runtime = make_runtime(platform)
    file = next((item.text for item in named if item.kind == "onnx"), None)
    if file is not None and not runtime.takes_onnx:
        raise MeasurementError(
            f"The runtime {runtime.name!r} does not read ONNX files. Measure {file!r} with one that does, such as "
            "--runtime onnxruntime, or give the network as a module."
        )
    if wanted.by != "network" and not runtime.sees_calls:
        raise runtime.sees_no_calls("Measure with --runtime torch, or the whole network with --by network.")
    made = list(make_networks(named, network))
    protocol = ending.of(estimators.ON_DEMAND, platform.threads)
    estimator = _estimator(wanted, runtime, protocol)
    what = f"Measuring {number_of(len(made), 'network')} on {runtime.platform.id}"
    # What is measured has time limits of its own.
    with user_code(f"The code of {named[0].text!r}", 0.0), remarks().status(what):
        estimator.measure([(item.model, item.example_inputs()) for item in made])
        answers = [ask_network(estimator, item) for item in made]
    print_answers(answers, estimator, wanted.top)
    if not estimator.n_measured:
        remarks().print(
            "Nothing was measured: the database has it. Measure again with --database memory.", markup=False
        )


def _estimator(
    wanted: _MeasureOptions, runtime: runtimes.Runtime, protocol: measurement.Protocol
) -> estimators.MeasuringEstimator:
    kinds: dict[str, Callable[..., estimators.MeasuringEstimator]] = {
        "network": estimators.MeasuredNetworkEstimator,
        "module": estimators.ModuleEstimator,
        "graph": estimators.GraphEstimator,
    }
    return kinds[wanted.by](runtime=runtime, protocol=protocol, store=wanted.database)
