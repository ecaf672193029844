# SPDX-License-Identifier: Apache-2.0
"""Tracing of a forward pass: executed operators in order, with shapes and sources."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nni_latency.errors import InvalidValueError, first_line
from nni_latency.operators._calls import describe_call
from nni_latency.operators._flow import Flow, Ledger
from nni_latency.operators._graph import By, Trace, TracingWarning
from nni_latency.operators._inputs import (
    Inputs,
    Learned,
    check_not_scripted,
    dtype_of,
    freeze_inputs,
    has_lazy_weights,
    is_parameter,
    memory_of,
    shares_memory_of,
    tensors_in,
    with_zeros,
    without_values,
)
from nni_latency.operators._op_spec import OpSpec


@runtime_checkable
class DescribesItself(Protocol):
    """Interface of a block that is measured as one operator and provides its description."""

    def op_spec(self, *input_shapes: Any) -> OpSpec:
        """Describe the block for those input shapes."""


def trace(model: nn.Module, example_inputs: Any, by: By = "module") -> Trace:
    """Trace a forward pass on meta tensors, without computation or memory.

    Calls are intercepted through torch's ``__torch_function__`` protocol [1]_, so functional code between modules is
    included, and the operators are those of eager execution.

    Parameters
    ----------
    model : nn.Module
        The network; it is copied, not changed. Lazy modules of the copy are initialised by a first run.
    example_inputs : Tensor, tuple or dict
        Inputs of the forward pass: a tensor; a tuple of positional inputs, whose last item may be a dictionary of
        keyword inputs; or such a dictionary. Only shapes and dtypes matter.
    by : {"module", "graph"}, default="module"
        With "module", a leaf module or one with a method ``op_spec(*input_shapes)`` is one operator, and so is every
        call between them. With "graph", every call of a torch function is one.

    Returns
    -------
    Trace

    Warns
    -----
    TracingWarning
        If the control flow depends on the data. The network then runs on the given inputs, and is traced by modules.

    Raises
    ------
    InvalidValueError
        If the inputs do not match the network, or it was compiled by ``torch.jit.script``.

    References
    ----------
    .. [1] https://docs.pytorch.org/docs/stable/torch.overrides.html

    Examples
    --------
    >>> block = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    >>> [item.name for item in trace(block, torch.zeros(1, 3, 4, 4)).operators]
    ['0', '1']
    """
    return _trace_ways(model, example_inputs, (by,))[0]


def trace_both(model: nn.Module, example_inputs: Any) -> tuple[Trace, Trace]:
    """Trace one forward pass by modules and by graph.

    Parameters
    ----------
    model, example_inputs
        As for `trace`.

    Returns
    -------
    tuple of Trace
        Results of `trace` by "module" and by "graph".

    Warns
    -----
    TracingWarning
        If the control flow depends on the data. Both traces are by modules then.

    Raises
    ------
    InvalidValueError
        If the inputs do not match the network.

    Examples
    --------
    >>> by_module, by_graph = trace_both(nn.LSTMCell(2, 3), torch.zeros(1, 2))
    >>> [item.name for item in by_module.operators], [item.name for item in by_graph.operators]
    ([''], ['zeros', 'lstm_cell'])
    """
    by_module, by_graph = _trace_ways(model, example_inputs, ("module", "graph"))
    return by_module, by_graph


def _trace_ways(model: nn.Module, example_inputs: Any, ways: Sequence[By]) -> list[Trace]:
    for by in ways:
        if by not in ("module", "graph"):
            raise InvalidValueError(f"The 'by' of a trace must be 'module' or 'graph'. Got {by!r}.")
    inputs = freeze_inputs(example_inputs)
    check_not_scripted(model)
    found, error = _on_meta(model, inputs, ways)
    if error is None:
        return found
    if any(parameter.is_meta for parameter in model.parameters()):
        raise _misfit(model, inputs, error) from error
    return [_on_data(model, example_inputs, error)] * len(ways)


def _on_meta(model: nn.Module, inputs: Inputs, ways: Sequence[By]) -> tuple[list[Trace], Exception | None]:
    """Trace on tensors without data; return the exception that prevents it, if any.

    Tensors created by the network keep their data at first, because its control flow may depend on them. If they cannot
    be combined with tensors without data, they also lose their data.
    """
    first: Exception | None = None
    for made_on in (contextlib.nullcontext(), torch.device("meta")):
        try:
            with made_on:
                return _run(without_values(copy.deepcopy(model)).eval(), inputs, ways), None
        except Exception as error:  # user code may raise anything
            first = first or error
    return [], first


def capture_operators(model: nn.Module, example_inputs: Any, by: By = "module") -> list[tuple[str, OpSpec]]:
    """List the operators of a forward pass of `model` with their input shapes.

    Parameters
    ----------
    model, example_inputs, by
        As for `trace`.

    Returns
    -------
    list of (str, OpSpec)
        Qualified name and description of each operator, in the order of execution.

    Raises
    ------
    InvalidValueError
        If the inputs do not match the network.
    """
    return [(item.name, item.op) for item in trace(model, example_inputs, by).operators]


def _on_data(model: nn.Module, example_inputs: Any, reason: Exception) -> Trace:
    """Trace on real data, for a network with data-dependent control flow; inputs without data become 0."""
    given = freeze_inputs(example_inputs, device=None)
    inputs = with_zeros(given)
    try:
        (found,) = _run(copy.deepcopy(model).eval(), inputs, ("module",))
    except Exception as error:  # neither way works
        raise _misfit(model, inputs, error) from error
    used = "the example inputs" if inputs is given else "zeros"
    warnings.warn(
        f"{type(model).__name__} cannot be traced without data ({first_line(reason).rstrip('.')}). It was run on "
        f"{used} and traced by modules; its control flow depends on the data, and other data may run other operators.",
        TracingWarning,
        stacklevel=5,
    )
    return found


def _misfit(model: nn.Module, inputs: Inputs, error: Exception) -> InvalidValueError:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs.tensors)
    return InvalidValueError(f"The example inputs of shape {shapes} do not fit {type(model).__name__}: {error}")


def _run(model: nn.Module, inputs: Inputs, ways: Sequence[By]) -> list[Trace]:
    kwargs = dict(inputs.kwargs)
    recorder, result = _record(model, inputs.args, kwargs, ways)
    given = [*inputs.args, kwargs]
    outputs, taken = (tuple(tuple(tensor.shape) for tensor in tensors_in(some)) for some in (result, given))
    ledgers = [recorder.ledgers[by] for by in ways]
    return [
        Trace(tuple(ledger.operators), recorder.n_calls, outputs, taken, returned=ledger.returned(result, given))
        for ledger in ledgers
    ]


def run_traced(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], by: By, given: Sequence[torch.Tensor] = ()
) -> tuple[Flow, Any]:
    """Run a network unchanged, and return its operators and its result.

    Parameters
    ----------
    model, args, kwargs
        The network and what it is called with.
    by : {"module", "graph"}
        As for `trace`.
    given : sequence of Tensor, default=()
        Those of the arguments whose use is followed.
    """
    recorder, result = _record(model, args, kwargs, (by,), given)
    return recorder.ledgers[by].flow(result), result


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ways: Sequence[By],
    given: Sequence[torch.Tensor] = (),
) -> tuple[_Recorder, Any]:
    if has_lazy_weights(model):
        # A first run initialises their shapes.
        with torch.no_grad():
            model(*args, **kwargs)
    learned = [tensor for tensor in tensors_in([args, kwargs]) if is_parameter(tensor)]
    recorder = _Recorder(ways, shares_memory_of([*model.parameters(), *learned]), given)
    handles = [handle for name, module in model.named_modules() for handle in recorder.follow(name, module)]
    try:
        with torch.inference_mode(), recorder:
            result = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return recorder, result


@dataclass
class _Unit:
    """A running module that counts as one operator."""

    name: str
    module: nn.Module
    shapes: list[Any]
    dtype: str
    calls: list[OpSpec] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    parameters: int = 0

    @property
    def needed(self) -> list[int]:
        """The sources that its calls take, or all: a frozen `InputChoice` is given inputs that it leaves out."""
        return [source for source in self.sources if source in self.taken] or self.sources


def _compute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch.

    Batch normalisation without memory is worked out by torch in Python, and took a third of a trace: where nothing but
    the shape is asked for, and nothing can be wrong, it is that of the input.
    """
    if func is nn.functional.batch_norm and _keeps_shape(*args, **kwargs):
        return torch.empty_like(args[0] if args else kwargs["input"])
    return func(*args, **kwargs)


def _keeps_shape(
    input: torch.Tensor,  # noqa: A002 - the name that torch gives it
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> bool:
    """Whether a batch normalisation is on a meta tensor, in evaluation, and fits."""
    if training or running_mean is None or running_var is None or not input.is_meta or input.dim() < 2:
        return False
    known = (item for item in (running_mean, running_var, weight, bias) if item is not None)
    return input.is_contiguous() and all(tuple(item.shape) == (input.shape[1],) for item in known)


class _Recorder(TorchFunctionMode):
    """Records every call of a torch function inside its context, at every requested granularity."""

    def __init__(self, ways: Sequence[By], learned: Learned, given: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.ledgers: dict[By, Ledger] = {by: Ledger(given) for by in ways}
        self._learned = learned
        # Parameters used so far, by their memory; they are counted once.
        self._taken: set[int] = set()
        self.n_calls = 0
        # Whether calls come from the tracer, not from the network.
        self._aside = False
        self._path: list[str] = []
        self._unit: _Unit | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = _compute(func, args, kwargs)
        if self._aside:
            return result
        self.n_calls += 1
        op = describe_call(getattr(func, "__name__", str(func)), args, kwargs, result, self._learned)
        if op is not None:
            self._note(op, [args, kwargs], result)
        elif result is None:
            for ledger in self.ledgers.values():
                ledger.lose_track([args, kwargs])
        return result

    def follow(self, name: str, module: nn.Module) -> list[Any]:
        """Record when a module begins and ends."""

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._aside = True
            self._begin(name, module, args, kwargs)
            self._aside = False

        def end(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            self._aside = True
            self._end(module, result)
            self._aside = False

        return [module.register_forward_pre_hook(begin, with_kwargs=True), module.register_forward_hook(end)]

    def _begin(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._path.append(name)
        if self._unit is None and "module" in self.ledgers and _is_unit(module):
            tensors = list(tensors_in([args, kwargs]))
            shapes, sources = [tensor.shape for tensor in tensors], self.ledgers["module"].sources([args, kwargs])
            self._unit = _Unit(name, module, shapes, dtype_of(tensors), sources=sources)

    def _end(self, module: nn.Module, result: Any) -> None:
        self._path.pop()
        unit = self._unit
        if unit is not None and unit.module is module and unit.name not in self._path:
            self._unit = None
            op = _describe(unit)
            if op is not None:
                last = self.n_calls - 1
                self.ledgers["module"].append(
                    unit.name, op, unit.needed, result, last, unit.parameters, within=unit.results
                )

    def _note(self, op: OpSpec, arguments: Any, result: Any) -> None:
        path = self._path[-1] if self._path else ""
        name = f"{path}.{op.kind}" if path else op.kind
        parameters = self._new_parameters(arguments)
        if self._unit is not None:
            self._unit.calls.append(op)
            self._unit.results.append(result)
            self._unit.taken.update(self.ledgers["module"].sources(arguments))
            self._unit.parameters += parameters
        for by, ledger in self.ledgers.items():
            if by == "graph" or self._unit is None:
                ledger.append(name, op, ledger.sources(arguments), result, self.n_calls - 1, parameters)

    def _new_parameters(self, arguments: Any) -> int:
        """Count the parameters among the arguments of a call that no earlier call used."""
        found = {memory_of(item): item for item in tensors_in(arguments) if self._learned(item)}
        new = {memory: item for memory, item in found.items() if memory not in self._taken}
        self._taken |= set(new)
        return sum(item.untyped_storage().nbytes() // item.element_size() for item in new.values())


def _is_unit(module: nn.Module) -> bool:
    return isinstance(module, DescribesItself) or not any(True for _ in module.children())


def _describe(unit: _Unit) -> OpSpec | None:
    """Describe a module that counts as one operator by its `op_spec`, its only call, or all its calls."""
    if isinstance(unit.module, DescribesItself):
        return unit.module.op_spec(*unit.shapes)
    if len(unit.calls) <= 1:
        return unit.calls[0] if unit.calls else None
    calls = " ".join(op.op_key for op in unit.calls)
    return OpSpec.of(type(unit.module).__name__.lower(), unit.shapes, dtype=unit.dtype, calls=calls)
