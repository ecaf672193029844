"""``nni-latency profile-operators``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.markup import escape

import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.plots as plots
import nni_latency.profiling as profiling
from nni_latency.cli._console import print_lines, remarks
from nni_latency.cli._measuring_options import EndingOptions, MeterOptions, PlatformOptions, StoreOptions, make_runtime
from nni_latency.cli._model import UserCodeOptions, inputs_option
from nni_latency.cli._option import NAMES, grouped, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._profile_report import By, profile_report
from nni_latency.cli._profiled_models import find_models
from nni_latency.cli._progress import Measuring
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError
from nni_latency.units import number_of


@dataclass(frozen=True)
class _ModelOptions:
    """Which models are profiled."""

    models: tuple[str, ...] | None = option(
        "Models, separated by commas: families such as resnet18 or vit, networks of torchvision, file.py:Class or "
        "package.module:function.",
        type=NAMES,
    )
    campaign: Path | None = option("File that lists a model a line; those that are done are marked in it.")
    inputs: tuple[str, ...] = inputs_option()
    batch_size: int = option("Inputs of a run.", type=click.IntRange(1), default=1)
    target: float = option(
        "Share of every model's time, and energy, that is to be attributed to operators.",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.9,
    )


@dataclass(frozen=True)
class _ReportOptions:
    """What is shown."""

    profile: tuple[Path, ...] = option(
        "Report on this profile instead of measuring; repeat for several platforms.", "--profile", multiple=True
    )
    by: By = option("What a row of the report is.", default="kind")
    plot: Path | None = output_option("PNG file of the shares of kinds, and of the sums of operators.")


@click.command("profile-operators", cls=ReportingCommand)
@grouped(
    budget={"default": "10min"},
    half_width={
        "default": 0.05,
        "help": "Visit what is known no more: once the half-width of its interval is at most this share of its value.",
    },
    rounds={"help": "Maximum number of visits of a model or an operator; six are enough for all."},
    out={"help": "JSON file of the profile.  [default: operators.<platform>.b<batch size>.json]"},
)
def command(
    asked: _ModelOptions,
    platform: PlatformOptions,
    ending: EndingOptions,
    metered: MeterOptions,
    shown: _ReportOptions,
    code: UserCodeOptions,
    output: OutputOptions,
    store: StoreOptions,
) -> None:
    """Measure the operators of several models, in them and alone, and say which kinds of operators count.

    All operators are timed inside the models. Kinds are added, the costliest first, until the target share of every
    model's time is attributed, and of its energy where --meter is given. Operators of these kinds are measured alone as
    well, on one input again and again and on inputs from memory, and both sums are compared with the whole models.

    An interrupted run can be resumed: run the same command again, with more models if you like.
    """
    if shown.profile:
        _check_alone(asked)
        profiles = [profiling.OperatorProfile.load(path) for path in shown.profile]
        print_report(profile_report(profiles, shown.by, _draw(profiles, shown.plot)))
        return
    campaign = None if asked.campaign is None else profiling.CampaignFile(asked.campaign)
    listed = _listed(asked, campaign)
    runtime = make_runtime(platform)
    profiling.check_profiles(runtime)
    meters = metered.meters("latency", platform.device)
    out = output.path(f"operators.{runtime.platform.id}.b{asked.batch_size}.json")
    protocol = replace(
        profiling.PROFILE_PROTOCOL,
        rounds=ending.rounds,
        time_budget=ending.budget,
        half_width=ending.half_width,
        threads=platform.threads,
    )
    profiler = profiling.OperatorProfiler(
        _made(listed, asked, code.timeout),
        runtime,
        batch_size=asked.batch_size,
        protocol=metered.protocol(protocol),
        target=asked.target,
    )
    profile = _measure(profiler, runtime, store, meters, campaign)
    profile.save(out)
    wrote = [f"Wrote {out}", *_draw([profile], shown.plot)]
    print_report(profile_report([profile], shown.by, wrote))
    print_lines(remarks(), [*_failures(profile), *profile.remarks])


def _check_alone(asked: _ModelOptions) -> None:
    if asked.models or asked.campaign:
        raise InvalidValueError("--profile reports on what was measured: omit --models and --campaign.")


def _listed(asked: _ModelOptions, campaign: profiling.CampaignFile | None) -> list[profiling.ListedModel]:
    """Return the models that are named, those of the file last."""
    named = [profiling.ListedModel(name) for name in asked.models or ()]
    known = {item.model for item in named}
    named += [item for item in (campaign.models if campaign else ()) if item.model not in known]
    if not named:
        raise InvalidValueError(
            "Name the models to profile, such as --models resnet18,mobilenetv2, or a file of them: --campaign FILE."
        )
    return named


def _made(
    listed: Sequence[profiling.ListedModel], asked: _ModelOptions, timeout: float
) -> list[profiling.ProfiledModel]:
    """Make and trace the models; it takes a second each."""
    made: list[profiling.ProfiledModel] = []
    with remarks().status("Tracing models") as status:
        for model in find_models(listed, asked.batch_size, asked.inputs, timeout):
            made.append(model)
            status.update(f"Traced {len(made)} of {number_of(len(listed), 'model')}")
    return made


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


def _draw(profiles: Sequence[profiling.OperatorProfile], out: Path | None) -> list[str]:
    """Draw profiles if that was asked for, and say where."""
    return [] if out is None else [f"Wrote {plots.draw_operator_profile(profiles, out)}"]


def _failures(profile: profiling.OperatorProfile) -> list[str]:
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
