# SPDX-License-Identifier: Apache-2.0
"""Writing of data sets from measurements, and import from and export to NNLQP's layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nni_latency.datasets._archive import onnx_member
from nni_latency.datasets._content import Content
from nni_latency.datasets._measuring import PlatformLatencies
from nni_latency.datasets._network_files import NetworkFile
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, listed
from nni_latency.files import write_atomically
from nni_latency.graphs import NetworkLatency, read_nnlqp, write_nnlqp
from nni_latency.imports import require
from nni_latency.measurement import NetworkSummary
from nni_latency.operators import Graph, without_weights
from nni_latency.platforms import Platform


def save_networks(
    path: str | Path, networks: Sequence[NetworkFile], measured: Sequence[PlatformLatencies]
) -> NetworkSet:
    """Write measurements as a data set atomically; an existing file is replaced.

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
            try:
                graph = _graph_of(content, network)
            except InvalidValueError as error:
                failures[network.name] = f"its graph cannot be read: {str(error).rstrip('.')}"
                continue
            parts = item.kernels_of(network, graph)
            content.add(number, network.batched_name, item.platform, item.latencies[network.key], parts)
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


def _graph_of(content: Content, network: NetworkFile, stage: str = "") -> Graph:
    """Return the graph of a network; add the network on the first call."""
    name = network.batched_name
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
        name = network.batched_name
        try:
            platform = Platform.parse(line.platform.lower())
            _graph_of(content, network, line.stage)
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
    InvalidValueError
        If the layout does not support a name; nothing is written then.
    OutputError
        If a file cannot be written.
    """
    target = Path(folder)
    lines = _lines(networks)  # refuses names that would lead out of the folder
    for name in dict.fromkeys(entry.name for entry in networks):
        write_atomically(target / onnx_member(name), networks.onnx(name))
    return write_nnlqp(lines, target)


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
