# SPDX-License-Identifier: Apache-2.0
"""``trtexec``: the benchmark binary of TensorRT."""

from __future__ import annotations

import re

from nni_latency.devices._tool import Start, Tool, Written, looking_for
from nni_latency.measurement.runtimes import ProfiledNode, ProfiledRun

#: How long it warms up for one run that is asked for [ms], as it takes no number of runs.
_WARM_UP = 50

#: How layers are named that bring a tensor into another layout, before TensorRT 8 and since.
_REFORMAT = re.compile(r"^Reformatting CopyNode| (?:in|out)put reformatter \d+$")


class TrtExec(Tool):
    """TensorRT on a GPU; it writes the time of every run and the mean of every layer. Engines are built once.

    A sample is what the GPU computes, without the copies of inputs and results.

    References
    ----------
    .. [1] https://github.com/NVIDIA/TensorRT/tree/main/samples/trtexec
    """

    name = "trtexec"
    runtime = "tensorrt"
    precisions = ("fp32", "fp16", "int8")
    gives_layers = True
    on_gpu = True
    results = ("times.json",)
    layer_results = ("profile.json",)
    # Such as TensorRT.trtexec [TensorRT v100300], and v8503 before.
    version_pattern = r"\[TensorRT v(?:(\d\d)(\d\d)(\d\d)|(\d)(\d)(\d\d))\]"

    def command(self, start: Start) -> list[str]:
        """Return the command; it would run for three seconds at least unless told otherwise."""
        engine = start.model.removesuffix(".onnx") + ".engine"
        precision = {"fp32": ["--noTF32"], "fp16": ["--fp16"], "int8": ["--int8"]}[start.precision]
        build = [f"--onnx={start.model}", f"--saveEngine={engine}", *precision]
        layers = [f"--exportProfile={start.folder}/profile.json", "--separateProfileRun"] if start.with_layers else []
        return [
            start.binary,
            *(build if start.is_first else [f"--loadEngine={engine}"]),
            f"--iterations={start.runs}",
            f"--warmUp={_WARM_UP * start.warmups}",
            "--duration=0",
            "--noDataTransfers",
            "--useSpinWait",
            f"--exportTimes={start.folder}/times.json",
            *layers,
        ]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read ``computeMs`` of every run."""
        with looking_for("a number 'computeMs' of every run in times.json"):
            return [1e-3 * float(item["computeMs"]) for item in written.json("times.json")][-start.runs :]

    def layers(self, written: Written, start: Start) -> list[ProfiledRun]:
        """Read ``averageMs`` of every layer; the name of one that several nodes became has all of theirs."""
        with looking_for("a number 'averageMs' of every layer in profile.json"):
            rows = [item for item in written.json("profile.json") if "name" in item]
            nodes = [tensorrt_node(item["name"], 1e-3 * float(item["averageMs"])) for item in rows]
        return [ProfiledRun(nodes, sum(node.seconds for node in nodes))]


def tensorrt_node(name: str, seconds: float) -> ProfiledNode:
    """Return a layer of TensorRT as a node; the name of one that several operators became has the names of all.

    Examples
    --------
    >>> tensorrt_node("/conv/Conv + /relu/Relu", 1e-5).names
    ['/conv/Conv + /relu/Relu', '/conv/Conv', '/relu/Relu']
    """
    inside = re.sub(r"\{ForeignNode\[(.*?)\]\}", lambda found: found[1].replace("...", " + "), _REFORMAT.sub("", name))
    # Those on both sides of bars run side by side.
    names = dict.fromkeys([name, *(part.strip() for part in re.split(r" \+ | \|\| ", inside))])
    return ProfiledNode(list(names), seconds, _REFORMAT.search(name) is not None)
