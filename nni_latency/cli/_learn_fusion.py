"""``nni-latency learn kernels --fusion all``: which operators a runtime runs as one kernel."""

from __future__ import annotations

from pathlib import Path

import nni_latency.fusion as fusion
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
from nni_latency.cli._fusion_report import fusion_report
from nni_latency.cli._measuring_options import StoreOptions
from nni_latency.cli._outputs import outputs
from nni_latency.cli._progress import Measuring
from nni_latency.cli._report import print_report
from nni_latency.units import number_of

#: The sequences of operators that networks have.
ALL_PROBES = "all"

#: Visits are of eight runs: the networks are small, so that a visit takes longer to begin than to be timed.
FUSION_PROTOCOL = measurement.Protocol(n_run=8, processes=1, time_budget=180.0)


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
