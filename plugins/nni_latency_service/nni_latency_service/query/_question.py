# SPDX-License-Identifier: Apache-2.0
"""`Question`: the subject of a latency query, with its key, graph and builder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import nni_latency.loading as loading
from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import graph_of, light_onnx
from nni_latency.kernels import Kernel
from nni_latency.measurement import Build, Kind, Subject
from nni_latency.micro_benchmarks import inputs_of
from nni_latency.operators import (
    OP_KEY,
    Graph,
    OpSpec,
    TracedOperator,
    build_operator,
    freeze_inputs,
    given_shapes,
    graph_key,
    onnx_inputs,
    onnx_network,
    parse_op_keys,
    read_onnx,
    require_operators,
)
from nni_latency_service.query._as_file import as_file

#: Pattern of the key of a network.
GRAPH_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Question:
    """Subject of a latency query. Immutable; create one with `of` or one of the ``of_`` methods.

    Parameters
    ----------
    key : str
        Identifier: the `graph_key` of a network, or the key of an operator or a kernel.
    kind : {"network", "operator", "kernel"}, default="network"
        Type of the subject.
    name : str, default=""
        Name in messages.
    graph : Graph, optional
        Operators in the form of ONNX files; None if only the key is known.
    build : callable, optional
        Builds the network to measure.
    inputs : object, optional
        Inputs of the built network.
    onnx : bytes
        The network as an ONNX file without weights, for a remote service; empty if not available.
    source : object, optional
        Original object for estimators: a module, an ONNX file or an `OpSpec`.
    example_inputs : object, optional
        Inputs of a module.

    Examples
    --------
    >>> Question.of("relu()@1x64x56x56:float32").kind
    'operator'
    """

    key: str
    kind: Kind = "network"
    name: str = ""
    graph: Graph | None = field(default=None, compare=False, repr=False)
    build: Build | None = field(default=None, compare=False, repr=False)
    inputs: Any = field(default=None, compare=False, repr=False)
    onnx: bytes = field(default=b"", compare=False, repr=False)
    source: Any = field(default=None, compare=False, repr=False)
    example_inputs: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, source: Any, example_inputs: Any = None, batch_size: int | None = None) -> Question:
        """Create a question from a supported object.

        Parameters
        ----------
        source : Question, nn.Module, str, Path, bytes, OpSpec or Kernel
            A module, such as a frozen model of an NNI space; the path or the content of an ONNX file; an operator or a
            kernel, or the key of one; or a `graph_key`.
        example_inputs : Tensor, sequence or dict, optional
            Inputs of a module; for ONNX, only needed for dynamic sizes.
        batch_size : int, optional
            First dimension of the inputs of an ONNX file.

        Raises
        ------
        InvalidValueError
            If the source is of no supported type, cannot be read, or needs inputs.
        UnknownNameError
            If the operator or kernel cannot be built.
        MissingDependencyError
            If the package onnx is not installed.
        """
        if isinstance(source, Question):
            return source
        if isinstance(source, OpSpec):
            return cls.of_operator(source)
        if isinstance(source, Kernel):
            return cls.of_kernel(source)
        if isinstance(source, bytes):
            return cls.of_onnx(source, example_inputs=example_inputs, batch_size=batch_size)
        if isinstance(source, (str, Path)):
            return cls._of_text(source, example_inputs, batch_size)
        return cls.of_module(source, example_inputs)

    @classmethod
    def _of_text(cls, source: str | Path, example_inputs: Any, batch_size: int | None) -> Question:
        text = str(source)
        if text.endswith(".onnx") or isinstance(source, Path):
            content = read_file(Path(source))
            return replace(cls.of_onnx(content, text, example_inputs, batch_size), source=text)
        if GRAPH_KEY.fullmatch(text):
            return cls(text, name=text)
        if OP_KEY.fullmatch(text):
            return cls.of_operator(parse_op_keys(text)[0])
        if re.fullmatch(r"\w+\(.*\)", text):
            return cls.of_kernel(Kernel.parse(text))
        raise InvalidValueError(
            "A latency is asked of an ONNX file (.onnx), a module, the key of an operator or a kernel, or a graph_key "
            f"of 32 hexadecimal digits. Got {text[:80]!r}."
        )

    @classmethod
    def of_onnx(
        cls, content: bytes, name: str = "network.onnx", example_inputs: Any = None, batch_size: int | None = None
    ) -> Question:
        """Create a question from the content of an ONNX file; raises as `of`."""
        with as_file(content, name) as path:
            light = light_onnx(path, example_inputs, batch_size)
        return cls.of_light(light, name)

    @classmethod
    def of_light(cls, light: bytes, name: str) -> Question:
        """Create a question from an ONNX file without weights, as returned by `nni_latency.graphs.light_onnx`."""
        with as_file(light, name) as path:
            graph, inputs = read_onnx(path), onnx_inputs(path)
        return cls.of_graph(graph, light, inputs, name)

    @classmethod
    def of_graph(cls, graph: Graph, light: bytes, inputs: Any, name: str) -> Question:
        """Create a question from a parsed network."""
        require_operators(graph.operators, name)
        return cls(graph_key(graph), "network", name, graph, partial(_built, light, name), inputs, light)

    @classmethod
    def of_module(cls, module: Any, example_inputs: Any) -> Question:
        """Create a question from a module; its key is that of its ONNX export. Raises as `of`."""
        from torch import nn

        if not isinstance(module, nn.Module):
            raise InvalidValueError(
                "A latency is asked of a torch.nn.Module, an ONNX file, an operator, a kernel or a graph_key. "
                f"Got {type(module).__name__}."
            )
        name = type(module).__name__
        try:
            asked = cls.of_light(light_onnx(module, example_inputs), name)
        except InvalidValueError:
            # A module without an ONNX export can still be predicted, and measured locally, from its calls.
            asked = cls.of_graph(graph_of(module, example_inputs), b"", None, name)
        subject = Subject.of_module(module, example_inputs)
        found = replace(asked, build=subject.build, inputs=subject.inputs)
        return replace(found, source=module, example_inputs=example_inputs)

    @classmethod
    def of_operator(cls, op: OpSpec) -> Question:
        """Create a question from a single operator.

        Raises
        ------
        UnknownNameError
            If the key does not contain enough information to build the operator.
        """
        build_operator(op)
        graph = _chain([op])
        shapes = tuple(map(tuple, given_shapes(op)))
        return cls(op.op_key, "operator", op.op_key, graph, partial(build_operator, op), _inputs(shapes, op), b"", op)

    @classmethod
    def of_kernel(cls, kernel: Kernel) -> Question:
        """Create a question from a single kernel.

        Raises
        ------
        UnknownNameError
            If the kernel kind is unknown, or its sizes are invalid.
        """
        kinds = loading.load_kernel_types()
        if kernel.kind not in kinds:
            raise UnknownNameError.of("kernel", kernel.kind, sorted(kinds))
        kind = kinds[kernel.kind]
        kind.check(kernel)
        graph, shapes = _chain(list(kind.ops(kernel))), kind.shapes(kernel)
        return cls(kernel.key, "kernel", kernel.key, graph, partial(kind.module, kernel), inputs_of(shapes))

    def subject(self) -> Subject:
        """Return the subject for a bench.

        Raises
        ------
        InvalidValueError
            If only the key is known.
        """
        if self.build is None:
            raise InvalidValueError(f"Nothing but the key of {self.key!r} is known, so it cannot be measured.")
        specification: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.graph is not None:
            specification["graph"] = GraphDocument.of(self.graph).model_dump(mode="json")
        # A bench runs kernels side by side. Here, each is measured as a network.
        return Subject(self.key, self.build, self.inputs, "network", self.key, specification)


def read_file(path: Path) -> bytes:
    """Return the content of a file.

    Raises
    ------
    InvalidValueError
        If the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValueError(f"Cannot read the ONNX file {str(path)!r}: {error.strerror or error}.") from error


def _built(light: bytes, name: str) -> Any:
    with as_file(light, name) as path:
        return onnx_network(path)


def _chain(ops: list[OpSpec]) -> Graph:
    operators = tuple(TracedOperator(op.op_key, op, (number - 1,) if number else ()) for number, op in enumerate(ops))
    return Graph(operators, len(ops))


def _inputs(shapes: tuple[tuple[int, ...], ...], op: OpSpec) -> Any:
    """Return the inputs of an operator: a shape for a single float input, otherwise tensors without values."""
    import torch

    if op.dtype == "float32":
        return inputs_of(shapes)
    made = tuple(torch.empty(shape, dtype=getattr(torch, op.dtype), device="meta") for shape in shapes)
    return freeze_inputs(made, device=None)
