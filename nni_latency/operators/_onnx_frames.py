"""Where a node of an ONNX file stands while the file is gone through, and what is known there."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nni_latency.operators._feature_table import work_of
from nni_latency.operators._onnx_values import Value
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._trace import TracedOperator

#: What had to be assumed, by kind.
REMARKS = {
    "branch": "which branch of {} runs depends on data: the dearer one is counted",
    "only": "which branch of {} runs depends on data: the one that can run with inputs of these sizes is counted",
    "loop": "how often the loop {} runs depends on data: it is counted once",
    "early": "the loop {} may end early: it is counted in full",
    "sizes": "the sizes of the results of {} depend on data: they are taken for the largest, or for those of the input",
    "unknown": "the results of {} are not known: they are taken for as large as the input",
}


@dataclass(frozen=True)
class Node:
    """One node, with everything that decides what it costs.

    Parameters
    ----------
    name : str
        Of the node, behind those of the loops and functions that it is in.
    kind : str
        Its operator; of a standard operator in another form, that operator.
    domain : str
        Where the operator is defined.
    attributes : dict
        As the file has them, by name.
    inputs : tuple of Value or None
        What it takes, in the order of the operator; None where an input is left out.
    outputs : tuple of Value
        What it returns.
    """

    name: str
    kind: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]


#: Describes a node that computes something; returns the operator, and all its attributes as text.
Describe = Callable[[Node], tuple[OpSpec, tuple[tuple[str, str], ...]]]


@dataclass(frozen=True)
class Frame:
    """Where a node stands: what is known there, and what it is called there.

    Parameters
    ----------
    values : mapping of str to Value
        By tensor; those of the graphs around it included.
    opsets : dict of str to int
        Versions of the operators, by domain.
    attributes : dict of str to AttributeProto
        Those that the function around it was called with.
    prefix : str
        What names of operators begin with.
    key : str
        What tells the weights in this graph from those in others.
    place : int or None
        Number of the node of the file that it is in; None in the network itself.
    depth : int
        Functions, branches and loops around it.
    """

    values: MutableMapping[str, Value]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    key: str = ""
    place: int | None = None
    depth: int = 0
    hints: dict[str, Any] = field(default_factory=dict)

    def inside(self, name: str, place: int, key: str) -> Frame:
        """Return the frame of a body, where what is known around it is known, too."""
        return replace(
            self,
            values=ChainMap({}, self.values),
            hints={},
            prefix=f"{self.prefix}{name}.",
            place=place if self.place is None else self.place,
            key=f"{self.key}{key}/",
            depth=self.depth + 1,
        )


@dataclass(frozen=True)
class Branch:
    """What a branch runs and returns, which weights were taken at its end, and what was assumed."""

    operators: list[TracedOperator]
    taken: set[str]
    assumed: dict[str, list[str]]
    outputs: list[Value | None]

    @property
    def cost(self) -> float:
        """Operations, and numbers that are moved."""
        work = [work_of(item.op)[0] for item in self.operators]
        return float(sum(item.flops + 5 * (item.inputs + item.outputs + item.params) for item in work))


def count_of(value: Value | None) -> float:
    """Return how often a loop runs at most."""
    if value is None:
        return math.inf
    return math.inf if value.data is None or not value.data.size else float(value.data.reshape(-1)[0])


def truth_of(value: Value | None) -> bool | None:
    """Return whether a loop goes on, None if that depends on data."""
    if value is None:
        return True
    return None if value.data is None or not value.data.size else bool(np.all(value.data))
