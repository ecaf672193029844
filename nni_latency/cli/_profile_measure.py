"""How ``nni-latency profile --measure`` measures the operators of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.markup import escape

import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.profiling as profiling
from nni_latency.cli._console import remarks
from nni_latency.cli._measuring_options import (
    MeterOptions,
    PlatformOptions,
    ProtocolOptions,
    StoreOptions,
    make_runtime,
)
from nni_latency.cli._network import NamedNetwork, NetworkOptions, limited, make, parse_network, parse_networks
from nni_latency.cli._option import option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._progress import Measuring
from nni_latency.errors import InvalidValueError
from nni_latency.units import number_of

#: A network, and how it is made: in a campaign file each may have inputs of its own.
Listed = tuple[NamedNetwork, NetworkOptions]


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
        protocol=metered.protocol(protocol),
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
