"""The file of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from nni_latency.datasets._measuring import PlatformLatencies
from nni_latency.datasets._network_files import NetworkFile
from nni_latency.documents import DocumentFormat

NETWORKS = DocumentFormat(
    "nni_latency.networks",
    1,
    "data set",
    "a data set of networks",
    "measure one with 'nni-latency measure-networks'.",
)


def save_networks(path: str | Path, networks: Sequence[NetworkFile], measured: Sequence[PlatformLatencies]) -> Path:
    """Write latencies of networks to a file, whole or not at all.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    platforms = {
        item.platform.id: {"facts": dict(item.platform.facts), "protocol": item.protocol.as_dict()} for item in measured
    }
    return NETWORKS.save(path, {"platforms": platforms}, {"latencies": _lines(networks, measured)})


def _lines(networks: Sequence[NetworkFile], measured: Sequence[PlatformLatencies]) -> Iterator[str]:
    for item in measured:
        for network in networks:
            found = item.latencies.get(network.key)
            if network.batch_size != item.batch_size or found is None:
                continue
            content = {
                "network": network.name,
                "family": network.family,
                "batch_size": network.batch_size,
                "platform": item.platform.id,
                "value": found.value,
                "low": found.low,
                "high": found.high,
                "n_samples": found.n_samples,
                "repeatability": found.repeatability,
            }
            yield json.dumps(content)
