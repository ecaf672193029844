"""Export to ONNX: a network as a model whose nodes tell from which call of a torch function they come."""

from __future__ import annotations

import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nni_latency.errors import InvalidValueError, first_line
from nni_latency.imports import require
from nni_latency.operators._onnx_inputs import fed_inputs
from nni_latency.operators._tensors import tensors_in

#: The version of ONNX's operators that is exported.
OPSET = 17

_CALL = re.compile(r"\bcall(\d+)\b")
_PART = re.compile(r"\bpart(\d+)/")

#: Functions that return sizes of tensors.
_SHAPE: Any = torch.Tensor.shape
_SIZES = frozenset({torch.Tensor.size, _SHAPE.__get__, torch.Tensor.numel, torch.numel, torch.Tensor.nelement})

#: Nodes that take most of the time of what they are fused with.
_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"})

#: What runtimes put behind the name of a tensor or node for one of their own.
_SUFFIX = re.compile(r"(_nchwc|_bn_nchwc|_token_\d+|/WithoutBiases)+$")


@dataclass(frozen=True)
class OnnxNetwork:
    """A network in ONNX, and what its nodes are parts of. Immutable.

    Parameters
    ----------
    model : onnx.ModelProto
        The network, with its weights.
    n_labels : int
        How many parts it is divided into: calls of torch functions, or networks that were joined.
    is_joined : bool, default=False
        Whether the parts are networks that were joined.
    """

    model: Any
    n_labels: int
    is_joined: bool = False

    def origin_of(self, name: str) -> str:
        """Return the name of a node of this network by what a runtime made of it, or of the tensor that it makes."""
        plain = _SUFFIX.sub("", name)
        return self._producers.get(plain, plain)

    def label_of(self, names: Sequence[str]) -> int | None:
        """Return the number of the part that a node belongs to, by its own name and those of its results."""
        return next(self._labels(names), None)

    def _labels(self, names: Sequence[str]) -> Iterator[int]:
        pattern = _PART if self.is_joined else _CALL
        for name in names:
            match = pattern.search(self.origin_of(name))
            if match and int(match[1]) < self.n_labels:
                yield int(match[1])

    def kernels(self, nodes: Sequence[Sequence[str]]) -> dict[int, set[int]]:
        """Say which parts run together, by the names of the nodes that a runtime has made.

        Parameters
        ----------
        nodes : sequence of sequence of str
            The names of every node: its own, and those of what it was made of.

        Returns
        -------
        dict of int to set of int
            By the part that computes most in each kernel, all parts in it.
        """
        found: dict[int, set[int]] = {}
        labels = [list(self._labels(names)) for names in nodes]
        # A node may be made of what has a node of its own, too, such as a copy.
        own = {named[0] for named in labels if named}
        executed = own.union(*labels)
        for first, *others in filter(None, labels):
            named = {first, *(label for label in others if label not in own)}
            members = named.union(*(self._members(label, executed - {label}) for label in named))
            found.setdefault(self._heaviest(members), set()).update(members)
        return found

    def main_labels(self, nodes: Sequence[Sequence[str]]) -> dict[int, int]:
        """Say which part the time of each part that ran belongs to.

        A runtime names what it fused by one of its operators, and may say of which others it was made. What has no node
        and is named by none was fused with what takes its result; the time of all of them belongs to the one that
        computes most, a convolution or a matrix product, or else to the first.

        Parameters
        ----------
        nodes : sequence of sequence of str
            As for `kernels`.

        Returns
        -------
        dict of int to int
            By part: those that have nodes, and those that were fused with them.
        """
        if self.is_joined:
            return {label: label for label in range(self.n_labels)}
        return {label: main for main, members in self.kernels(nodes).items() for label in members}

    def _heaviest(self, members: set[int]) -> int:
        return min(members & self._heavy or members)

    def _members(self, label: int, others: set[int]) -> set[int]:
        """Return a part, and those before it that have no node of their own."""
        members, todo = {label}, [label]
        while todo:
            for source in self._sources.get(todo.pop(), ()):
                if source not in members | others:
                    members.add(source)
                    todo.append(source)
        return members

    @cached_property
    def _producers(self) -> dict[str, str]:
        """By tensor, the name of the node that makes it."""
        return {name: node.name for node in self.model.graph.node for name in node.output}

    @cached_property
    def _computed(self) -> set[str]:
        """Tensors that depend on an input of the network."""
        given = {item.name for item in fed_inputs(self.model.graph)}
        computed: set[str] = set()
        for node in self.model.graph.node:
            if any(name in given or name in computed for name in node.input):
                computed.update(node.output)
        return computed

    @cached_property
    def _sources(self) -> dict[int, set[int]]:
        """By part, the parts whose results it takes; weights that an exporter shares between parts are no results."""
        found: dict[int, set[int]] = {}
        for node in self.model.graph.node:
            label = self.label_of([node.name])
            if label is not None:
                before = (self.label_of([name]) for name in node.input if name in self._computed)
                found.setdefault(label, set()).update(source for source in before if source not in (None, label))
        return found

    @cached_property
    def _heavy(self) -> set[int]:
        labels = (self.label_of([node.name]) for node in self.model.graph.node if node.op_type in _HEAVY)
        return {label for label in labels if label is not None}

    def feed(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return by name those of the inputs that the network takes; what it does not compute with is left out."""
        return {name: inputs[place] for name, place in self._places.items()}

    @cached_property
    def _places(self) -> dict[str, int]:
        """By the name of an input, its place; found once, because it is asked for in every timed run."""
        return {item.name: int(item.name.rpartition("input")[2]) for item in fed_inputs(self.model.graph)}

    def serialised(self) -> bytes:
        """Return the model as ONNX files hold it."""
        data: bytes = self.model.SerializeToString()
        return data


def export_onnx(module: nn.Module, tensors: Sequence[torch.Tensor]) -> OnnxNetwork:
    """Export a network to ONNX.

    Every node has the number of the call of a torch function that it comes from in its name, in the order of
    `nni_latency.operators.trace`, views and properties counted, so that the time of a node can be put down to the
    operator.

    Parameters
    ----------
    module : nn.Module
        The network, in evaluation mode.
    tensors : sequence of Tensor
        What its forward pass takes, one by one.

    Returns
    -------
    OnnxNetwork

    Raises
    ------
    InvalidValueError
        If an operator has no counterpart in ONNX; the message names it.
    MissingDependencyError
        If the package onnx is not installed.

    Examples
    --------
    >>> network = export_onnx(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), [torch.zeros(1, 3, 8, 8)])
    >>> [network.label_of([node.name]) for node in network.model.graph.node]
    [0, 1]
    """
    onnx = require("onnx", "Exporting a network", "onnx")
    scopes = _CallScopes()
    names = [f"input{index}" for index in range(len(tensors))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The exporter by tracing is the one that names nodes by their scopes, and says of itself that it is old.
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        try:
            with scopes, _of_tensors_alone(module), _without_log():
                torch.onnx.export(module, tuple(tensors), path, dynamo=False, opset_version=OPSET, input_names=names)
        except torch.onnx.errors.OnnxExporterError as error:
            raise InvalidValueError(
                f"{type(module).__name__} has no counterpart in ONNX: {first_line(error).rstrip('.')}."
            ) from error
        return OnnxNetwork(onnx.load(path), scopes.n_calls)


@contextlib.contextmanager
def _of_tensors_alone(module: nn.Module) -> Iterator[None]:
    """Let a network take the tensors that it is given, and return tensors alone, for as long as it is exported.

    The exporter would pass the default of every other argument by position, which a forward pass that takes some by
    name alone, or is wrapped in one that sets them, refuses; and it refuses results that are no tensors, such as the
    cache of a language model.
    """
    forward = module.forward
    own = "forward" in vars(module)

    def plain(*tensors: torch.Tensor) -> Any:
        result = forward(*tensors)
        return tuple(tensors_in(result)) or result

    if isinstance(module, torch.jit.ScriptModule):
        yield
        return
    module.forward = plain
    try:
        yield
    finally:
        if own:
            module.forward = forward
        else:
            del module.forward


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Keep the exporter from printing the whole network where it fails, whatever its own setting says."""
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = log


class _CallScopes(TorchFunctionMode):
    """Gives everything that is traced inside a call of a torch function the scope ``callN``."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        state: Any = torch._C._get_tracing_state()
        if state is None:  # what the exporter does before and after it traces
            return func(*args, **kwargs or {})
        state.push_scope(f"Call::call{self.n_calls}")
        self.n_calls += 1
        try:
            found = func(*args, **kwargs or {})
        finally:
            state.pop_scope()
        return _plain(found) if func in _SIZES else found


def _plain(size: Any) -> Any:
    """Return sizes as numbers.

    While a network is traced for export they are tensors, and what it computes of them would be calls that it does not
    make when it runs, and nodes that depend on the shape of the input, which is fixed.
    """
    return torch.Size(map(int, size)) if isinstance(size, tuple) else int(size)
