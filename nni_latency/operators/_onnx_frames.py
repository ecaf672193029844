# SPDX-License-Identifier: Apache-2.0
"""Nodes, scopes and branches that the traversal of an ONNX file passes on."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nni_latency.operators._feature_table import work_of
from nni_latency.operators._graph import TracedOperator
from nni_latency.operators._onnx_inference import Value
from nni_latency.operators._op_spec import OpSpec


@dataclass(frozen=True)
class Node:
    """A node with all properties that determine its cost.

    Parameters
    ----------
    name : str
        Name of the node, prefixed by those of the surrounding loops and functions.
    kind : str
        Operator type; for an operator equivalent to a standard one, the standard type.
    domain : str
        Domain of the operator.
    attributes : dict
        Attributes in the file by name.
    inputs : tuple of Value or None
        Inputs in the order of the operator; None for an omitted input.
    outputs : tuple of Value
        Outputs.
    """

    name: str
    kind: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]


#: Describes a node with a computation; returns the operator and all its attributes as text.
Describe = Callable[[Node], tuple[OpSpec, tuple[tuple[str, str], ...]]]


@dataclass(frozen=True)
class Frame:
    """Scope of a node: known values and names.

    Parameters
    ----------
    values : mapping of str to Value
        Values by tensor, including those of the surrounding graphs.
    opsets : dict of str to int
        Opset versions by domain.
    attributes : dict of str to AttributeProto
        Attributes of the surrounding function call.
    prefix : str
        Prefix of the names of operators.
    key : str
        Identifier that separates the weights of this graph from those of others.
    place : int or None
        Index of the surrounding node of the file; None at top level.
    depth : int
        Number of surrounding functions, branches and loops.
    results : dict
        Inputs and outputs of the nodes so far, by what determines the outputs.
    """

    values: MutableMapping[str, Value]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    key: str = ""
    place: int | None = None
    depth: int = 0
    hints: dict[str, Any] = field(default_factory=dict)
    results: dict[Hashable, tuple[Sequence[Value | None], Sequence[Value | None]]] = field(default_factory=dict)

    def outermost(self, place: int) -> int:
        """Return the index of the node of the file that a node here belongs to; at top level the node itself."""
        return place if self.place is None else self.place

    def inside(self, name: str, place: int, key: str) -> Frame:
        """Return the frame of a body, which includes the outer values."""
        return replace(
            self,
            values=ChainMap({}, self.values),
            hints={},
            results={},
            prefix=f"{self.prefix}{name}.",
            place=self.outermost(place),
            key=f"{self.key}{key}/",
            depth=self.depth + 1,
        )


@dataclass(frozen=True)
class Branch:
    """Operators and outputs of a branch, the weights used by its end, and the assumptions."""

    operators: list[TracedOperator]
    taken: set[str]
    assumed: dict[str, list[str]]
    outputs: list[Value]

    @property
    def cost(self) -> float:
        """Operations and weighted element moves."""
        work = [work_of(item.op)[0] for item in self.operators]
        return float(sum(item.flops + 5 * (item.inputs + item.outputs + item.params) for item in work))


def count_of(value: Value | None) -> float:
    """Return the largest number of iterations of a loop."""
    if value is None:
        return math.inf
    return math.inf if value.data is None or not value.data.size else float(value.data.reshape(-1)[0])


def truth_of(value: Value | None) -> bool | None:
    """Return whether a loop continues; None if that depends on data."""
    if value is None:
        return True
    return None if value.data is None or not value.data.size else bool(np.all(value.data))
