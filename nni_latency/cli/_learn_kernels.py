# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn kernels``: one kernel at a time, inside of networks, or which operators run as one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import nni_latency.datasets as datasets
import nni_latency.fusion as fusion
import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.plots as plots
import nni_latency.validation as validation
from nni_latency.cli._console import check_reached, named, print_lines, progress, remarks
from nni_latency.cli._kernel_report import fusion_report, kernel_report
from nni_latency.cli._measuring import Measuring, PlatformOptions, ProtocolOptions, StoreOptions
from nni_latency.cli._option import (
    OutputOptions,
    fields_option,
    grouped,
    names_option,
    option,
    output_option,
    parsed,
    refuse_given,
    with_fields,
)
from nni_latency.cli._outputs import outputs
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.platforms import ids_named
from nni_latency.units import format_percent, number_of

#: The sequences of operators that networks have.
ALL_PROBES = "all"

#: Visits are of eight runs: the networks are small, so that a visit takes longer to begin than to be timed.
FUSION_PROTOCOL = measurement.Protocol(n_run=8, processes=1, time_budget=180.0)

#: Fields of options that say what is measured, and how.
_MEASURING = (
    *("device", "runtime", "runtime_options", "precision", "threads", "names", "sampling_fields", "prior", "seed"),
    *("budget", "protocol_fields", "fresh", "database", "remote"),
)


def learn_fusion(
    runtime: runtimes.Runtime, protocol: measurement.Protocol, asked: str, out: Path, store: StoreOptions
) -> None:
    """Find out which operators a runtime runs as one kernel, write the rules, and print them.

    A runtime that reports its kernels is asked. With any other, small networks of two or three operators are measured
    apart and together, until it is clear of each whether it runs as one kernel.

    Parameters
    ----------
    runtime : Runtime
        The runtime.
    protocol : Protocol
        How networks are measured.
    asked : str
        Operators that follow each other, such as ``conv2d+relu,linear+gelu``, or ``all`` for those that networks have.
    out : Path
        File of the rules.
    store : StoreOptions
        Where measurements are kept.

    Raises
    ------
    UnknownNameError
        If there is no such operator.
    """
    tried = fusion.PROBES if asked == ALL_PROBES else fusion.parse_probes(asked)
    with Measuring(
        f"{number_of(len(tried), 'sequence')} of operators, apart and together", runtime, store
    ) as measuring:
        rules = fusion.detect_fusion(
            runtime, protocol, out, probes=tried, overwrite=outputs().overwrite, **measuring.how
        )
    print_report(fusion_report(rules, after=(f"Wrote {out}",)))


@dataclass(frozen=True)
class NetworkKernelOptions:
    """Learning from the kernels inside of measured networks instead of measuring."""

    data: tuple[Path, ...] = option(
        "Measure nothing: learn from kernels inside of the networks of this data set, a file of 'dataset measure', or "
        "shipped; repeat for several.",
        "--dataset",
        multiple=True,
        type=click.Path(path_type=Path),
    )
    platform: str | None = option("Platform of the data set to learn.  [default: the only one]", metavar="NAME|ID")
    families: tuple[str, ...] = names_option(
        "Family to learn from; repeat for several.  [default: all]", "--family", rare=True
    )
    jobs: int = option("Groups of kernels that are learned side by side.", type=click.IntRange(1), default=1, rare=True)


def learn_network_kernels(asked: NetworkKernelOptions, output: OutputOptions) -> tuple[kernels.KernelPredictors, Path]:
    """Fit predictors to the kernels inside of measured networks; return them and their file, which is to be written.

    The networks must have been measured in a runtime that reports the times of its nodes.

    Raises
    ------
    InvalidValueError
        If the options do not name one platform of the data.
    UnknownNameError
        If the data has no such family.
    """
    networks = _networks(asked)
    out = output.path(f"{networks[0].platform.id}.kernels.json")
    import joblib

    with joblib.parallel_config(n_jobs=asked.jobs), ExitStack() as stack:
        found = datasets.learn_network_kernels(networks, loading.load_kernel_types(), watch=_Watch(stack).tell)
    return found, out


class _Watch:
    """A bar that appears once learning begins: what cannot be learned from is told without one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def tell(self, done: int, total: int) -> None:
        if not done:
            self._bar = self._stack.enter_context(progress(remarks()))
            self._task = self._bar.add_task("learning", left="")
        self._bar.update(self._task, completed=done, total=total)


def _networks(asked: NetworkKernelOptions) -> list[datasets.NetworkEntry]:
    """Return the networks of the platform and the families that are asked for, of one input a run."""
    sets = [datasets.load_networks(None if str(path) == datasets.SHIPPED_NAME else path) for path in asked.data]
    entries = [entry for item in sets for entry in item if entry.batch_size == 1]
    if asked.families:
        known = sorted({item.family for item in entries})
        for name in asked.families:
            if name not in known:
                raise UnknownNameError.of("family of the data", name, known)
        entries = [item for item in entries if item.family in asked.families]
    known_ids = sorted({item.platform.id for item in entries})
    ids = known_ids if asked.platform is None else ids_named(asked.platform, known_ids)
    if len(ids) != 1:
        have = listed(known_ids) or "no network of one input"
        several = f"--platform {asked.platform} names {number_of(len(ids), 'platform')} of the data, which has {have}."
        raise InvalidValueError(
            f"Kernels are learned on one platform. Name one with --platform; the data has {have}."
            if asked.platform is None
            else f"{several} Name one."
        )
    return list({item.name: item for item in entries if item.platform.id == ids[0]}.values())


@dataclass(frozen=True)
class _KernelOptions:
    """Which kernels are learned."""

    names: tuple[str, ...] = names_option(
        "Kernel or group of kernels, such as conv or add_relu; repeat for several.  [default: all usual ones]",
        "--kernel",
    )
    sampling_fields: tuple[tuple[str, Any], ...] = fields_option(
        "Which configurations are measured, such as init_sample_num=100,refinement=prior.", "--sampling", rare=True
    )
    prior: Path | None = option(
        "JSON file of configurations in known networks.  [default: the one that ships]", rare=True
    )
    seed: int = option(
        "Random seed for the configurations and their order.", type=click.IntRange(0), default=0, rare=True
    )
    requirements: tuple[validation.Requirement, ...] = option(
        "End early once the score reaches this limit, such as within10=0.9, and exit with code 1 if it never does; "
        "repeat for several.",
        "--require",
        type=parsed("score=limit", lambda text: validation.Requirement.parse(text)),
        multiple=True,
        rare=True,
    )
    plot: Path | None = output_option("PNG file of predicted against measured latency, by group of kernels.", rare=True)

    def sampling(self) -> kernels.Sampling:
        """Return them as the library takes them."""
        return replace(
            with_fields(kernels.Sampling(), self.sampling_fields, "field of the sampling", fixed=("seed",)),
            seed=self.seed,
        )

    def are_met(self, scores: kernels.KernelScores) -> bool:
        """Whether there are requirements, and scores reach all of them."""
        return bool(self.requirements) and all(requirement.is_met(scores) for requirement in self.requirements)


@dataclass(frozen=True)
class _FusionOptions:
    """Finding out which operators form kernels, instead of learning kernels."""

    probes: str | None = option(
        "Only find out which operators the runtime runs as one kernel, and write the rules: all usual sequences, or "
        "those such as conv2d+relu,linear+gelu.",
        "--fusion",
        metavar="all|SEQUENCES",
        rare=True,
    )


@click.command("kernels", cls=ReportingCommand)
@grouped(
    budget={"default": None, "help": "Maximum time spent measuring.  [default: 30min; with --fusion 3min]"},
    out={"help": "JSON file of the predictors, or rules.  [default: named after the platform]"},
)
def learn_kernels(
    platform: PlatformOptions,
    wanted: _KernelOptions,
    ending: ProtocolOptions,
    inside: NetworkKernelOptions,
    fused: _FusionOptions,
    output: OutputOptions,
    store: StoreOptions,
    where: RemoteOptions,
) -> None:
    """Measure kernels on this device and learn to predict them.

    A kernel is what a runtime executes as one, such as a convolution with normalisation and activation. Kernels are
    measured with the caches as they are inside a network, at configurations like those of known networks; then at those
    from which most can be learned. With --dataset, kernels inside of networks that were measured are learned instead.

    An interrupted run can be resumed: run the same command again.
    """
    if not inside.data:
        refuse_given(("platform", "families", "jobs"), "without --dataset")
    if fused.probes is not None:
        refuse_given(("names", "sampling_fields", "prior", "requirements", "plot", "data"), "with --fusion")
        runtime = where.runtime(platform)
        out = output.path(f"fusion.{runtime.platform.id}.json")
        protocol = ending.of(FUSION_PROTOCOL, runtime.platform.threads, wanted.seed)
        learn_fusion(runtime, protocol, fused.probes, out, store)
        return
    if inside.data:
        refuse_given(_MEASURING, "with --dataset, which measures nothing")
        found, out = learn_network_kernels(inside, output)
        found.save(out)
    else:
        found, out = _measured(platform, wanted, ending, output, store, where)
    if wanted.plot:
        plots.draw_kernels(found, wanted.plot)
    wrote = " and ".join(map(str, [out, *([wanted.plot] if wanted.plot else [])]))
    print_report(kernel_report(found, after=[f"Wrote {wrote}"]))
    _print_remarks(found)
    scores = found.scores()
    assert scores is not None
    check_reached(wanted.requirements, scores)


def _measured(
    platform: PlatformOptions,
    wanted: _KernelOptions,
    ending: ProtocolOptions,
    output: OutputOptions,
    store: StoreOptions,
    where: RemoteOptions,
) -> tuple[kernels.KernelPredictors, Path]:
    """Measure kernels, learn them, and return the predictors and their file."""
    names = wanted.names or kernels.USUAL_KERNELS
    kinds = kernels.find_types(names, loading.load_kernel_types())
    prior = kernels.Prior.load(wanted.prior) if wanted.prior else None
    runtime = where.runtime(platform)
    out = output.path(f"{runtime.platform.id}.kernels.json")
    with Measuring(f"{number_of(len(kinds), 'kind')} of kernels", runtime, store) as measuring:
        found = kernels.build_predictors(
            kinds,
            runtime,
            out,
            protocol=ending.of(kernels.KERNEL_PROTOCOL, runtime.platform.threads, wanted.seed),
            sampling=wanted.sampling(),
            prior=prior,
            aim=kernels.Aim(wanted.are_met, _tell),
            overwrite=output.overwrite,
            **measuring.how,
        )
    return found, out


def _tell(standing: kernels.Standing) -> None:
    """Say how good predictions are after an iteration."""
    scores = standing.scores
    remarks().print(
        f"Iteration {standing.iteration}: {number_of(standing.kernels, 'kernel')}, each predicted by the others: "
        f"{format_percent(scores.within5)} within 5 %, {format_percent(scores.within10)} within 10 %, "
        f"RMSPE {format_percent(scores.rmspe)}{_tested(standing.tested)}"
    )


def _tested(scores: kernels.KernelScores | None) -> str:
    """Say how well kernels are predicted that are never learned from, if there are any."""
    return f"; of {scores.n} not learned from, {format_percent(scores.within10)} within 10 %" if scores else ""


def _print_remarks(found: kernels.KernelPredictors) -> None:
    if found.failures:
        first = next(iter(found.failures.values()))
        remarks().print(escape(f"Could not be measured: {named(found.failures)}. The first one: {first}"))
    print_lines(remarks(), found.remarks)
