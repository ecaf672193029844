# SPDX-License-Identifier: Apache-2.0
"""``nni-latency profile``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
from click.core import ParameterSource
from rich.markup import escape

import nni_latency.analysis as analysis
import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.plots as plots
import nni_latency.profiling as profiling
from nni_latency.cli._console import named as listed_names
from nni_latency.cli._console import print_lines, remarks
from nni_latency.cli._cost_report import analysis_report, comparison_of_work, remark_on
from nni_latency.cli._estimator_options import ESTIMATOR, ESTIMATOR_FLAGS
from nni_latency.cli._measuring import (
    Measuring,
    MeterOptions,
    PlatformOptions,
    ProtocolOptions,
    StoreOptions,
    make_runtime,
)
from nni_latency.cli._network import (
    NETWORKS,
    NamedNetwork,
    NetworkOptions,
    limited,
    make,
    parse_network,
    parse_networks,
)
from nni_latency.cli._option import OutputOptions, grouped, option, output_option
from nni_latency.cli._profile_report import By, profile_report
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.units import number_of

#: A network, and how it is made: in a campaign file each may have inputs of its own.
Listed = tuple[NamedNetwork, NetworkOptions]

#: Blocks that are printed without --top.
_ROWS = 20


@dataclass(frozen=True)
class ProfiledOptions:
    """Which networks are measured, and how much of them is attributed."""

    campaign: Path | None = option("File that lists a network a line; those that are done are marked in it.")
    share: float = option(
        "Share of every network's time, and energy, to be attributed to operators.",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.9,
    )


def listed_networks(
    texts: Sequence[str], options: NetworkOptions, campaign: profiling.CampaignFile | None
) -> list[Listed]:
    """Return the networks that are named, those of the campaign file last.

    Raises
    ------
    LatencyError
        If one is of no known form, or its operators cannot be timed one by one.
    """
    lines = [item for item in (campaign.models if campaign else ()) if item.model not in texts]
    listed = [(item, options) for item in parse_networks(texts, options if not lines else replace(options, inputs=()))]
    listed += [(parse_network(item.model), replace(options, inputs=item.inputs or options.inputs)) for item in lines]
    for named, _ in listed:
        if named.kind == "onnx" or named.space == "operators":
            raise InvalidValueError(
                f"The operators of {named.text!r} cannot be timed one by one. "
                "Name a network of torch, such as net.py:Net."
            )
    return listed


def measure_profile(
    listed: Sequence[Listed],
    profiled: ProfiledOptions,
    platform: PlatformOptions,
    ending: ProtocolOptions,
    metered: MeterOptions,
    store: StoreOptions,
    output: OutputOptions,
    campaign: profiling.CampaignFile | None,
) -> tuple[profiling.OperatorProfile, Path]:
    """Measure the operators of networks, in them and alone; return the profile, and its file.

    Raises
    ------
    LatencyError
        If the runtime cannot time operators, or nothing can be measured.
    """
    runtime = make_runtime(platform)
    profiling.check_profiles(runtime)
    meters = metered.meters("latency", platform.device)
    batch_size = listed[0][1].batch_size or 1
    out = output.path(f"operators.{runtime.platform.id}.b{batch_size}.json")
    protocol = ending.of(profiling.PROFILE_PROTOCOL, platform.threads)
    profiler = profiling.OperatorProfiler(
        _made(listed),
        runtime,
        batch_size=batch_size,
        protocol=protocol,
        target=profiled.share,
    )
    profile = _measure(profiler, runtime, store, meters, campaign)
    profile.save(out)
    return profile, out


def failures(profile: profiling.OperatorProfile) -> list[str]:
    """Name what could not be measured, and why; operators with one reason together."""
    names = {model.name for model in profile.models}
    reasons: dict[str, list[str]] = {}
    for name, reason in profile.failures.items():
        said = reason.replace(f"The operator {name}", "it").replace(name, "it")
        reasons.setdefault(said, []).append(name if name in names else name.partition("@")[0])
    return [
        escape(f"Could not be measured{' alone' if '(' in found[0] else ''}: {', '.join(sorted(set(found)))}: {reason}")
        for reason, found in reasons.items()
    ]


def _made(listed: Sequence[Listed]) -> list[profiling.ProfiledModel]:
    """Make and trace the networks; it takes a second each."""
    made: list[profiling.ProfiledModel] = []
    with remarks().status("Tracing networks") as status:
        for named, options in listed:
            with limited(named, options):
                made.append(_profiled(named, options))
            status.update(f"Traced {len(made)} of {number_of(len(listed), 'network')}")
    return made


def _profiled(named: NamedNetwork, options: NetworkOptions) -> profiling.ProfiledModel:
    found = profiling.family_model(named.text, options.batch_size or 1) if named.kind == "published" else None
    if found is not None:
        return found
    network = make(named, options)
    if named.kind == "torchvision":
        return profiling.vision_model(named.text, options.batch_size or 1, tuple(network.inputs.shape[1:]))
    return profiling.own_model(named.text, network.model, network.inputs)  # type: ignore[arg-type]


def _measure(
    profiler: profiling.OperatorProfiler,
    runtime: runtimes.Runtime,
    store: StoreOptions,
    meters: tuple[measurement.Meter, ...],
    campaign: profiling.CampaignFile | None,
) -> profiling.OperatorProfile:
    what = f"{number_of(len(profiler.models), 'model')} with all of their operators"
    with _Marking(what, runtime, store, meters, profiler, campaign) as measuring:
        profiler.measure_networks(**measuring.how)
    while wanted := profiler.wanted():
        what = f"{number_of(len(wanted), 'operator')} of {', '.join(profiler.significant)} alone"
        with _Marking(what, runtime, replace(store, fresh=False), meters, profiler, campaign) as measuring:
            if not profiler.measure_operators(**measuring.how):
                break
    return profiler.profile()


class _Marking(Measuring):
    """Measures behind a progress bar, and marks the models of a campaign file that are done."""

    def __init__(
        self,
        what: str,
        runtime: runtimes.Runtime,
        store: StoreOptions,
        meters: tuple[measurement.Meter, ...],
        profiler: profiling.OperatorProfiler,
        campaign: profiling.CampaignFile | None,
    ) -> None:
        super().__init__(what, runtime, store, meters)
        self._profiler, self._campaign = profiler, campaign

    def on_progress(self, state: measurement.Progress) -> None:
        """Move the bar."""
        super().on_progress(state)
        self._mark()

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        self._mark()
        super().__exit__(*error)  # type: ignore[arg-type]

    def _mark(self) -> None:
        if self._campaign is None:
            return
        over = [
            model
            for model in self._profiler.models
            if self._profiler.reason(model) is not None or self._profiler.is_done(model)
        ]
        self._campaign.mark({model.name: self._profiler.reason(model) for model in over})


@dataclass(frozen=True)
class _AnalysisOptions:
    """What is said of the blocks of a network that is not measured."""

    latency_estimator: str | None = option(
        "Estimator of the latency of blocks, such as acts:FILE.", *ESTIMATOR_FLAGS, metavar=ESTIMATOR
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
    plot: Path | None = output_option("PNG file of the shares of kinds, and of the sums of operators.", rare=True)


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
    one = len(named) == 1
    pairs = zip(named, found, strict=True)
    print_lines(remarks(), (remark_on(item, remark, one=one) for item, made in pairs for remark in made.remarks))


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
