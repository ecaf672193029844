"""`Graph`: every operator of a network, in order, with its true shapes and its sources."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nni_latency.errors import LatencyWarning
from nni_latency.operators._op_spec import OpSpec

#: What counts as one operator: a leaf module, or a call of a torch function.
By = Literal["module", "graph"]


class TracingWarning(LatencyWarning):
    """Warns that a network could not be traced in the way asked for, and how it was traced instead."""


@dataclass(frozen=True)
class TracedOperator:
    """One operator of a forward pass.

    Parameters
    ----------
    name : str
        Where it is called: the name of its module in the tree; for a function, that of the module that calls it and
        the function.
    op : OpSpec
        What it computes.
    sources : tuple of int
        Numbers of the operators whose results it takes; none for the inputs of the network.
    last_call : int
        Number of its last call of a torch function, views and properties counted, or of its node in an ONNX file; -1 if
        it has none.
    details : tuple of (str, str), default=()
        All attributes that an ONNX file gives of it, as text, those included that do not decide what it costs.
    parameters : int or None, default=None
        Parameters that it takes and no operator before it takes; None where it is not known which are the same.
    """

    name: str
    op: OpSpec
    sources: tuple[int, ...] = ()
    last_call: int = -1
    details: tuple[tuple[str, str], ...] = ()
    parameters: int | None = None


@dataclass(frozen=True)
class Graph:
    """The operators of a network in order of execution, and which takes whose results.

    Parameters
    ----------
    operators : tuple of TracedOperator
        In order.
    n_calls : int
        Calls of torch functions in all, views and properties counted; or nodes of an ONNX file.
    outputs : tuple of tuple of int
        Shapes of what the network returns.
    inputs : tuple of tuple of int
        Shapes of what it takes.
    remarks : tuple of str
        What had to be assumed of the network to read it, such as how often a loop runs whose end depends on data.

    Examples
    --------
    >>> relu = OpSpec.of("relu", [(1, 8)])
    >>> Graph((TracedOperator("a", relu), TracedOperator("b", relu, (0,))), 2, ((1, 8),)).edges
    ((0, 1),)
    """

    operators: tuple[TracedOperator, ...]
    n_calls: int
    outputs: tuple[tuple[int, ...], ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operators, by number, of which the second takes what the first returned."""
        return tuple((source, number) for number, item in enumerate(self.operators) for source in item.sources)

    @cached_property
    def digest(self) -> str:
        """What identifies the network: its operators in order, and where each takes its inputs from."""
        lines = [f"{item.op.op_key}<{','.join(map(str, item.sources))}" for item in self.operators]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


#: The same: what a forward pass leaves.
Trace = Graph
