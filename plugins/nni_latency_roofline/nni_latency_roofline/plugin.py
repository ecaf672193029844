# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_estimators(register: Register) -> None:
    """Register the estimator ``roofline:PEAK_GFLOPS,BANDWIDTH_GB_S[,OVERHEAD_US]``."""
    register("roofline", "nni_latency_roofline:parse_roofline")
