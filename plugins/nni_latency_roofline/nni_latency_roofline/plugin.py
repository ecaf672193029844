# SPDX-License-Identifier: Apache-2.0
"""What the entry point names: the hooks of this plugin."""

from __future__ import annotations

from nni_latency import hookimpl
from nni_latency.plugins import Register
from nni_latency_roofline._roofline import parse_roofline


@hookimpl
def register_estimators(register: Register) -> None:
    """Register the estimator ``roofline:PEAK_GFLOPS,BANDWIDTH_GB_S[,OVERHEAD_US]``."""
    register("roofline", parse_roofline)
