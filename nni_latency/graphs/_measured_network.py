# SPDX-License-Identifier: Apache-2.0
"""`MeasuredNetwork`: a graph with its latency on one platform, the training data of graph predictors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, listed
from nni_latency.graphs._network_latencies import NetworkLatency, latency_conflicts, read_nnlqp
from nni_latency.operators import Graph, read_onnx
from nni_latency.platforms import Platform

#: Maximum number of conflicting networks that a message names.
_NAMED = 5


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network with its latency on a platform. Immutable.

    Parameters
    ----------
    name : str
        Identifies the network and its batch size.
    graph : Graph
        Its operators.
    latency : float
        Time of a run [s].
    platform : Platform
        Platform of the measurement.
    family : str, default=""
        Family of the network; families are held out as a whole.
    parts : tuple of (tuple of int, float), default=()
        Operators that were executed as one kernel, by their indices in the graph, and the time of the kernel [s].
    """

    name: str
    graph: Graph
    latency: float
    platform: Platform
    family: str = ""
    parts: tuple[tuple[tuple[int, ...], float], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency > 0):
            raise InvalidValueError(
                f"The 'latency' of {self.name!r} must be a positive number of seconds. Got {self.latency}."
            )
        if not self.graph.operators:
            raise InvalidValueError(f"The network {self.name!r} has no operators.")


def check_networks(networks: Iterable[MeasuredNetwork]) -> list[MeasuredNetwork]:
    """Remove repeated measurements: each network is kept once per platform, with the first of times that agree.

    Raises
    ------
    InvalidValueError
        If there are no networks, or two times of one network on one platform differ by more than a tenth.
    """
    given = list(networks)
    if not given:
        raise InvalidValueError("There is no measured network to learn from.")
    conflicts = latency_conflicts(given)
    if conflicts:
        raise InvalidValueError(
            f"Two latencies of one network disagree: {listed(conflicts, most=_NAMED, separator='; ')}. "
            "Keep the right one of each."
        )
    found: dict[tuple[str, str], MeasuredNetwork] = {}
    for item in given:
        found.setdefault((item.name, item.platform.id), item)
    return list(found.values())


def read_measured(folder: str | Path) -> list[MeasuredNetwork]:
    """Read a data set in NNLQP's layout as training data.

    Parameters
    ----------
    folder : str or Path
        Folder of ``gt.txt`` and the ONNX files; see `read_nnlqp`. The platform of a line is an id such as
        ``epyc-7763.torch.fp32.t1``, or the name of a device.

    Returns
    -------
    list of MeasuredNetwork

    Raises
    ------
    FileFormatError
        As for `read_nnlqp`, and if ONNX files cannot be read; the message names all of them.
    MissingDependencyError
        If the package onnx is not installed.
    """
    graphs: dict[tuple[str, int], Graph] = {}
    broken: dict[str, str] = {}
    found = []
    for item in read_nnlqp(folder):
        key = item.onnx_path, item.batch_size
        if item.onnx_path not in broken and key not in graphs:
            try:
                graphs[key] = read_onnx(Path(folder) / item.onnx_path, item.batch_size)
            except InvalidValueError as error:
                broken[item.onnx_path] = str(error)
        if key in graphs:
            found.append(_measured(item, graphs[key]))
    if broken:
        raise FileFormatError(f"Networks of {str(folder)!r} cannot be read. {listed(broken.values(), separator=' ')}")
    return found


def _measured(item: NetworkLatency, graph: Graph) -> MeasuredNetwork:
    try:
        platform = Platform.parse(item.platform.lower())
    except LatencyError as error:
        raise FileFormatError(f"The network {item.graph_id!r}: {error}") from error
    name = f"{item.graph_id}@{item.batch_size}"
    return MeasuredNetwork(name, graph, item.latency, platform, item.family)
