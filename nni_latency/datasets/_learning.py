# SPDX-License-Identifier: Apache-2.0
"""Data sets as training data of graph predictors."""

from __future__ import annotations

from pathlib import Path

from nni_latency.datasets._network_set import load_networks
from nni_latency.graphs import MeasuredNetwork, read_measured

#: Name of the shipped data set.
SHIPPED_NAME = "shipped"


def measured_networks(source: str | Path) -> list[MeasuredNetwork]:
    """Read networks for training.

    Parameters
    ----------
    source : str or Path
        A data set of `nni-latency dataset measure`, a folder in NNLQP's layout, or ``shipped`` for the shipped data
        set.

    Returns
    -------
    list of MeasuredNetwork

    Raises
    ------
    FileFormatError
        As for `load_networks` and `nni_latency.graphs.read_measured`.
    InvalidValueError
        If this installation has no shipped data set.
    """
    if Path(source).is_dir():
        return read_measured(source)
    networks = load_networks(None if str(source) == SHIPPED_NAME else source)
    return [
        MeasuredNetwork(item.name, item.graph, item.latency, item.platform, item.family, item.parts)
        for item in networks
    ]
