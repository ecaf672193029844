# SPDX-License-Identifier: Apache-2.0
"""Division of a graph into kernels by the times of its nodes or calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from nni_latency.datasets._archive import Part
from nni_latency.measurement import CallMap
from nni_latency.operators import Graph

_CALL = re.compile(r"\bcall(\d+)\b")

#: Operators with shorter times ran inside another one [s].
_NOTHING = 5e-8


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
