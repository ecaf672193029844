"""``nni-latency profile``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import click
from click.core import ParameterSource

import nni_latency.analysis as analysis
import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.plots as plots
import nni_latency.profiling as profiling
from nni_latency.cli._block_report import analysis_report, comparison_of_work
from nni_latency.cli._console import named as listed_names
from nni_latency.cli._console import print_lines, remarks, sentence
from nni_latency.cli._estimator_options import ESTIMATOR, FLAGS
from nni_latency.cli._measuring_options import MeterOptions, PlatformOptions, ProtocolOptions, StoreOptions
from nni_latency.cli._network import NETWORKS, NamedNetwork, NetworkOptions, limited, make, parse_networks
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._profile_measure import ProfiledOptions, failures, listed_networks, measure_profile
from nni_latency.cli._profile_report import By, profile_report
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, MismatchError

#: Blocks that are printed without --top.
_ROWS = 20


@dataclass(frozen=True)
class _AnalysisOptions:
    """What is said of the blocks of a network that is not measured."""

    latency_estimator: str | None = option(
        "Estimator of the latency of blocks, such as acts:FILE.", *FLAGS, metavar=ESTIMATOR
    )
    depth: int | None = option("Depth of the blocks in the module tree.", type=click.IntRange(1))
    top: int | None = option(f"Number of blocks to list.  [default: {_ROWS}]", type=click.IntRange(1))


@dataclass(frozen=True)
class _ReportOptions:
    """Whether operators are measured, and what is shown of them."""

    measure: bool = option("Measure the operators on this device, inside the networks and alone.", default=False)
    source: tuple[Path, ...] = option(
        "Report on this profile instead of measuring; repeat for several platforms.", "--from", multiple=True
    )
    by: By = option("What a row of the report on operators is.", default="kind")
    plot: Path | None = output_option("PNG file of the shares of kinds, and of the sums of operators.")


@click.command("profile", cls=ReportingCommand)
@click.argument("networks", nargs=-1, metavar=NETWORKS)
@grouped(
    budget={"default": "10min"},
    out={"help": "JSON file of the profile.  [default: operators.<platform>.b<batch size>.json]"},
)
def command(
    networks: tuple[str, ...],
    network: NetworkOptions,
    wanted: _AnalysisOptions,
    shown: _ReportOptions,
    profiled: ProfiledOptions,
    platform: PlatformOptions,
    ending: ProtocolOptions,
    metered: MeterOptions,
    store: StoreOptions,
    output: OutputOptions,
) -> None:
    """Profile networks: the work, memory traffic and cost of every block, or the measured time of every operator.

    NET is an ONNX file; a class or function, such as net.py:Net or package.module:function, with --input 3,224,224; a
    published network, such as resnet18; or an architecture of a space, such as fbnet@fbnet-c or
    my_space.py:MySpace@sample.json. The file of a class is executed.

    With --measure all operators are timed inside the networks. Kinds are added, the costliest first, until --share of
    every network's time is attributed, and of its energy where --meter is given. Operators of these kinds are measured
    alone as well, and both sums are compared with the whole networks. An interrupted run can be resumed: run the same
    command again, with more networks if you like.
    """
    _check_options(shown)
    if shown.source:
        if networks:
            raise InvalidValueError("--from reports on what was measured: omit NET.")
        profiles = [profiling.OperatorProfile.load(path) for path in shown.source]
        print_report(profile_report(profiles, shown.by, _draw(profiles, shown.plot)))
        return
    if not (networks or profiled.campaign):
        raise InvalidValueError("Name a network to profile, such as resnet18 or net.py:Net.")
    if not shown.measure:
        _analyse(parse_networks(networks, network), network, wanted)
        return
    campaign = None if profiled.campaign is None else profiling.CampaignFile(profiled.campaign)
    listed = listed_networks(networks, network, campaign)
    profile, out = measure_profile(listed, profiled, platform, ending, metered, store, output, campaign)
    print_report(profile_report([profile], shown.by, [f"Wrote {out}", *_draw([profile], shown.plot)]))
    print_lines(remarks(), [*failures(profile), *profile.remarks])


def _check_options(shown: _ReportOptions) -> None:
    """Raise `InvalidValueError` if an option was given that has no effect on what the command does."""
    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    flags = {item.name: max(item.opts, key=len) for item in context.command.params}
    flags["latency_estimator"] = "--estimator"
    analysed = _names(_AnalysisOptions)
    measured = _names(PlatformOptions, ProtocolOptions, MeterOptions, StoreOptions, ProfiledOptions, OutputOptions)
    if shown.source:
        ignored, reason = (
            analysed | measured | _names(NetworkOptions) | {"measure"},
            "--from reports on what was measured",
        )
    elif shown.measure:
        ignored, reason = analysed, "--measure times operators"
    else:
        ignored, reason = measured | {"by", "plot"}, "without --measure nothing is measured"
    wrong = sorted(flags[name] for name in given & ignored)
    if wrong:
        raise InvalidValueError(f"{wrong[0]} has no effect here: {reason}.")


def _names(*groups: type) -> set[str]:
    return {item.name for group in groups for item in fields(group)}


def _analyse(named: list[NamedNetwork], options: NetworkOptions, wanted: _AnalysisOptions) -> None:
    """Count the work of networks, without measuring, and report on it."""
    estimator = None if wanted.latency_estimator is None else loading.load_estimator(wanted.latency_estimator)
    if estimator is not None and estimator.metric != "latency":
        raise MismatchError(
            f"A profile takes an estimator of latency. Got {estimator!r}: 'nni-latency predict' lists the costs of "
            "operators by it."
        )
    found = [_analysis_of(item, options, wanted.depth, estimator) for item in named]
    if len(found) == 1:
        print_report(analysis_report(named[0], found[0], wanted.top or _ROWS))
    else:
        print_report(comparison_of_work(named, found))
    uncounted = dict.fromkeys(name for item in found for name in item.uncounted)
    print_lines(remarks(), [f"Not counted: {listed_names(uncounted)}"] if uncounted else [])
    print_lines(remarks(), map(sentence, dict.fromkeys(remark for item in found for remark in item.remarks)))


def _analysis_of(
    named: NamedNetwork, options: NetworkOptions, depth: int | None, estimator: estimators.Estimator | None
) -> analysis.ModelAnalysis:
    with limited(named, options):
        network = make(named, options)
        return analysis.ModelAnalysis(
            network.model,
            batch_size=network.batch_size,
            estimator=estimator,
            depth=None if network.is_file else depth,
            example_inputs=network.inputs,
        )


def _draw(profiles: Iterable[profiling.OperatorProfile], out: Path | None) -> list[str]:
    """Draw profiles if that was asked for, and say where."""
    return [] if out is None else [f"Wrote {plots.draw_operator_profile(list(profiles), out)}"]
