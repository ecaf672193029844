# SPDX-License-Identifier: Apache-2.0
"""`Walker`: one symbolic forward pass through a model space finds the operators of all its networks."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.operators import (
    By,
    Learned,
    OpSpec,
    Trace,
    describe_call,
    is_parameter,
    run_traced,
    shares_memory_of,
    tensors_in,
)
from nni_latency.spaces._nni import (
    CellBuilder,
    LabeledMutable,
    Mutable,
    MutableModule,
    ParametrizedModule,
    label_scope,
    model_context,
    recursive_freeze,
)
from nni_latency.spaces._symbolic import (
    Choices,
    ImpossibleError,
    Invalid,
    Nested,
    NotSymbolicError,
    SymbolicTensor,
    TensorSpec,
    Varying,
    as_key,
    calls_to,
    in_evaluation,
    open_nested,
    pack,
    replace_symbols,
    symbols_in,
    user_code,
)

#: Runs a module of a certain class symbolically, instead of its forward.
Handler = Callable[..., Any]

#: Attributes that do not change what a module computes.
_NEEDLESS = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training", "_is_full_backward_hook"),
        *("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs"),
        *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
        *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        *("trace_symbol", "_frozen_context", "_label_scope", "call_super_init", "_compiled_call_impl"),
    }
)


class Walker:
    """Runs the modules of a space on symbolic tensors and notes the operators of all its networks.

    A module without choices runs once for every distinct shape of its inputs. One whose arguments are searched is made
    for every distinct combination of them. The forward of a module that only contains others runs as it is written, on
    symbolic tensors. A module is frozen and run for every combination of its choices where its code asks for something
    that differs between networks, or where it overrides `freeze`. Any other error in it surfaces.

    Parameters
    ----------
    choices : Choices
        Labels and values of the space.
    raw : callable
        Makes a sample in NNI's form of ``{label: choice}``.
    by : {"module", "graph"}, default="module"
        What counts as one operator.
    handlers : sequence of (type, callable), default=()
        Classes that are run otherwise; the callable gets the walker, the module and its inputs.
    elastic : bool, default=False
        Give convolutions and linear layers as many input channels as their input has.
    """

    def __init__(
        self,
        choices: Choices,
        raw: Callable[[dict[str, Any]], dict[str, Any]],
        by: By = "module",
        handlers: Sequence[tuple[type, Handler]] = (),
        *,
        elastic: bool = False,
    ) -> None:
        self.choices = choices
        self.records: list[Varying] = []
        self._raw = raw
        self._by = by
        self._handlers = tuple(handlers)
        self._elastic = elastic
        self._signatures = Signatures()
        self._runs: dict[Hashable, tuple[list[Varying], Any]] = {}
        self._traces: dict[Hashable, tuple[tuple[OpSpec, ...], Any]] = {}
        self._expressions: dict[int, Varying] = {}
        self._shadows: dict[Hashable, nn.Module] = {}
        self._mutable: dict[int, bool] = {}
        self._learned: Learned = is_parameter
        # Objects that are identified by `id` stay alive, so that no other object gets the same one.
        self._kept: list[Any] = []

    def walk(self, space: nn.Module, args: Sequence[torch.Tensor], kwargs: Mapping[str, torch.Tensor]) -> Any:
        """Run the whole space on meta tensors of the inputs' shapes."""
        given = [self.symbol(item) for item in args], {name: self.symbol(item) for name, item in kwargs.items()}
        self._learned = shares_memory_of([*space.parameters()])
        with in_evaluation(space), calls_to(self.run, space), torch.inference_mode():
            return self.run(space, tuple(given[0]), given[1])

    def symbol(self, tensor: torch.Tensor) -> SymbolicTensor:
        """Make a symbolic tensor that is the same for all networks."""
        return SymbolicTensor(self, Varying.constant(TensorSpec.of(tensor)))

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a module; what it computes is noted. The same module on the same inputs is looked up."""
        symbols = list(symbols_in([args, kwargs]))
        rest = self._signatures.of_value(replace_symbols([args, dict(kwargs)], iter(range(len(symbols)))))
        key = (self._signatures.of(module), rest, tuple(symbol.spec.key for symbol in symbols))
        if key not in self._runs:
            self._kept.append(module)
            with self.aside() as records:
                result = self._dispatch(module, args, dict(kwargs))
            self._runs[key] = (self.choices.joined(records), result)
        records, result = self._runs[key]
        self.records.extend(records)
        # A copy of lists, because forwards may append to them.
        return replace_symbols(result, iter(list(symbols_in(result))))

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch once for every distinct combination of shapes."""
        symbols = list(symbols_in([args, kwargs]))
        bare = replace_symbols([args, kwargs], iter(range(len(symbols))))
        plain = self._signatures.of_value(bare)
        real = tuple(TensorSpec.of(tensor, self._learned) for tensor in tensors_in(bare))

        def once(*specs: TensorSpec) -> tuple[tuple[OpSpec, ...], Any]:
            key = (function, plain, real, specs)
            if key not in self._traces:
                self._kept.append(function)
                given = _on_meta(replace_symbols([args, kwargs], iter([spec.make() for spec in specs])), self._learned)
                learned = shares_memory_of([tensor for tensor in tensors_in(given) if is_parameter(tensor)])
                with user_code():
                    result = function(*given[0], **given[1])
                name = getattr(function, "__name__", str(function))
                op = describe_call(name, tuple(given[0]), given[1], result, learned)
                self._traces[key] = ((op,) if op else (), pack(result, learned))
            return self._traces[key]

        return self.note(self.choices.combine([symbol.spec for symbol in symbols], once))

    def operators(self, module: nn.Module, specs: Sequence[TensorSpec], by: By | None = None) -> tuple[OpSpec, ...]:
        """List the operators of a module without choices on inputs that are known."""
        signature = self._signatures.of(module)
        key = (signature, by, tuple(specs))
        if key not in self._traces:
            self._kept.append(module)
            places = [SymbolicTensor(self, Varying.constant(spec)) for spec in specs]
            self._traces[key] = self._trace(module, signature, [places, {}], specs, by)
        return self._traces[key][0]

    def note(self, done: Varying) -> Any:
        """Note the operators of ``(operators, result)`` and return the result, in symbolic form."""
        ops = self.choices.combine([done], lambda pair: pair[0])
        if any(isinstance(value, Invalid) or value for value in ops.values):
            self.records.append(ops)
        return self._unpack(self.choices.combine([done], lambda pair: pair[1]))

    @contextlib.contextmanager
    def aside(self) -> Iterator[list[Varying]]:
        """Note operators in a separate list."""
        outer, self.records = self.records, []
        try:
            yield self.records
        finally:
            self.records = outer

    def where(self, condition: Varying, run: Callable[[], Any]) -> Any:
        """Run something for all networks; its operators count where a condition holds, its result is the same."""
        with self.aside() as records:
            result = run()
        nothing = Varying.constant(())
        self.records.extend(
            self.choices.switch(condition, {True: ops, False: nothing}) for ops in self.choices.joined(records)
        )
        return result

    def select(self, choice: Varying, cases: Mapping[Any, Callable[[], Any]]) -> Any:
        """Run all cases of a choice; the operators of each count where it is chosen, and so does its result."""
        results: dict[Any, Any] = {}
        noted: dict[tuple[str, ...], dict[Any, Varying]] = {}
        for value, run in cases.items():
            with self.aside() as records:
                try:
                    results[value] = run()
                except ImpossibleError as error:
                    results[value] = Invalid(str(error))
                    records[:] = [Varying.constant(results[value])]
            for ops in self.choices.joined(records):
                noted.setdefault(ops.labels, {})[value] = ops
        nothing = dict.fromkeys(cases, Varying.constant(()))
        kept = [self.choices.switch(choice, {**nothing, **found}) for found in noted.values()]
        self.records.extend(self.choices.joined(kept))
        return self._merge(choice, results)

    def expression(self, value: Any) -> Varying:
        """Return an argument of a module by the choices that it depends on."""
        if not isinstance(value, Mutable):
            return Varying.constant(as_key(value))
        if id(value) not in self._expressions:
            self._kept.append(value)
            labels = list(value.simplify())
            self._expressions[id(value)] = self.choices.enumerated(labels, functools.partial(self._freeze, value))
        return self._expressions[id(value)]

    def _freeze(self, value: Any, sample: dict[str, Any]) -> Any:
        with user_code():
            return as_key(value.freeze(self._raw(sample)))

    def _dispatch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for kind, handler in self._handlers:
            if isinstance(module, kind):
                return handler(self, module, *args, **kwargs)
        if not self._has_choices(module):
            return self._made((), lambda: module, args, kwargs)
        if isinstance(module, ParametrizedModule) and module.mutables:
            return self._parametrised(module, args, kwargs)
        if isinstance(module, MutableModule) and (module.mutables or type(module).freeze is not MutableModule.freeze):
            return self._enumerated(module, args, kwargs)
        try:
            with self.aside() as records:
                result = module.forward(*args, **kwargs)
        except NotSymbolicError:
            return self._enumerated(module, args, kwargs)
        self.records.extend(records)
        return result

    def _has_choices(self, module: nn.Module) -> bool:
        if id(module) not in self._mutable:
            self._kept.append(module)
            self._mutable[id(module)] = any(
                isinstance(part, MutableModule) and (part.mutables or isinstance(part, self._handled))
                for part in module.modules()
            )
        return self._mutable[id(module)]

    @property
    def _handled(self) -> tuple[type, ...]:
        return tuple(kind for kind, _ in self._handlers)

    def _parametrised(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a module for every distinct combination of its arguments."""
        names = [*range(len(module.trace_args)), *module.trace_kwargs]
        values = [*module.trace_args, *module.trace_kwargs.values()]
        searched = [name for name, value in zip(names, values, strict=True) if isinstance(value, Mutable)]
        parts = [self.expression(value) for value in values if isinstance(value, Mutable)]
        if any(isinstance(part, MutableModule) and part.mutables for part in module.modules() if part is not module):
            return self._enumerated(module, args, kwargs)

        def make(*chosen: Any) -> nn.Module:
            given = dict(zip(names, values, strict=True)) | dict(zip(searched, chosen, strict=True))
            positional = [given[name] for name in names if isinstance(name, int)]
            keywords = {name: value for name, value in given.items() if isinstance(name, str)}
            kind = module._bound_type or type(module)
            with user_code(), torch.device("meta"), model_context({}):
                made: nn.Module = kind(*positional, **keywords)
            return made

        return self._made(parts, make, args, kwargs)

    def _enumerated(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Freeze a module for every combination of its choices."""
        labels = list(_labels_of(module))
        shadow = copy.deepcopy(module).to("meta")

        def make(*chosen: Any) -> nn.Module:
            with user_code(), torch.device("meta"):
                frozen: nn.Module = recursive_freeze(shadow, self._raw(dict(zip(labels, chosen, strict=True))))[0]
            return frozen

        return self._made([self.choices.label(label) for label in labels], make, args, kwargs)

    def _made(
        self,
        parts: Sequence[Varying],
        make: Callable[..., nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run what `make` returns for the choices, for every distinct combination of it and the inputs' shapes."""
        symbols = list(symbols_in([args, kwargs]))
        plain = self._signatures.of_value(replace_symbols([args, kwargs], iter(range(len(symbols)))))

        def once(*items: Any) -> tuple[tuple[OpSpec, ...], Any]:
            module = make(*items[: len(parts)])
            specs = items[len(parts) :]
            self._kept.append(module)
            key = (self._signatures.of(module), plain, specs)
            if key not in self._traces:
                self._traces[key] = self._trace(module, key[0], [args, kwargs], specs)
            return self._traces[key]

        return self.note(self.choices.combine([*parts, *(symbol.spec for symbol in symbols)], once))

    def _trace(
        self,
        module: nn.Module,
        signature: Hashable,
        given: list[Any],
        specs: Sequence[TensorSpec],
        by: By | None = None,
    ) -> tuple[tuple[OpSpec, ...], Any]:
        if signature not in self._shadows:
            self._shadows[signature] = copy.deepcopy(module).to("meta").eval()
        args, kwargs = replace_symbols(given, iter([spec.make() for spec in specs]))
        shadow = self._shadows[signature]
        with user_code():
            found, result = self._run(shadow, tuple(args), kwargs, by or self._by)
        own = [tensor for tensor in (*shadow.parameters(), *tensors_in([args, kwargs])) if is_parameter(tensor)]
        return tuple(item.op for item in found.operators), pack(result, shares_memory_of(own))

    def _run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], by: By) -> tuple[Trace, Any]:
        try:
            return run_traced(module, args, kwargs, by)
        except RuntimeError:  # torch has no other class for channels that do not fit
            if not self._elastic:
                raise
        _stretch(module, args, kwargs)
        return run_traced(module, args, kwargs, by)

    def _unpack(self, packed: Varying) -> Any:
        """Turn a varying structure of specs into a structure of symbolic tensors."""
        known = [value for value in packed.values if not isinstance(value, Invalid)]
        if not known:
            raise ImpossibleError(packed.values[0].reason)
        first = known[0]
        if isinstance(first, TensorSpec):
            return SymbolicTensor(self, packed)
        if isinstance(first, Nested):
            if any(not first.is_like(value) for value in known):
                raise NotSymbolicError("It returns different structures.")
            return first.made(
                [
                    self._unpack(self.choices.combine([packed], lambda value, place=place: value.items[place]))
                    for place in range(len(first.items))
                ]
            )
        if len(known) > 1:
            raise NotSymbolicError(f"It depends on {', '.join(packed.labels)}.")
        return first

    def _merge(self, choice: Varying, results: Mapping[Any, Any]) -> Any:
        """Return the result of the case that is chosen."""
        possible = {value: other for value, other in results.items() if not isinstance(other, Invalid)}
        if not possible:
            raise ImpossibleError(next(iter(results.values())).reason)
        opened = {value: open_nested(other) for value, other in possible.items()}
        first = next(iter(possible.values()))
        nested = open_nested(first)
        if nested is not None:
            if any(not nested.is_like(other) for other in opened.values()):
                raise NotSymbolicError("The candidates return different structures.")
            parts = (
                {value: other.items[place] for value, other in opened.items() if other}
                for place in range(len(nested.items))
            )
            return nested.made([self._merge(choice, {**results, **part}) for part in parts])
        if all(isinstance(other, SymbolicTensor) for other in possible.values()):
            impossible = {value: Varying.constant(other) for value, other in results.items() if value not in possible}
            specs = {value: other.spec for value, other in possible.items()}
            return SymbolicTensor(self, self.choices.switch(choice, impossible | specs))
        if all(
            other is first or (not isinstance(other, SymbolicTensor) and other == first) for other in possible.values()
        ):
            return first
        raise NotSymbolicError("The candidates return different kinds of things.")


def _labels_of(module: nn.Module) -> dict[str, Any]:
    """List the labels of a module and everything in it, in order."""
    found: dict[str, Any] = {}
    for part in module.modules():
        if isinstance(part, MutableModule):
            for mutable in part.mutables:
                found.update(mutable.simplify())
    return found


def _on_meta(value: Any, learned: Learned) -> Any:
    """Replace real tensors by meta ones of their shape, and views of parameters by parameters."""
    if isinstance(value, torch.Tensor):
        spec = TensorSpec.of(value, learned)
        return value if value.is_meta and spec.learned == is_parameter(value) else spec.make()
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([_on_meta(item, learned) for item in value])
    if isinstance(value, Mapping):
        return {name: _on_meta(item, learned) for name, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value


def _stretch(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make convolutions and linear layers without groups take as many channels as their input has."""

    def fit(part: Any, given: tuple[Any, ...]) -> None:
        channels = given[0].shape[-1 if isinstance(part, nn.Linear) else 1]
        if part.weight.shape[1] != channels:
            shape = (part.weight.shape[0], channels, *part.weight.shape[2:])
            part.weight = nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)

    handles = [
        part.register_forward_pre_hook(fit)
        for part in module.modules()
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1)
    ]
    module(*args, **kwargs)
    for handle in handles:
        handle.remove()


class Signatures:
    """Computes and remembers signatures of modules. Not thread-safe."""

    def __init__(self) -> None:
        self._modules: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        # Objects that are identified by `id` stay alive.
        self._kept: list[Any] = []

    def of(self, module: nn.Module) -> Hashable:
        """Return a value that is equal for modules that compute the same on the same inputs."""
        if id(module) not in self._modules:
            self._kept.append(module)
            # A cycle of modules ends here.
            self._modules[id(module)] = ("itself", len(self._modules))
            attributes = [
                (name, self.of_value(value))
                for name, value in sorted(vars(module).items())
                # NNI makes an empty list of mutables when it is asked for one.
                if name not in _NEEDLESS and (name != "_mutables" or value)
            ]
            tensors = [
                (name, None if tensor is None else (tuple(tensor.shape), tensor.dtype))
                for store in (module._parameters, module._buffers)
                for name, tensor in store.items()
            ]
            parts = [(name, None if part is None else self.of(part)) for name, part in module._modules.items()]
            whole = (type(module), tuple(attributes), tuple(tensors), tuple(parts))
            # A number instead, so that keys stay short however deep the module is.
            self._modules[id(module)] = self._numbers.setdefault(whole, len(self._numbers))
        return self._modules[id(module)]

    def of_value(self, value: Any) -> Hashable:
        """Return the same for an attribute or argument."""
        if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
            return type(value).__name__, value
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value).__name__, tuple(self.of_value(item) for item in value)
        if isinstance(value, Mapping):
            return "mapping", tuple((str(name), self.of_value(item)) for name, item in value.items())
        if isinstance(value, nn.Module):
            return "module", self.of(value)
        if isinstance(value, torch.Tensor):
            return "tensor", tuple(value.shape), str(value.dtype)
        if isinstance(value, LabeledMutable):
            return "mutable", repr(value)
        if isinstance(value, label_scope):
            return "scope", value.name
        if isinstance(value, functools.partial):
            return "partial", self.of_value(value.func), self.of_value(value.args), self.of_value(value.keywords)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, CellBuilder):
            # Nothing else of the builder of NNI's own cells goes into an operator.
            return (
                "builder",
                value.__func__.__qualname__,
                value.__self__.drop_path_prob,
                value.__self__.num_predecessors,
            )
        if isinstance(value, types.MethodType):
            return "method", value.__func__.__qualname__, self._identity(value.__self__)
        return self._identity(value)

    def _identity(self, value: Any) -> Hashable:
        self._kept.append(value)
        return "object", id(value)
