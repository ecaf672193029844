# SPDX-License-Identifier: Apache-2.0
"""The tools that are known by name."""

from __future__ import annotations

from nni_latency.devices._tool import Tool
from nni_latency.devices._tool_benchmark_app import BenchmarkApp
from nni_latency.devices._tool_benchmark_model import BenchmarkModel
from nni_latency.devices._tool_benchncnn import BenchNcnn
from nni_latency.devices._tool_onnxruntime_perf_test import OnnxRuntimePerfTest
from nni_latency.devices._tool_trtexec import TrtExec
from nni_latency.errors import UnknownNameError

_TOOLS: dict[str, type[Tool]] = {
    tool.name: tool for tool in (BenchmarkModel, BenchNcnn, OnnxRuntimePerfTest, TrtExec, BenchmarkApp)
}


def tool_of(name: str) -> Tool:
    """Return the tool of a name.

    Raises
    ------
    UnknownNameError
        If there is none.

    Examples
    --------
    >>> tool_of("benchncnn").runtime
    'ncnn'
    """
    if name not in _TOOLS:
        raise UnknownNameError.of("tool", name, sorted(_TOOLS))
    return _TOOLS[name]()
