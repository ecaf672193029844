# SPDX-License-Identifier: Apache-2.0
"""``benchmark_app``: the benchmark binary of OpenVINO, in C++ or in Python."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nni_latency.devices._tool import Start, Tool, Written, looking_for
from nni_latency.measurement.runtimes import ProfiledNode, ProfiledRun

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
            graph = ElementTree.fromstring(written.file(_GRAPH)).iter("layer")
            within = {layer.get("name", ""): layer.find("data") for layer in graph}
            originals = {name: data.get("originalLayersNames", "") for name, data in within.items() if data is not None}
            (request,) = written.json(_COUNTERS)["detailed_performance"]
            nodes = [
                ProfiledNode(
                    [item["name"], *originals.get(item["name"], "").split(",")],
                    1e-3 * float(item["real_time"]),
                    item["node_type"] == "Reorder",
                )
                for item in request["nodes"]
                if item["status"].rpartition(".")[2] == "EXECUTED"
            ]
        return [ProfiledRun(nodes, self.samples(written, start)[0])]
