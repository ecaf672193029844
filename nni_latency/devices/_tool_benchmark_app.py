# SPDX-License-Identifier: Apache-2.0
"""``benchmark_app``: the benchmark binary of OpenVINO, in C++ or in Python."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nni_latency.devices._tool import Start, Tool, Written, looking_for
from nni_latency.measurement.runtimes import ProfiledNode, ProfiledRun

#: How the names begin that OpenVINO gives to its own nodes, and the names of the kernels of nodes that compute nothing.
#: The adapter of the package nni-latency-openvino has the same, because devices run it without this package.
_WRITTEN, _NO_KERNELS = re.compile(r"[A-Z][A-Za-z]*_\d"), ("undef", "unknown", "unspecified")

#: Types of nodes that hand over a result of the network.
_OUTPUTS = ("Output", "Result")

#: What is cut off the time of a node on average [s], and the time of one that was too short to be reported.
_CUT, _SHORTEST = 1e-6, 5e-7

_REPORT, _COUNTERS, _GRAPH = "benchmark_report.json", "benchmark_detailed_counters_report.json", "graph.xml"


class BenchmarkApp(Tool):
    """OpenVINO on the processor. It reports statistics over runs, and the mean of every node.

    References
    ----------
    .. [1] https://docs.openvino.ai/2026/get-started/learn-openvino/openvino-samples/benchmark-tool.html
    """

    name = "benchmark_app"
    runtime = "openvino"
    precisions = ("fp32", "bf16", "fp16")
    gives_layers = True
    counts_always = True
    probe = ("-m", "none.onnx")  # It prints its build before it looks for the network.
    results = (_REPORT,)
    layer_results = (_COUNTERS, _GRAPH)
    # Such as Build ... 2026.4.1-21000-abc.
    version_pattern = r"Build[ .:]+(\d+\.\d+\.\d+)"

    def command(self, start: Start) -> list[str]:
        """Return the command: one request at a time, of which it makes one before those that it times."""
        precision = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[start.precision]
        layers = ["-report_type", "detailed_counters", "-exec_graph_path", f"{start.folder}/{_GRAPH}"]
        return [
            *(start.binary, "-m", start.model, "-d", "CPU", "-infer_precision", precision),
            *("-api", "sync", "-hint", "none", "-nireq", "1", "-nstreams", "1", "-nthreads", str(start.threads)),
            *("-niter", str(start.runs), "-json_stats", "-report_folder", start.folder),
            *(layers if start.with_layers else ["-report_type", "no_counters"]),
            # Unless told otherwise it makes bytes of an input that could be an image.
            *(["-ip", "f32"] if any(len(shape) == 4 for shape in start.shapes) else []),
        ]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the median that is printed, or the mean where its decimals are too few."""
        printed = re.search(r"Median: +([0-9.]+) (us|ms|s)\b", written.text)
        if printed and float(printed[1]) >= 1:
            return [float(printed[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[printed[2]]]
        with looking_for(f"a number 'total execution time (ms)' in {_REPORT}"):
            found = written.json(_REPORT)["execution_results"]
            return [1e-3 * float(found["total execution time (ms)"]) / int(found["total number of iterations"])]

    def layers(self, written: Written, start: Start) -> list[ProfiledRun]:
        """Read the mean of every node that was run, under its name and those of the operators in it."""
        with looking_for(f"nodes with 'real_time' in {_COUNTERS} and {_GRAPH}"):
            names = _names_of_nodes(ElementTree.fromstring(written.file(_GRAPH)))
            (request,) = written.json(_COUNTERS)["detailed_performance"]
            nodes = [
                ProfiledNode(
                    names.get(item["name"], [item["name"]]),
                    1e-3 * float(item["real_time"]) + _CUT if _is_reported(item) else _SHORTEST,
                    item["node_type"] == "Reorder",
                )
                for item in request["nodes"]
                if _is_reported(item) or not item.get("exec_type", "undef").startswith(_NO_KERNELS)
            ]
        return [ProfiledRun(nodes, self.samples(written, start)[0])]


def _is_reported(item: dict[str, str]) -> bool:
    return item["status"].rpartition(".")[2] == "EXECUTED"


def _names_of_nodes(graph: ElementTree.Element) -> dict[str, list[str]]:
    """Return the names of what every node was made of, by its own name, which is the first of them.

    OpenVINO's own nodes have the names of the first node of the network that reads their results.
    """
    layers = {layer.get("id"): layer for layer in graph.iter("layer")}
    readers: dict[str | None, list[ElementTree.Element]] = {}
    for edge in graph.iter("edge"):
        readers.setdefault(edge.get("from-layer"), []).append(layers[edge.get("to-layer")])
    found: dict[str, list[str]] = {}
    for number, layer in reversed(layers.items()):
        name, data = layer.get("name", ""), layer.find("data")
        originals = data.get("originalLayersNames", "") if data is not None else ""
        found[name] = [name, *filter(None, originals.split(","))]
        after = [item.get("name", "") for item in readers.get(number, ()) if item.get("type") not in _OUTPUTS]
        if after and all(map(_WRITTEN.match, found[name])):
            found[name] += found.get(after[0], [])
    return found
