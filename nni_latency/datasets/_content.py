"""What becomes the file of a data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nni_latency.datasets._archive import Part, write_archive
from nni_latency.datasets._card import make_card
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet, load_networks
from nni_latency.measurement import NetworkSummary
from nni_latency.operators import Graph
from nni_latency.platforms import Platform

_SUMMARY = ("value", "low", "high", "n_samples", "n_visits", "repeatability")


@dataclass
class Content:
    """What becomes the file of a data set."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    networks: dict[str, dict[str, Any]] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    onnx: dict[str, bytes] = field(default_factory=dict)
    latencies: list[dict[str, Any]] = field(default_factory=list)
    entries: list[NetworkEntry] = field(default_factory=list)
    parts: dict[int, dict[int, tuple[Part, ...]]] = field(default_factory=dict)

    def take(self, name: str, graph_key: str, graph: Graph, onnx: bytes, **about: Any) -> None:
        """Take in a network: its graph, its ONNX file without weights, and what else is said of it."""
        self.graphs[graph_key] = graph
        self.onnx[name] = onnx
        self.networks[name] = {"name": name, "graph": graph_key, "has_onnx": True, **about}

    def add(
        self,
        run: int,
        name: str,
        platform: Platform,
        found: NetworkSummary | NetworkEntry,
        parts: tuple[Part, ...],
    ) -> None:
        """Take in a latency."""
        network = self.networks[name]
        place = list(self.networks).index(name)
        summary = {item: getattr(found, item) for item in _SUMMARY}
        self.latencies.append({"network": place, "run": run, **summary})
        if parts:
            self.parts.setdefault(run, {})[place] = parts
        about = {item: network[item] for item in ("name", "family", "batch_size", "seed", "stage")}
        self.entries.append(
            NetworkEntry(
                **summary,
                **about,
                platform=platform,
                graph_key=network["graph"],
                run=run,
                _load_graph=self.graphs.__getitem__,
                _load_parts=lambda: parts,
            )
        )

    def save(self, path: str | Path) -> NetworkSet:
        """Write the file, and return what is in it."""
        header = {
            "package_version": version("nni_latency"),
            "runs": self.runs,
            "networks": list(self.networks.values()),
            "latencies": self.latencies,
        }
        write_archive(path, header, self.graphs, self.parts, self.onnx, make_card(self.entries, self.runs))
        return load_networks(path)
