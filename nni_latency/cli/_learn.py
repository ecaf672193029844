# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn``: a command for each kind of predictor."""

from __future__ import annotations

import click

from nni_latency.cli._learn_device import learn_device
from nni_latency.cli._learn_energy import learn_energy
from nni_latency.cli._learn_graph import learn_graph
from nni_latency.cli._learn_kernels import learn_kernels
from nni_latency.cli._learn_transfer import learn_transfer


@click.group("learn")
def command() -> None:
    """Learn to predict what has not been measured."""


for item in (learn_device, learn_kernels, learn_graph, learn_energy, learn_transfer):
    command.add_command(item)
