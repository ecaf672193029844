# SPDX-License-Identifier: Apache-2.0
"""Traversal of the nodes of an ONNX file in the order of execution, including branches, loops and functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError, first_line, listed
from nni_latency.operators._graph import TracedOperator
from nni_latency.operators._onnx_frames import Branch, Describe, Frame, Node, count_of, truth_of
from nni_latency.operators._onnx_inference import RANDOM, STANDARD, Inference, Value, without_data
from nni_latency.operators._onnx_kinds import IDLE, equivalent, holds_weights, is_described, runtime_hints
from nni_latency.operators._onnx_model import attributes_of, check_attributes, name_of
from nni_latency.operators._op_spec import OpSpec
from nni_latency.units import number_of

#: Largest number of operators of a network, and of visited nodes.
_MOST_OPERATORS, _MOST_VISITS = 100_000, 500_000

#: Largest number of loop iterations.
_MOST_TURNS = 10_000

#: Largest nesting depth of functions, branches and loops.
_DEEPEST = 50

#: Iteration counts from here on mean "until the condition is false".
_ENDLESS = 2**31

#: Nodes with an output of their own whatever their inputs: random numbers, and copies of weights for further layers.
_ALWAYS_OWN = RANDOM | {"Identity"}

#: Largest number of elements of constants that runtimes compare with each other.
_FEW = 8

#: Remarks on assumptions, by kind.
REMARKS = {
    "branch": "which branch of {} runs depends on data: the dearer one is counted",
    "only": "which branch of {} runs depends on data: the one that can run with inputs of these sizes is counted",
    "loop": "how often the loop {} runs depends on data: it is counted once",
    "early": "the loop {} may end early: it is counted in full",
    "sizes": "the sizes of the results of {} depend on data: they are taken for the largest, or for those of the input",
    "unknown": "the results of {} are not known: they are taken for as large as the input",
}


class Walk:
    """Traverses the nodes of a model and records the operators that it runs.

    Parameters
    ----------
    onnx : module
        The package.
    model : ModelProto
        The model, with fixed input sizes.
    describe : callable
        Describes a node with a computation.
    path : str
        Path of the file, for messages.

    Attributes
    ----------
    operators : list of TracedOperator
        Operators in the order of execution.
    """

    def __init__(self, onnx: Any, model: Any, describe: Describe, path: str) -> None:
        self.operators: list[TracedOperator] = []
        self._onnx, self._describe, self._path = onnx, describe, path
        self._inference = Inference(onnx, model.ir_version)
        self._functions = {(item.domain, item.name): item for item in model.functions}
        opsets = {"" if item.domain in STANDARD else item.domain: item.version for item in model.opset_import}
        self._frame = Frame({}, {"": 1, **opsets})
        self._visits = 0
        # Weights used so far, and assumptions made.
        self._sizes: dict[str, int] = {}
        self._taken: set[str] = set()
        self._assumed: dict[str, list[str]] = {}
        # Branches that ran, and those that could not with the branch that did instead, by identity.
        self._fit: dict[int, Any] = {}
        self._unfit: dict[int, tuple[Any, Any]] = {}

    def run(self, graph: Any, nodes: Iterable[tuple[int, Any]]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Traverse a graph; return its inputs and outputs.

        Parameters
        ----------
        graph : GraphProto
            The network.
        nodes : iterable of (int, NodeProto)
            Its nodes in topological order, with their indices in the file.

        Raises
        ------
        InvalidValueError
            If a node is invalid, or there are too many; the message names the node.
        """
        frame = self._frame
        try:
            self._register(graph, frame)
            weights = set(frame.values)
            inputs = {item.name: self._inference.of_type(item.type) for item in graph.input if item.name not in weights}
        except ValueError as error:
            raise InvalidValueError(f"{self._path!r} cannot be read: {first_line(error).rstrip('.')}.") from error
        frame.values.update(inputs)
        for place, node in nodes:
            self._visit(node, place, frame)
        outputs = (frame.values[item.name] for item in graph.output if item.name in frame.values)
        return tuple(inputs.values()), tuple(outputs)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Assumptions made, as sentences without a full stop."""
        return tuple(REMARKS[kind].format(listed(dict.fromkeys(names))) for kind, names in self._assumed.items())

    @property
    def unfit(self) -> list[tuple[Any, Any]]:
        """Branches that cannot run with inputs of these sizes, each with the other one, which can; inner ones first."""
        return [pair for number, pair in self._unfit.items() if number not in self._fit]

    def _register(self, graph: Any, frame: Frame) -> None:
        """Register the weights of a graph, and the declared types of its tensors."""
        for tensor in graph.initializer:
            frame.values[tensor.name] = self._weight(tensor, f"{frame.key}{tensor.name}")
        for sparse in graph.sparse_initializer:
            found = self._inference.of_tensor(sparse.values, f"{frame.key}{sparse.values.name}")
            frame.values[sparse.values.name] = self._inference.constant(
                None, tuple(sparse.dims), found.dtype, parameters=found.parameters
            )
            self._sizes |= dict.fromkeys(found.parameters, found.size)
        frame.hints.update({item.name: item.type for item in (*graph.value_info, *graph.output)})

    def _weight(self, tensor: Any, name: str) -> Value:
        found = self._inference.of_tensor(tensor, name)
        self._sizes |= dict.fromkeys(found.parameters, found.size)
        return found

    def _visit(self, node: Any, place: int, frame: Frame) -> None:
        """Record the operators and outputs of a node."""
        self._visits += 1
        if self._visits > _MOST_VISITS or len(self.operators) > _MOST_OPERATORS:
            raise InvalidValueError(
                f"{self._path!r} runs more than {_MOST_OPERATORS} operators, and those are the most that are read. "
                f"The last one is {frame.prefix + name_of(node)!r}."
            )
        try:
            if not all(isinstance(text, str) for text in (node.op_type, node.domain, *node.input, *node.output)):
                raise ValueError("it has names that are not text")
            node = self._resolved(node, frame)
            missing = [name for name in node.input if name and name not in frame.values]
            if missing:
                raise ValueError(f"it takes tensors that nothing makes: {listed(missing)}")
            inputs = tuple(frame.values[name] if name else None for name in node.input)
            if (node.domain, node.op_type) in self._functions:
                outputs: Sequence[Value | None] = self._call(node, inputs, place, frame)
            elif node.domain in STANDARD and node.op_type in _CONTROL:
                check_attributes(self._onnx, node, self._inference.schema(node, frame.opsets))
                outputs = _CONTROL[node.op_type](self, node, inputs, place, frame)
            else:
                outputs = self._run(node, inputs, place, frame)
        except InvalidValueError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise InvalidValueError(
                f"The node {f'{frame.prefix}{name_of(node)}'!r} in {self._path!r}, an operator {kind}, is not valid: "
                f"{_reason(error)}."
            ) from error
        frame.values.update({name: value for name, value in zip(node.output, outputs, strict=False) if name and value})

    def _resolved(self, node: Any, frame: Frame) -> Any:
        """Return a node of a function with the attributes of the function call."""
        if not any(item.ref_attr_name for item in node.attribute):
            return node
        found = type(node).FromString(node.SerializeToString())
        del found.attribute[:]
        for item in node.attribute:
            if not item.ref_attr_name:
                found.attribute.append(item)
            elif item.ref_attr_name in frame.attributes:
                found.attribute.append(frame.attributes[item.ref_attr_name])
                found.attribute[-1].name = item.name
        return found

    def _run(self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame) -> Sequence[Value | None]:
        """Return the outputs of a node. Of equal nodes, runtimes execute one."""
        if node.op_type in _ALWAYS_OWN or not node.input:
            return self._recorded(node, inputs, place, frame)
        key = _key(node, inputs, frame)
        if key not in frame.results:
            # The inputs are kept, because their identities are part of the key.
            frame.results[key] = inputs, self._recorded(node, inputs, place, frame)
        return frame.results[key][1]

    def _recorded(
        self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame
    ) -> Sequence[Value | None]:
        """Record one operator, unless it is a constant or returns a view."""
        stand_in, taken = equivalent(self._onnx, node, inputs)
        # An integer product returns another element type than its floating-point equivalent.
        own = self._inference.schema(node, frame.opsets)
        inferred, given = (stand_in, self._inference.as_floats(taken)) if own is None else (node, inputs)
        schema = self._inference.schema(inferred, frame.opsets)
        check_attributes(self._onnx, inferred, schema)
        if schema is not None and not is_described(inferred):
            function = self._inference.function_of(inferred, schema, given, frame.opsets)
            if function is not None:
                usual = [item.default_value for item in schema.attributes.values() if item.default_value.name]
                return self._expand(function, node, inputs, place, frame, usual)
        attributes, name = attributes_of(self._onnx, node), f"{frame.prefix}{name_of(node)}"
        hints = {**frame.hints, **runtime_hints(self._inference, stand_in, taken, attributes)}
        found = self._inference.infer(inferred, given, frame.opsets, hints)
        if inferred is not node:
            found = self._inference.typed_as(found, inputs)
        values = self._known(node, found.values, f"{frame.key}{node.output[0]}")
        if found.is_assumed:
            self._assumed.setdefault("unknown" if schema is None else "sizes", []).append(name)
        outputs = [item for item in values if item is not None]
        if not outputs or all(item.is_constant for item in outputs):
            return values
        reads = tuple(number for item in inputs if item is not None for number in item.writers)
        writers = tuple(dict.fromkeys(reads))
        if not (stand_in.op_type in IDLE and stand_in.domain in STANDARD):
            step = Node(name, stand_in.op_type, stand_in.domain, attributes, taken, tuple(outputs))
            op, details = self._describe(step)
            number = len(self.operators)
            self.operators.append(
                TracedOperator(name, op, writers, frame.outermost(place), details, self._parameters(step), reads)
            )
            writers = (number,)
        return [item and replace(item, writers=writers) for item in values]

    def _known(self, node: Any, values: Sequence[Value | None], key: str) -> list[Value | None]:
        """Name the weights that a constant consists of, with their sizes.

        Exporters deduplicate equal vectors of a network, such as untrained biases, and add an Identity for each further
        layer; they count as separate weights.
        """
        is_own = node.op_type == "Constant" or (node.op_type == "Identity" and values[0] and len(values[0].shape) == 1)
        found = [item and (replace(item, parameters=(key,)) if is_own and item.parameters else item) for item in values]
        self._sizes |= {
            name: item.size for item in found if item for name in item.parameters if name not in self._sizes
        }
        return found

    def _parameters(self, node: Node) -> int:
        """Count the weights first used by an operator."""
        new = [name for value in holds_weights(node.kind, node.inputs) for name in value.parameters]
        new = [name for name in dict.fromkeys(new) if name not in self._taken]
        self._taken.update(new)
        return sum(self._sizes[name] for name in new)

    def _body(self, nodes: Iterable[Any], frame: Frame) -> None:
        if frame.depth > _DEEPEST:
            raise InvalidValueError(
                f"{frame.prefix[:-1][:80]!r} in {self._path!r} is inside of more than {_DEEPEST} functions and loops."
            )
        for node in nodes:
            self._visit(node, frame.place or 0, frame)

    def _call(self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame) -> list[Value | None]:
        """Traverse a function of the file."""
        return self._expand(self._functions[node.domain, node.op_type], node, inputs, place, frame)

    def _expand(
        self,
        function: Any,
        node: Any,
        inputs: tuple[Value | None, ...],
        place: int,
        frame: Frame,
        usual: Sequence[Any] = (),
    ) -> list[Value | None]:
        """Traverse the body of a function; ``usual`` are default attributes."""
        values = {name: item for name, item in zip(function.input, inputs, strict=False) if item is not None}
        attributes = {item.name: item for item in (*usual, *function.attribute_proto, *node.attribute)}
        opsets = {"" if item.domain in STANDARD else item.domain: item.version for item in function.opset_import}
        inner = replace(
            frame.inside(name_of(node), place, f"{node.domain}.{node.op_type}"),
            values=values,
            attributes=attributes,
            opsets={**frame.opsets, **opsets},
        )
        inner.hints.update({item.name: item.type for item in getattr(function, "value_info", ())})
        self._body(function.node, inner)
        return [values.get(name) for name in function.output]

    def _branches(self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame) -> list[Value]:
        """Traverse the branch if it is known, otherwise both, and keep the more expensive one."""
        attributes = attributes_of(self._onnx, node)
        condition = inputs[0] if inputs else None
        names = ["then_branch", "else_branch"]
        if condition is not None and condition.data is not None:
            names = ["then_branch" if bool(np.all(condition.data)) else "else_branch"]
        tried, failed = [], {}
        for name in names:
            branch, inner = attributes[name], frame.inside(name_of(node), place, name_of(node) + name)
            try:
                tried.append(self._tried(branch, inner))
                self._fit[id(branch)] = branch
            except InvalidValueError as error:
                failed[name] = error
        if not tried:
            raise next(iter(failed.values()))
        dearest = max(tried, key=lambda item: item.cost)
        self.operators += dearest.operators
        self._taken, self._assumed = dearest.taken, dearest.assumed
        for name in failed:
            (other,) = (attributes[fit] for fit in names if fit != name)
            self._unfit[id(attributes[name])] = attributes[name], other
        if len(names) == 1:
            return dearest.outputs
        # A branch may be for other input sizes and invalid for these.
        name = f"{frame.prefix}{name_of(node)}"
        self._assumed.setdefault("only" if failed else "branch", []).append(name)
        # The result of a branch is constant only if the branch is always taken.
        found = [without_data(item) for item in dearest.outputs]
        return self._chosen(name, condition, found, place, frame)

    def _chosen(self, name: str, condition: Value | None, found: list[Value], place: int, frame: Frame) -> list[Value]:
        """Record the choice of a branch, which passes on its results: a runtime decides at every run."""
        taken = found if condition is None else [*found, condition]
        writers = dict.fromkeys(number for item in taken for number in item.writers)
        dtype = max(found, key=lambda item: item.size).dtype if found else "float32"
        op = OpSpec.of("if", [item.shape for item in found], dtype=dtype)
        self.operators.append(TracedOperator(name, op, tuple(writers), frame.outermost(place), parameters=0))
        return [replace(item, writers=(len(self.operators) - 1,)) for item in found]

    def _tried(self, branch: Any, frame: Frame) -> Branch:
        """Traverse a branch and restore the state."""
        before, taken, assumed = len(self.operators), set(self._taken), copy.deepcopy(self._assumed)
        try:
            outputs = self._graph(branch, (), frame)
            return Branch(self.operators[before:], self._taken, self._assumed, outputs)
        finally:
            del self.operators[before:]
            self._taken, self._assumed = taken, assumed

    def _graph(self, graph: Any, given: Sequence[Value | None], frame: Frame) -> list[Value]:
        """Traverse the body of a branch or loop; return its outputs."""
        frame.values.update({item.name: value for item, value in zip(graph.input, given, strict=False) if value})
        self._register(graph, frame)
        self._body(graph.node, frame)
        missing = [item.name for item in graph.output if item.name not in frame.values]
        if missing:
            raise ValueError(f"its body returns tensors that nothing makes: {listed(missing)}")
        return [frame.values[item.name] for item in graph.output]

    def _loop(self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame) -> list[Value | None]:
        """Traverse a loop once per iteration; once if the count depends on data."""
        body, name = attributes_of(self._onnx, node)["body"], name_of(node)
        trips, condition = [*inputs, None, None][:2]
        carried: Sequence[Value | None] = inputs[2:]
        is_open = trips is not None and trips.data is None
        most = 1 if is_open else count_of(trips)
        n_carried, stacked, count = len(carried), list[list[Value]](), 0
        going, is_early = truth_of(condition), False
        while going is not False and count < most:
            is_early = is_early or going is None
            index = self._inference.constant(np.array(count, np.int64), (), "int64")
            if is_open:
                index, carried = without_data(index), [item and without_data(item) for item in carried]
            inner = frame.inside(f"{name}[{count}]", place, name)
            again, *results = self._graph(body, (index, condition or self._true(), *carried), inner)
            carried = results[:n_carried]
            stacked.append(results[n_carried:])
            going, count = truth_of(again), count + 1
            self._check_turns(count, frame.prefix + name)
            if going is None and most >= _ENDLESS:
                is_open = True
                break
        if count and (is_open or is_early):
            self._assumed.setdefault("loop" if is_open else "early", []).append(f"{frame.prefix}{name}")
        left = [item and (without_data(item) if is_open or is_early else item) for item in carried]
        return [*left, *self._stacked(stacked, count, len(body.output) - 1 - n_carried, body, 0)]

    def _scan(self, node: Any, inputs: tuple[Value | None, ...], place: int, frame: Frame) -> list[Value | None]:
        """Traverse the body of a scan once per slice of its inputs."""
        attributes, name = attributes_of(self._onnx, node), name_of(node)
        body, n_scanned = attributes["body"], int(attributes["num_scan_inputs"])
        # Up to opset 8, the lengths came first, and a batch dimension preceded that of the sequence.
        first, axis = (1, 1) if frame.opsets[""] < 9 else (0, 0)
        states: Sequence[Value | None] = inputs[first : len(inputs) - n_scanned]
        scanned = inputs[len(inputs) - n_scanned :]
        axes = list(attributes.get("scan_input_axes", [axis] * n_scanned))
        n_inputs = len(inputs) - first
        if len(body.input) != n_inputs:
            raise ValueError(f"it has {number_of(n_inputs, 'input')}, and its body takes {len(body.input)}")
        if n_scanned > n_inputs or len(axes) != n_scanned:
            scanned_along = f"{n_scanned} along {number_of(len(axes), 'axis', 'axes')}"
            raise ValueError(f"it has {number_of(n_inputs, 'input')}, of which it scans {scanned_along}")
        slices = [self._slice(item, at) for item, at in zip(scanned, axes, strict=True) if item is not None]
        count = min((item.shape[at] for item, at in zip(scanned, axes, strict=True) if item is not None), default=0)
        self._check_turns(count, frame.prefix + name)
        stacked: list[list[Value]] = []
        for number in range(count):
            inner = frame.inside(f"{name}[{number}]", place, name)
            results = self._graph(body, (*states, *slices), inner)
            stacked.append(results[len(states) :])
            states = results[: len(states)]
        return [*states, *self._stacked(stacked, count, len(body.output) - len(states), body, axis)]

    def _check_turns(self, count: int, name: str) -> None:
        if count > _MOST_TURNS:
            raise InvalidValueError(
                f"The loop {name!r} in {self._path!r} runs more than {_MOST_TURNS} times, the most that are read."
            )

    def _slice(self, value: Value, axis: int) -> Value:
        axis %= max(1, len(value.shape))
        return self._inference.value(
            (*value.shape[:axis], *value.shape[axis + 1 :]), value.dtype, writers=value.writers
        )

    def _stacked(
        self, results: Sequence[Sequence[Value]], count: int, n_results: int, body: Any, axis: int
    ) -> list[Value | None]:
        """Return the stacked outputs of the iterations of a loop."""
        found: list[Value | None] = []
        for place in range(max(0, n_results)):
            items = [some[place] for some in results if place < len(some)]
            if items:
                writers = tuple(dict.fromkeys(number for item in items for number in item.writers))
                shape = (*items[-1].shape[:axis], count, *items[-1].shape[axis:])
                found.append(self._inference.value(shape, items[-1].dtype, writers=writers))
            else:
                one = self._inference.of_type(body.output[len(body.output) - n_results + place].type)
                found.append(self._inference.value((0, *one.shape), one.dtype))
        return found

    def _true(self) -> Value:
        return self._inference.constant(np.array(True), (), "bool")


_CONTROL: dict[str, Callable[..., Sequence[Value | None]]] = {
    "If": Walk._branches,
    "Loop": Walk._loop,
    "Scan": Walk._scan,
}


def _key(node: Any, inputs: Sequence[Value | None], frame: Frame) -> Hashable:
    """Return what determines the outputs of a node: two nodes with equal keys have equal outputs."""
    return (
        (node.domain, node.op_type, frame.opsets.get("" if node.domain in STANDARD else node.domain)),
        tuple(sorted(item.SerializeToString() for item in node.attribute)),
        tuple(map(_identity, inputs)),
        tuple(map(bool, node.output)),
    )


def _identity(value: Value | None) -> Hashable:
    """Return the content of a constant of few elements, and the identity of any other tensor."""
    if value is None or value.data is None or not value.is_constant or value.data.size > _FEW:
        return id(value)
    return value.dtype, value.shape, value.data.tobytes()


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, (AttributeError, IndexError, TypeError)):
        return "its inputs or attributes are not those of this operator"
    return first_line(error).rstrip(".")
