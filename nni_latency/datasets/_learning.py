"""Data sets as predictors of graphs learn from them."""

from __future__ import annotations

from pathlib import Path

from nni_latency.datasets._network_set import load_networks
from nni_latency.graphs import MeasuredNetwork, read_measured

#: What stands for the data set that ships.
SHIPPED_NAME = "shipped"


def measured_networks(source: str | Path) -> list[MeasuredNetwork]:
    """Read networks to learn from.

    Parameters
    ----------
    source : str or Path
        A data set of `nni-latency dataset measure`; a folder in NNLQP's layout; or ``shipped`` for the one that ships.

    Returns
    -------
    list of MeasuredNetwork

    Raises
    ------
    FileFormatError
        As for `load_networks` and `nni_latency.graphs.read_measured`.
    InvalidValueError
        If none ships with this installation.
    """
    if Path(source).is_dir():
        return read_measured(source)
    networks = load_networks(None if str(source) == SHIPPED_NAME else source)
    return [
        MeasuredNetwork(item.name, item.graph, item.latency, item.platform, item.family, item.parts)
        for item in networks
    ]
