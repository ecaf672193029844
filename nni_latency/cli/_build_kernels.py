"""``nni-latency build-kernels``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.plots as plots
import nni_latency.validation as validation
from nni_latency.cli._console import named, print_lines, remarks
from nni_latency.cli._kernel_report import kernel_report
from nni_latency.cli._measuring_options import PlatformOptions, StoreOptions
from nni_latency.cli._option import DURATION, grouped, option, output_option, parsed
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._progress import Measuring
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.units import format_percent, number_of


@dataclass(frozen=True)
class _SamplingOptions:
    """Which kernels are measured."""

    names: str | None = option(
        "Kernels or groups of kernels, separated by commas, such as conv,add_relu.  [default: all usual ones]",
        "--kernels",
        metavar="NAME[,NAME...]",
    )
    init_sample_num: int = option(
        "Configurations of each kernel in the beginning.", type=click.IntRange(10), default=200
    )
    finegrained_sample_num: int = option(
        "Configurations added for each whose error is large.", type=click.IntRange(1), default=10
    )
    iteration: int | None = option(
        "How often configurations are added.  [default: until the budget is spent]", type=click.IntRange(0)
    )
    error_threshold: float = option(
        "An error is large from here on, as a ratio.",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.1,
    )
    refinement: Literal["uncertain", "finegrained", "prior", "random"] = option(
        "How configurations are added: where a model is uncertain, around large errors, from networks, or anywhere.",
        default="uncertain",
    )
    test_sample_num: int = option(
        "Configurations of each kernel that are measured in the same rounds and never learned from, to hold the "
        "predictors to.",
        type=click.IntRange(0),
        default=0,
    )
    prior: Path | None = option("JSON file of configurations in known networks.  [default: the one that ships]")
    seed: int = option("Random seed for the configurations and their order.", type=click.IntRange(0), default=0)

    def sampling(self) -> kernels.Sampling:
        """Return them as the library takes them."""
        return kernels.Sampling(
            self.init_sample_num,
            self.finegrained_sample_num,
            self.iteration,
            self.error_threshold,
            self.refinement,
            self.seed,
            self.test_sample_num,
        )


@dataclass(frozen=True)
class _EndOptions:
    """When measuring ends, and what must be reached."""

    budget: float = option("Maximum time spent measuring, such as 30s or 5min.", type=DURATION, default="30min")
    half_width: float = option(
        "Visit a kernel no more once the half-width of its interval is at most this share of its value.",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.05,
    )
    timeout: float = option("Time limit per kernel; a slower one is recorded as failed.", type=DURATION, default="60s")
    requirements: tuple[validation.Requirement, ...] = option(
        "End early once the score reaches this limit, such as within10=0.9, and exit with code 1 if it never does; "
        "repeat for several.",
        "--require",
        type=parsed("score=limit", lambda text: validation.Requirement.parse(text)),
        multiple=True,
    )
    plot: Path | None = output_option("PNG file of predicted against measured latency, by group of kernels.")

    def protocol(self, threads: int, seed: int) -> measurement.Protocol:
        """Return the protocol that ends so."""
        return measurement.Protocol(
            n_run=3,
            max_measure_execution_time=0.5,
            time_budget=self.budget,
            half_width=self.half_width,
            processes=1,
            timeout=self.timeout,
            threads=threads,
            seed=seed,
        )

    def are_met(self, scores: kernels.KernelScores) -> bool:
        """Whether there are requirements, and scores reach all of them."""
        return bool(self.requirements) and all(requirement.is_met(scores) for requirement in self.requirements)


@click.command("build-kernels", cls=ReportingCommand)
@grouped(out={"help": "JSON file of the predictors.  [default: named after the platform]"})
def command(
    platform: PlatformOptions,
    wanted: _SamplingOptions,
    ending: _EndOptions,
    output: OutputOptions,
    store: StoreOptions,
    where: RemoteOptions,
) -> None:
    """Measure kernels on this device and learn to predict them.

    A kernel is what a runtime executes as one, such as a convolution with normalisation and activation. Kernels are
    measured with the caches as they are inside a network, at configurations like those of known networks; then at those
    from which most can be learned.

    An interrupted run can be resumed: run the same command again.
    """
    types = loading.load_kernel_types()
    names = [name.strip() for name in (wanted.names or ",".join(kernels.USUAL_KERNELS)).split(",") if name.strip()]
    kinds = kernels.find_types(names, types)
    prior = kernels.Prior.load(wanted.prior) if wanted.prior else None
    runtime = where.runtime(platform)
    out = output.path(f"{runtime.platform.id}.kernels.json")
    aim = kernels.Aim(ending.are_met, _tell)
    with Measuring(f"{number_of(len(kinds), 'kind')} of kernels", runtime, store) as measuring:
        found = kernels.build_predictors(
            kinds,
            runtime,
            out,
            protocol=ending.protocol(runtime.platform.threads, wanted.seed),
            sampling=wanted.sampling(),
            prior=prior,
            aim=aim,
            overwrite=output.overwrite,
            **measuring.how,
        )
    if ending.plot:
        plots.draw_kernels(found, ending.plot)
    wrote = " and ".join(map(str, [out, *([ending.plot] if ending.plot else [])]))
    print_report(kernel_report(found, after=[f"Wrote {wrote}"]))
    _print_remarks(found)
    _check(found, ending.requirements)


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


def _check(found: kernels.KernelPredictors, requirements: tuple[validation.Requirement, ...]) -> None:
    scores = found.scores()
    assert scores is not None
    missed = [requirement for requirement in requirements if not requirement.is_met(scores)]
    for requirement in missed:
        remarks().print(f"Not reached: {requirement}; it is {getattr(scores, requirement.name):.4g}.")
    if missed:
        raise click.exceptions.Exit(1)
