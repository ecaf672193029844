"""``nni-latency detect-fusion``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import nni_latency.fusion as fusion
import nni_latency.measurement as measurement
from nni_latency.cli._fusion_report import fusion_report
from nni_latency.cli._measuring_options import PlatformOptions, StoreOptions, make_runtime
from nni_latency.cli._option import DURATION, grouped, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._progress import Measuring
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.units import number_of

if TYPE_CHECKING:
    from nni_latency.fusion import Probe

_DEFAULTS = measurement.Protocol()

#: Runs of every visit: the networks are small, so that a visit takes longer to begin than to be timed.
_RUNS = 8


@dataclass(frozen=True)
class _ProbeOptions:
    """What is tried, and for how long."""

    probes: str | None = option(
        "Operators that follow each other, such as conv2d+relu,linear+gelu.  [default: those that networks have]"
    )
    budget: float = option(
        "Maximum time spent measuring and loading, such as 30s or 5min.", type=DURATION, default="3min"
    )
    rounds: int = option("Maximum number of rounds.", type=click.IntRange(1), default=_DEFAULTS.rounds)
    timeout: float = option("Time limit per network.", type=DURATION, default=f"{_DEFAULTS.timeout:g}s")
    seed: int = option("Random seed for the order of the networks.", type=click.IntRange(0), default=0)

    def tried(self) -> tuple[Probe, ...]:
        """Return what is tried."""
        return fusion.PROBES if self.probes is None else fusion.parse_probes(self.probes)

    def protocol(self, threads: int) -> measurement.Protocol:
        """Return how it is measured."""
        return measurement.Protocol(
            rounds=self.rounds,
            time_budget=self.budget,
            timeout=self.timeout,
            threads=threads,
            seed=self.seed,
            n_run=_RUNS,
            processes=1,
        )


@click.command("detect-fusion", cls=ReportingCommand)
@grouped(out={"help": "JSON file of the rules.  [default: named after the platform]"})
def command(platform: PlatformOptions, probes: _ProbeOptions, output: OutputOptions, store: StoreOptions) -> None:
    """Find out which operators a runtime runs as one kernel, and write the rules.

    A runtime that tells is asked. With any other, small networks of two or three operators are measured apart and
    together, until it is clear of each whether it runs as one kernel.

    An interrupted run can be resumed: run the same command again.
    """
    runtime, tried = make_runtime(platform), probes.tried()
    out = output.path(f"fusion.{runtime.platform.id}.json")
    with Measuring(
        f"{number_of(len(tried), 'sequence')} of operators, apart and together", runtime, store
    ) as measuring:
        rules = fusion.detect_fusion(
            runtime,
            probes.protocol(platform.threads),
            out,
            probes=tried,
            overwrite=output.overwrite,
            **measuring.how,
        )
    print_report(fusion_report(rules, after=(f"Wrote {out}",)))
