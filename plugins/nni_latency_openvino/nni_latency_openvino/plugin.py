# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_runtimes(register: Register) -> None:
    """Register the runtime."""
    register("openvino", "nni_latency_openvino:OpenVino", on_devices=True)
