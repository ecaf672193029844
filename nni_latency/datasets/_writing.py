# SPDX-License-Identifier: Apache-2.0
"""Writing of data sets from measurements, and import from and export to NNLQP's layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from nni_latency.datasets._archive import Part, onnx_member
from nni_latency.datasets._content import Content
from nni_latency.datasets._measuring import PlatformLatencies
from nni_latency.datasets._network_files import NetworkFile
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, listed
from nni_latency.files import write_atomically
from nni_latency.graphs import NetworkLatency, read_nnlqp, write_nnlqp
from nni_latency.imports import require
from nni_latency.measurement import CallMap, NetworkSummary
from nni_latency.operators import Graph, without_weights
from nni_latency.platforms import Platform

_CALL = re.compile(r"\bcall(\d+)\b")

#: Operators with shorter times ran inside another one [s].
_NOTHING = 5e-8


def save_networks(
    path: str | Path, networks: Sequence[NetworkFile], measured: Sequence[PlatformLatencies]
) -> NetworkSet:
    """Write measurements as a data set atomically.

    Parameters
    ----------
    path : str or Path
        Path of the file.
    networks : sequence of NetworkFile
        Measured networks of all batch sizes.
    measured : sequence of PlatformLatencies
        Their latencies.

    Returns
    -------
    NetworkSet
        The written data set. A network whose graph cannot be read is among its failures.

    Raises
    ------
    InvalidValueError
        If no network was measured, or no graph can be read.
    OutputError
        If the file cannot be written.
    """
    content = Content()
    for number, item in enumerate(measured):
        failures = {network.name: item.failures[network.key] for network in networks if network.key in item.failures}
        for network in networks:
            if network.batch_size != item.batch_size or network.key not in item.latencies:
                continue
            name = f"{network.name}-b{network.batch_size}"
            try:
                graph = _graph_of(content, network, name)
            except InvalidValueError as error:
                failures[network.name] = f"its graph cannot be read: {str(error).rstrip('.')}"
                continue
            divide = kernels_of_nodes if item.sees_nodes else kernels_of_calls
            parts = divide(graph, item.parts.get(network.key, ()))
            content.add(number, name, item.platform, item.latencies[network.key], parts)
        content.runs.append(
            {
                **_run(item.platform, item.batch_size),
                "protocol": item.protocol.as_dict(),
                "campaign": item.campaign,
                "duration": item.duration,
                "conditions": dict(item.conditions),
                "failures": failures,
                "anchors": dict(item.anchors),
            }
        )
    if not content.entries:
        reason = next((reason for run in content.runs for reason in run["failures"].values()), "none was measured")
        raise InvalidValueError(f"There is no network for the data set: {reason}.")
    return content.save(path)


def _graph_of(content: Content, network: NetworkFile, name: str, stage: str = "") -> Graph:
    """Return the graph of a network; add the network on the first call."""
    if name not in content.networks:
        about = {"family": network.family, "batch_size": network.batch_size, "seed": network.seed, "stage": stage}
        content.take(name, network.graph_key, network.graph, _light(network.path), **about)
    return content.graphs[content.networks[name]["graph"]]


def _run(platform: Platform, batch_size: int) -> dict[str, Any]:
    fields = {name: getattr(platform, name) for name in ("id", "device", "runtime", "precision", "threads")}
    return {
        "platform": {**fields, "facts": dict(platform.facts)},
        "batch_size": batch_size,
        "protocol": {},
        "campaign": "",
        "duration": 0.0,
        "conditions": {},
        "failures": {},
    }


def _light(path: Path) -> bytes:
    onnx = require("onnx", "Reading ONNX", "onnx")
    content: bytes = without_weights(onnx.load(str(path), load_external_data=False)).SerializeToString()
    return content


def import_nnlqp(folder: str | Path, path: str | Path) -> NetworkSet:
    """Convert a data set in NNLQP's layout.

    Parameters
    ----------
    folder : str or Path
        Folder of ``gt.txt`` and the ONNX files; see `nni_latency.graphs.read_nnlqp`. The platform of a line is an id
        such as ``epyc-7763.torch.fp32.t1``, or the name of a device.
    path : str or Path
        Path of the file.

    Returns
    -------
    NetworkSet
        The written data set.

    Raises
    ------
    FileFormatError
        If lines are malformed, two latencies of one network disagree, or ONNX files cannot be read; all are listed.
    OutputError
        If the file cannot be written.
    """
    content, broken = Content(), dict[str, str]()
    runs: dict[tuple[str, int], int] = {}
    for line in read_nnlqp(folder):
        network = NetworkFile(line.graph_id, Path(folder) / line.onnx_path, line.family, batch_size=line.batch_size)
        name = f"{line.graph_id}-b{line.batch_size}"
        try:
            platform = Platform.parse(line.platform.lower())
            _graph_of(content, network, name, line.stage)
        except LatencyError as error:
            broken[name] = str(error)
            continue
        run = runs.setdefault((platform.id, line.batch_size), len(runs))
        if run == len(content.runs):
            content.runs.append(_run(platform, line.batch_size))
        content.add(run, name, platform, NetworkSummary(line.latency, line.latency, line.latency), ())
    if broken:
        raise FileFormatError(f"Networks of {str(folder)!r} cannot be read. {listed(broken.values(), separator=' ')}")
    return content.save(path)


def export_nnlqp(networks: NetworkSet, folder: str | Path) -> Path:
    """Write a data set in NNLQP's layout: ``gt.txt``, and the folder ``onnx`` with files without weights.

    Parameters
    ----------
    networks : NetworkSet
        Data set to write. The layout does not support intervals and kernels.
    folder : str or Path
        Folder to create.

    Returns
    -------
    Path
        The file ``gt.txt``.

    Raises
    ------
    FileFormatError
        If the data set lacks the ONNX file of a network.
    OutputError
        If a file cannot be written.
    """
    target = Path(folder)
    for name in dict.fromkeys(entry.name for entry in networks):
        write_atomically(target / onnx_member(name), networks.onnx(name))
    return write_nnlqp(_lines(networks), target)


def _lines(networks: Iterable[NetworkEntry]) -> list[NetworkLatency]:
    return [
        NetworkLatency(
            entry.name.removesuffix(f"-b{entry.batch_size}"),
            onnx_member(entry.name),
            entry.batch_size,
            entry.value,
            entry.family or "unknown",
            entry.platform.id,
            entry.stage,
        )
        for entry in networks
    ]


def kernels_of_nodes(graph: Graph, times: Sequence[float]) -> tuple[Part, ...]:
    """Divide a graph into kernels by the time of every node of its ONNX file.

    A runtime attributes the time of fused operators to the one with the most work. An operator without time belongs to
    the last kernel whose result it takes, or else to the kernel of one of its consumers.

    Parameters
    ----------
    graph : Graph
        Graph as returned by `nni_latency.operators.read_onnx`.
    times : sequence of float
        Time of each node of the file [s].

    Returns
    -------
    tuple of (tuple of int, float)
        Indices of the operators, each once, and the time of the kernel [s]; empty if the times do not match the file.
    """
    if len(times) != graph.n_calls or not graph.operators:
        return ()
    (own,) = CallMap.of(graph).times([times]).tolist()
    kernel: list[int | None] = [number if seconds > _NOTHING else None for number, seconds in enumerate(own)]
    for number, item in enumerate(graph.operators):
        if kernel[number] is None:
            # Of several kernels, the one computed last: all others are ready by then.
            kernel[number] = max(
                (main for source in item.sources if (main := kernel[source]) is not None), default=None
            )
    for source, number in reversed(graph.edges):
        if kernel[source] is None:
            kernel[source] = kernel[number]
    return _joined(kernel, own)


def kernels_of_calls(graph: Graph, times: Sequence[float]) -> tuple[Part, ...]:
    """Divide a graph into kernels by the time of every call of a torch function.

    The exporter names nodes after their calls. Calls without a node, such as a normalisation folded into the preceding
    weights or a view, belong to the call before.

    Parameters
    ----------
    graph : Graph
        Graph of a file written by `nni_latency.operators.export_onnx`.
    times : sequence of float
        Time of each call [s].

    Returns
    -------
    tuple of (tuple of int, float)
        As for `kernels_of_nodes`; empty if the nodes have other names.
    """
    calls = _calls(graph)
    if not calls or max(calls) >= len(times):
        return ()
    begins = sorted(set(calls))
    bounds = [0, *begins[1:], len(times)]
    seconds = {call: sum(times[low:high]) for call, (low, high) in zip(begins, pairwise(bounds), strict=True)}
    members: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        members.setdefault(call, []).append(number)
    return tuple((tuple(numbers), seconds[call]) for call, numbers in members.items())


def _calls(graph: Graph) -> list[int]:
    """Return the call of every operator: from its name, or else the call of its input or of the operator before."""
    calls: list[int] = []
    found = [_CALL.search(item.name) for item in graph.operators]
    if not any(found):
        return []
    for item, match in zip(graph.operators, found, strict=True):
        near = [calls[source] for source in item.sources] or calls[-1:]
        calls.append(int(match[1]) if match else max(near, default=0))
    return calls


def _joined(kernel: Sequence[int | None], own: Sequence[float]) -> tuple[Part, ...]:
    members: dict[int, list[int]] = {}
    for number, main in enumerate(kernel):
        members.setdefault(number if main is None else main, []).append(number)
    return tuple((tuple(numbers), own[main]) for main, numbers in members.items())
