# SPDX-License-Identifier: Apache-2.0
"""Export to ONNX."""

from __future__ import annotations

import contextlib
import math
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
from nni_latency.operators._inputs import tensors_in
from nni_latency.operators._onnx import fed_inputs
from nni_latency.operators._onnx_model import nested

#: ONNX opset version of exports.
OPSET = 17

_CALL = re.compile(r"\bcall(\d+)\b")
_PART = re.compile(r"\bpart(\d+)/")

#: Functions that return tensor sizes.
_SHAPE: Any = torch.Tensor.shape
_SIZES = frozenset({torch.Tensor.size, _SHAPE.__get__, torch.Tensor.numel, torch.numel, torch.Tensor.nelement})

#: Nodes that dominate the time of their fused kernel.
_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"})

#: Suffixes that runtimes add to the names of new tensors and nodes.
_SUFFIX = re.compile(r"(_nchwc|_bn_nchwc|_token_\d+|/WithoutBiases)+$")

#: Operators that compute more or less, depending on values.
_BY_VALUE = frozenset({"If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "Unique"})

#: Operators whose third input is a bias.
_BIASED = ("Conv", "ConvTranspose", "Gemm")

#: Numbers from which on a weight is large: a joined network of FBNet is sent in 6 kB instead of 80.
_LARGE = 256


@dataclass(frozen=True)
class OnnxNetwork:
    """A network in ONNX, and the parts to which its nodes belong. Immutable.

    Parameters
    ----------
    model : onnx.ModelProto
        The network with its weights.
    n_labels : int
        Number of parts: calls of torch functions, or joined networks.
    is_joined : bool, default=False
        Whether the parts are joined networks.
    """

    model: Any
    n_labels: int
    is_joined: bool = False

    def origin_of(self, name: str) -> str:
        """Return the name of the original node, given the name of a node or tensor of a runtime."""
        plain = _SUFFIX.sub("", name)
        return self._producers.get(plain, plain)

    def label_of(self, names: Sequence[str]) -> int | None:
        """Return the index of the part of a node, given the names of the node and its results."""
        return next(self._labels(names), None)

    def _labels(self, names: Sequence[str]) -> Iterator[int]:
        pattern = _PART if self.is_joined else _CALL
        for name in names:
            match = pattern.search(self.origin_of(name))
            if match and int(match[1]) < self.n_labels:
                yield int(match[1])

    def kernels(self, nodes: Sequence[Sequence[str]]) -> dict[int, set[int]]:
        """Return which parts run together, given the names of a runtime's nodes.

        Parameters
        ----------
        nodes : sequence of sequence of str
            Names of every node: its own, and those of its original nodes.

        Returns
        -------
        dict of int to set of int
            All parts of each kernel, by the part with the most work.
        """
        found: dict[int, set[int]] = {}
        labels = [list(self._labels(names)) for names in nodes]
        # A node may also contain a part that has a separate node, such as a copy.
        own = {named[0] for named in labels if named}
        executed = own.union(*labels)
        for first, *others in filter(None, labels):
            named = {first, *(label for label in others if label not in own)}
            members = named.union(*(self._members(label, executed - {label}) for label in named))
            found.setdefault(self._heaviest(members), set()).update(members)
        return found

    def main_labels(self, nodes: Sequence[Sequence[str]]) -> dict[int, int]:
        """Return the part to which the time of each executed part is attributed.

        A runtime names a fused kernel after one of its operators, and may list the others. A part without a node that
        is listed nowhere was fused with its consumer. The time of a kernel is attributed to the part with the most
        work, a convolution or a matrix product, or else to the first.

        Parameters
        ----------
        nodes : sequence of sequence of str
            As for `kernels`.

        Returns
        -------
        dict of int to int
            Main part by part, for parts with nodes and parts fused with them.
        """
        if self.is_joined:
            return {label: label for label in range(self.n_labels)}
        return {label: main for main, members in self.kernels(nodes).items() for label in members}

    def _heaviest(self, members: set[int]) -> int:
        return min(members & self._heavy or members)

    def _members(self, label: int, others: set[int]) -> set[int]:
        """Return a part and its predecessors without a node."""
        members, todo = {label}, [label]
        while todo:
            for source in self._sources.get(todo.pop(), ()):
                if source not in members | others:
                    members.add(source)
                    todo.append(source)
        return members

    @cached_property
    def _producers(self) -> dict[str, str]:
        """Name of the producing node by tensor."""
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
        """Sources of each part; weights shared between parts by an exporter do not count."""
        found: dict[int, set[int]] = {}
        for node in self.model.graph.node:
            label = self.label_of([node.name])
            if label is not None:
                before = (self.label_of([name]) for name in node.input if name in self._computed)
                found.setdefault(label, set()).update(source for source in before if source not in (None, label))
        return found

    @cached_property
    def _heavy(self) -> set[int]:
        labels = (self.label_of([node.name]) for node in self.model.graph.node if _is_heavy(node))
        return {label for label in labels if label is not None}

    def feed(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs by name, without those that the network does not use."""
        return {name: inputs[place] for name, place in self._places.items()}

    @cached_property
    def _places(self) -> dict[str, int]:
        """Index of each input by name; cached because every timed run needs it."""
        return {item.name: int(item.name.rpartition("input")[2]) for item in fed_inputs(self.model.graph)}

    def weights(self) -> list[Any]:
        """Return the weights of 32 bits on whose values the latency does not depend: matrices, filters and biases.

        Small ones are left out. There are none where an operator decides by values how much is computed.
        """
        onnx = require("onnx", "Reading the weights of a network", "onnx")
        graph = self.model.graph
        if not _BY_VALUE.isdisjoint(node.op_type for node in graph.node):
            return []
        biases = {node.input[2] for node in graph.node if node.op_type in _BIASED and len(node.input) > 2}
        large = (
            onnx.numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
            and (len(tensor.dims) > 1 or tensor.name in biases)
            and math.prod(tensor.dims) >= _LARGE
        )
        return [values for values in large if 0 < float(values.std()) < math.inf]

    def serialised(self) -> bytes:
        """Return the serialised model."""
        data: bytes = self.model.SerializeToString()
        return data


def _is_heavy(node: Any) -> bool:
    """Whether a node, or one of its branches or loops, multiplies with weights."""
    inner = (part for attribute in node.attribute for graph in nested(attribute.g) for part in graph.node)
    return any(part.op_type in _HEAVY for part in (node, *inner))


def export_onnx(module: nn.Module, tensors: Sequence[torch.Tensor]) -> OnnxNetwork:
    """Export a network to ONNX.

    The name of every node contains the index of its call of a torch function, in the order of
    `nni_latency.operators.trace` with views and properties counted, so that the time of a node can be attributed to the
    operator.

    Parameters
    ----------
    module : nn.Module
        The network, in evaluation mode.
    tensors : sequence of Tensor
        Inputs of the forward pass.

    Returns
    -------
    OnnxNetwork

    Raises
    ------
    InvalidValueError
        If an operator has no ONNX equivalent; the message names it.
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
        # Only the tracing exporter names nodes by their scopes; it warns that it is deprecated.
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
    """Make a network accept exactly the given tensors and return only tensors during the export.

    The exporter passes the default of every other argument by position, which fails for keyword-only or already bound
    arguments; and it rejects results other than tensors, such as the cache of a language model.
    """
    forward = module.forward
    own = "forward" in vars(module)

    def plain(*tensors: torch.Tensor) -> Any:
        found = tuple(tensors_in(forward(*tensors)))
        if not found:
            raise InvalidValueError(
                f"{type(module).__name__} has no counterpart in ONNX: it returns no tensor, nor a list, tuple or "
                "dictionary of tensors."
            )
        return found

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
    """Keep the exporter from printing the whole network on failure, regardless of its own setting."""
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = log


class _CallScopes(TorchFunctionMode):
    """Assigns the scope ``callN`` to everything traced inside a call of a torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        state: Any = torch._C._get_tracing_state()
        if state is None:  # the exporter's own calls before and after tracing
            return func(*args, **kwargs or {})
        state.push_scope(f"Call::call{self.n_calls}")
        self.n_calls += 1
        try:
            found = func(*args, **kwargs or {})
        finally:
            state.pop_scope()
        return _plain(found) if func in _SIZES else found


def _plain(size: Any) -> Any:
    """Convert sizes to numbers.

    During tracing for export, sizes are tensors. Computations on them would add calls that do not occur at run time,
    and nodes that depend on the fixed input shape.
    """
    return torch.Size(map(int, size)) if isinstance(size, tuple) else int(size)


def shuffle_channels(inputs: torch.Tensor, groups: int = 2) -> torch.Tensor:
    """Interleave the channels of groups, with functions that every exporter supports.

    Parameters
    ----------
    inputs : Tensor of shape (batch, channels, height, width)
        Feature maps.
    groups : int, default=2
        Number of groups of channels.

    References
    ----------
    .. [1] X. Zhang et al., "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices",
       CVPR 2018. https://arxiv.org/abs/1707.01083
    """
    batch, channels, height, width = inputs.shape
    grouped = inputs.view(batch, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).reshape(batch, channels, height, width)


class ChannelShuffle(nn.Module):
    """`shuffle_channels` as a layer, so that the next grouped convolution sees all groups.

    Parameters
    ----------
    groups : int, default=2
        Number of groups of channels.
    """

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the channels in the new order."""
        return shuffle_channels(inputs, self.groups)
