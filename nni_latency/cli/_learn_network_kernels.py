"""``nni-latency learn kernels --dataset``: kernels inside of measured networks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

import nni_latency.datasets as datasets
import nni_latency.kernels as kernels
import nni_latency.loading as loading
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._option import names_option, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.platforms import ids_named
from nni_latency.units import number_of


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
    families: tuple[str, ...] = names_option("Family to learn from; repeat for several.  [default: all]", "--family")
    held_out: int = option(
        "Keep one network of the data set in so many to hold the predictors to; 0 for none.",
        type=click.IntRange(0),
        default=10,
    )
    jobs: int = option("Groups of kernels that are learned side by side.", type=click.IntRange(1), default=1)


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
        found = datasets.learn_network_kernels(
            networks, loading.load_kernel_types(), asked.held_out, _Watch(stack).tell
        )
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
                raise UnknownNameError(UnknownNameError.of("family of the data", name, known))
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
