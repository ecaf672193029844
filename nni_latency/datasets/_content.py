# SPDX-License-Identifier: Apache-2.0
"""Content of the file of a data set, and its card."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nni_latency.datasets._archive import Part, write_archive
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet, load_networks
from nni_latency.measurement import NetworkSummary, quantile
from nni_latency.operators import Graph
from nni_latency.platforms import Platform
from nni_latency.units import format_percent, format_seconds, number_of
from nni_latency.version import __version__

_SUMMARY = ("value", "low", "high", "n_samples", "n_visits", "repeatability")


@dataclass
class Content:
    """Content of the file of a data set."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    networks: dict[str, dict[str, Any]] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    onnx: dict[str, bytes] = field(default_factory=dict)
    latencies: list[dict[str, Any]] = field(default_factory=list)
    entries: list[NetworkEntry] = field(default_factory=list)
    parts: dict[int, dict[int, tuple[Part, ...]]] = field(default_factory=dict)

    def take(self, name: str, graph_key: str, graph: Graph, onnx: bytes, **about: Any) -> None:
        """Add a network: its graph, its ONNX file without weights, and further fields."""
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
        """Add a latency."""
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
        """Write the file and return its content."""
        header = {
            "package_version": __version__,
            "runs": self.runs,
            "networks": list(self.networks.values()),
            "latencies": self.latencies,
        }
        write_archive(path, header, self.graphs, self.parts, self.onnx, make_card(self.entries, self.runs))
        return load_networks(path)


def make_card(entries: Sequence[NetworkEntry], runs: Sequence[Mapping[str, Any]]) -> str:
    """Describe a data set in Markdown.

    Parameters
    ----------
    entries : sequence of NetworkEntry
        Measured networks.
    runs : sequence of mapping
        Content of every `RunDocument`.
    """
    names = number_of(len({entry.name for entry in entries}), "network")
    families = number_of(len({entry.family for entry in entries}), "family", "families")
    lines = [
        "# Latencies of networks",
        "",
        f"{number_of(len(entries), 'latency', 'latencies')} of {names} of {families}. "
        "Made by `nni-latency dataset measure` from its records.",
        "",
        "## Platforms",
        "",
        *_table(
            [
                "platform",
                "batch size",
                "networks",
                "cannot run",
                "latency",
                "repeatability",
                "interval",
                "kernels",
                "time",
            ],
            [_run_row(run, entries) for run in runs],
        ),
        "",
        "Latency: smallest, median and largest. Repeatability: the standard deviation of a network's visits as a share "
        "of their mean, in the median over the networks. Interval: half its width over its value, in the median.",
        "",
        "## Families",
        "",
        *_table(
            ["family", "networks", "operators"],
            [_family_row(name, entries) for name in sorted({e.family for e in entries})],
        ),
        "",
        "## How it was measured",
        "",
        *[line for run in runs for line in _how(run)],
    ]
    return "\n".join(lines) + "\n"


def _run_row(run: Mapping[str, Any], entries: Sequence[NetworkEntry]) -> list[str]:
    mine = [
        entry
        for entry in entries
        if entry.platform.id == run["platform"]["id"] and entry.batch_size == run["batch_size"]
    ]
    times = [entry.value for entry in mine]
    spans = [format_seconds(quantile(times, q)) for q in (0.0, 0.5, 1.0)] if times else ["?"]
    return [
        str(run["platform"]["id"]),
        str(run["batch_size"]),
        str(len(mine)),
        str(len(run["failures"])),
        " / ".join(spans),
        _median_percent(entry.repeatability for entry in mine if entry.n_visits > 1),
        _median_percent(entry.spread for entry in mine if entry.n_samples),
        str(sum(bool(entry.parts) for entry in mine)),
        format_seconds(run["duration"]),
    ]


def _median_percent(values: Iterable[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return format_percent(quantile(finite, 0.5)) if finite else "?"


def _family_row(family: str, entries: Sequence[NetworkEntry]) -> list[str]:
    graphs = {entry.name: entry for entry in entries if entry.family == family}
    sizes = [len(entry.graph.operators) for entry in graphs.values()]
    return [family, str(len(graphs)), f"{min(sizes)} to {max(sizes)}"]


def _how(run: Mapping[str, Any]) -> list[str]:
    """Describe the machine and the protocol of a run."""
    platform, protocol = run["platform"], run["protocol"]
    facts = ", ".join(f"{name} {value}" for name, value in sorted(platform["facts"].items()))
    lines = [f"### {platform['id']}, batch size {run['batch_size']}", "", *([f"- {facts}"] if facts else [])]
    if protocol:
        lines.append(f"- protocol: {', '.join(f'{name} {value}' for name, value in sorted(protocol.items()))}")
    lines += [f"- {moment}: {_facts(found)}" for moment, found in run["conditions"].items()]
    lines += [f"- cannot run {name}: {reason}" for name, reason in sorted(run["failures"].items())]
    return [*lines, ""]


def _facts(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in content.items() if isinstance(value, (int, float, str)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
