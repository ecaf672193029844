"""``nni-latency fit kernels``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

import nni_latency.datasets as datasets
import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.plots as plots
from nni_latency.cli._console import print_lines, progress, remarks
from nni_latency.cli._kernel_report import kernel_report
from nni_latency.cli._option import NAMES, grouped, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.platforms import ids_named
from nni_latency.units import number_of


@dataclass(frozen=True)
class _KernelOptions:
    """What is learned from, and how."""

    data: tuple[Path, ...] = option(
        "Data set: a file of dataset measure, or shipped; repeat for several.",
        "--data",
        multiple=True,
        required=True,
        type=click.Path(path_type=Path),
    )
    platform: str | None = option("Platform of the data to learn.  [default: the only one]", metavar="NAME|ID")
    families: tuple[str, ...] | None = option(
        "Families of networks to learn from, separated by commas.  [default: all]",
        type=NAMES,
        metavar="NAME[,NAME...]",
    )
    held_out: int = option(
        "Keep one network in so many to hold the predictors to; 0 for none.",
        type=click.IntRange(0),
        default=10,
    )
    jobs: int = option("Groups of kernels that are learned side by side.", type=click.IntRange(1), default=1)
    plot: Path | None = output_option("PNG file of predicted against measured latency, by group of kernels.")


@click.command("kernels", cls=ReportingCommand)
@grouped(out={"help": "JSON file of the predictors.  [default: named after the platform]"})
def fit_kernels(fit: _KernelOptions, output: OutputOptions) -> None:
    """Fit predictors of kernels to the kernels inside of measured networks.

    The networks are those of dataset measure, in a runtime that tells what its nodes take. Networks of mixed blocks
    have kernels of most kinds and sizes: 'nni-latency dataset measure --family mixed' measures them.
    """
    networks = _networks(fit)
    out = output.path(f"{networks[0].platform.id}.kernels.json")
    import joblib

    with joblib.parallel_config(n_jobs=fit.jobs), ExitStack() as stack:
        found = datasets.learn_network_kernels(networks, loading.load_kernel_types(), fit.held_out, _Watch(stack).tell)
    found.save(out)
    if fit.plot:
        plots.draw_kernels(found, fit.plot)
    _report(found, [out, *([fit.plot] if fit.plot else [])])


class _Watch:
    """A bar that appears once learning begins: what cannot be learned from is told without one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def tell(self, done: int, total: int) -> None:
        if not done:
            self._bar = self._stack.enter_context(progress(remarks()))
            self._task = self._bar.add_task("learning", left="")
        self._bar.update(self._task, completed=done, total=total)


def _report(found: kernels.KernelPredictors, wrote: list[Path]) -> None:
    print_report(kernel_report(found, after=[f"Wrote {' and '.join(map(str, wrote))}"]))
    print_lines(remarks(), found.remarks)


def _networks(fit: _KernelOptions) -> list[datasets.NetworkEntry]:
    """Return the networks of the platform and the families that are asked for, of one input a run."""
    sets = [datasets.load_networks(None if str(path) == datasets.SHIPPED_NAME else path) for path in fit.data]
    entries = [entry for item in sets for entry in item if entry.batch_size == 1]
    if fit.families is not None:
        known = sorted({item.family for item in entries})
        for name in fit.families:
            if name not in known:
                raise UnknownNameError(UnknownNameError.of("family of the data", name, known))
        entries = [item for item in entries if item.family in fit.families]
    known_ids = sorted({item.platform.id for item in entries})
    ids = known_ids if fit.platform is None else ids_named(fit.platform, known_ids)
    if len(ids) != 1:
        have = listed(known_ids) or "no network of one input"
        several = f"--platform {fit.platform} names {number_of(len(ids), 'platform')} of the data, which has {have}."
        raise InvalidValueError(
            f"Kernels are learned on one platform. Name one with --platform; the data has {have}."
            if fit.platform is None
            else f"{several} Name one."
        )
    return list({item.name: item for item in entries if item.platform.id == ids[0]}.values())
