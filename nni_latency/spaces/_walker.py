# SPDX-License-Identifier: Apache-2.0
"""`Walker`: one symbolic forward pass through a model space finds the operators of all its networks."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.operators import (
    By,
    DescribesItself,
    Flow,
    Learned,
    OpSpec,
    describe_call,
    flow_of_call,
    is_parameter,
    run_traced,
    shares_memory_of,
    tensors_in,
)
from nni_latency.spaces._nni import (
    Mutable,
    MutableModule,
    ParametrizedModule,
    model_context,
    recursive_freeze,
)
from nni_latency.spaces._signatures import Signatures
from nni_latency.spaces._steps import (
    ALWAYS,
    NEVER,
    NOTHING,
    UNKNOWN,
    Memory,
    Part,
    Scope,
    Step,
    both,
    counted,
    is_chosen,
    steps_of,
    used_steps,
)
from nni_latency.spaces._symbolic import (
    Nested,
    NotSymbolicError,
    SymbolicTensor,
    TensorSpec,
    calls_to,
    in_evaluation,
    open_nested,
    pack,
    replace_symbols,
    symbols_in,
)
from nni_latency.spaces._varying import (
    Choices,
    ImpossibleError,
    Invalid,
    TooManyChoicesError,
    Varying,
    as_key,
    user_code,
)

#: Runs a module of a certain class symbolically, instead of its forward.
Handler = Callable[..., Any]


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
    runs_unused : bool, default=True
        Whether operators that no output depends on count.

    Attributes
    ----------
    follows : bool
        Whether it follows which operators an output depends on.
    """

    def __init__(
        self,
        choices: Choices,
        raw: Callable[[dict[str, Any]], dict[str, Any]],
        by: By = "module",
        handlers: Sequence[tuple[type, Handler]] = (),
        *,
        elastic: bool = False,
        runs_unused: bool = True,
    ) -> None:
        self.choices = choices
        self.follows = not runs_unused
        self._scope = Scope()
        self._raw = raw
        self._by = by
        self._handlers = tuple(handlers)
        self._elastic = elastic
        self._signatures = Signatures()
        self._runs: dict[Hashable, Part] = {}
        self._traces: dict[Hashable, tuple[Flow, Any]] = {}
        self._expressions: dict[int, Varying] = {}
        self._shadows: dict[Hashable, nn.Module] = {}
        self._mutable: dict[int, bool] = {}
        self._learned: Learned = is_parameter
        # Objects that are identified by `id` stay alive, so that no other object gets the same one.
        self._kept: list[Any] = []

    def walk(self, space: nn.Module, args: Sequence[torch.Tensor], kwargs: Mapping[str, torch.Tensor]) -> list[Varying]:
        """Run the whole space on meta tensors of the inputs' shapes, and return its operators by choices."""
        given = [self.symbol(item) for item in args], {name: self.symbol(item) for name, item in kwargs.items()}
        self._learned = shares_memory_of([*space.parameters()])
        with in_evaluation(space), calls_to(self.run, space), torch.inference_mode():
            result = self.run(space, tuple(given[0]), given[1])
        steps = self._scope.steps
        # All count where it is unknown what makes the output.
        ends = {symbol.memory.step for symbol in symbols_in(result)}.intersection([*steps, UNKNOWN]) or steps
        used = used_steps(self.choices, steps, ends)
        if used.get(UNKNOWN, NEVER).values != (False,):
            raise TooManyChoicesError(
                "The networks cannot be followed: an operator works in place on a tensor that is another one for some "
                "choices."
            )
        return counted(self.choices, steps, used)

    def symbol(self, tensor: torch.Tensor) -> SymbolicTensor:
        """Make a symbolic tensor that is the same for all networks."""
        return SymbolicTensor(self, Varying.constant(TensorSpec.of(tensor)))

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a module; what it computes is noted. The same module on inputs of the same shapes is looked up."""
        symbols = list(symbols_in([args, kwargs]))
        rest = self._signatures.of_value(replace_symbols([args, dict(kwargs)], iter(range(len(symbols)))))
        memories = list(dict.fromkeys(symbol.memory for symbol in symbols))
        places = tuple(memories.index(symbol.memory) for symbol in symbols)
        key = (self._signatures.of(module), rest, tuple(symbol.spec.key for symbol in symbols), places)
        if key not in self._runs:
            self._kept.append(module)
            starts = [Step() for _ in memories]
            given = list(map(Memory, starts))
            new = (SymbolicTensor(self, symbol.spec, given[n]) for symbol, n in zip(symbols, places, strict=True))
            with self.aside() as scope:
                result = self._dispatch(module, *replace_symbols([args, dict(kwargs)], new))
            made = dict.fromkeys(symbol.memory for symbol in symbols_in(result))
            known = {*given, *made}
            links = {
                memory: {other: same for other, same in memory.links(self.choices).items() if other in known}
                for memory in made
            }
            part = Part(given, starts, scope.steps, result, links)
            part.shorten(self.choices, made)
            self._runs[key] = part
        return self._replay(self._runs[key], memories)

    def _replay(self, part: Part, given: Sequence[Memory]) -> Any:
        """Note the steps of a part on other tensors."""
        steps = {NOTHING: NOTHING, UNKNOWN: UNKNOWN}
        steps.update(zip(part.starts, [memory.step for memory in given], strict=True))

        def now(step: Step) -> Step:
            if step not in steps and self.follows:
                raise TooManyChoicesError("The networks cannot be followed: a module takes what another one has kept.")
            return steps.get(step, NOTHING)

        for step in part.steps:
            steps[step] = self.step(step.operators, [(now(source), taken) for source, taken in step.takes], step.kept)
        memories = dict(zip(part.given, given, strict=True))
        for start, (then, memory) in zip(part.starts, memories.items(), strict=True):
            if then.step is not start:
                self.write(memory, now(then.step))
        results = list(symbols_in(part.result))
        for symbol in results:
            if symbol.memory not in memories:
                memories[symbol.memory] = Memory(now(symbol.memory.step))
        for memory, links in part.links.items():
            for other, same in links.items():
                memories[memory].is_same(self.choices, memories[other], same)
        # A copy of lists, because forwards may append to them.
        copies = (SymbolicTensor(self, symbol.spec, memories[symbol.memory]) for symbol in results)
        return replace_symbols(part.result, copies)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch once for every distinct combination of shapes."""
        symbols = list(symbols_in([args, kwargs]))
        bare = replace_symbols([args, kwargs], iter(range(len(symbols))))
        plain = self._signatures.of_value(bare)
        real = tuple(TensorSpec.of(tensor, self._learned) for tensor in tensors_in(bare))

        def once(*specs: TensorSpec) -> tuple[Flow, Any]:
            key = (function, plain, real, specs)
            if key not in self._traces:
                self._kept.append(function)
                made = [spec.make() for spec in specs]
                given = _on_meta(replace_symbols([args, kwargs], iter(made)), self._learned)
                learned = shares_memory_of([tensor for tensor in tensors_in(given) if is_parameter(tensor)])
                with user_code():
                    result = function(*given[0], **given[1])
                name = getattr(function, "__name__", str(function))
                op = describe_call(name, tuple(given[0]), given[1], result, learned)
                self._traces[key] = flow_of_call(op, given, result, made), pack(result, learned)
            return self._traces[key]

        return self._note(self.choices.combine([symbol.spec for symbol in symbols], once), symbols)

    def operators(self, module: nn.Module, specs: Sequence[TensorSpec], by: By | None = None) -> tuple[OpSpec, ...]:
        """List the operators of a module without choices on inputs that are known."""
        signature = self._signatures.of(module)
        key = (signature, by, tuple(specs))
        if key not in self._traces:
            self._kept.append(module)
            places = [SymbolicTensor(self, Varying.constant(spec)) for spec in specs]
            self._traces[key] = self._trace(module, signature, [places, {}], specs, by)
        return self._traces[key][0].operators

    def step(self, operators: Sequence[Varying], takes: Sequence[tuple[Step, Varying]], kept: Varying = NEVER) -> Step:
        """Note operators that count in the same networks, and the steps whose results they take."""
        sources = tuple((source, taken) for source, taken in takes if source is not NOTHING)
        step = Step(tuple(operators), sources, kept) if self.follows else Step(tuple(operators), (), ALWAYS)
        self._scope.steps.append(step)
        return step

    def whole(self, run: Callable[[], Any], takes: Sequence[tuple[SymbolicTensor, Varying]]) -> Any:
        """Run something whose operators count where its result does; it takes some tensors where conditions hold.

        What it does to these tensors in place is not followed.
        """
        sources = [(symbol.memory.step, taken) for symbol, taken in takes]
        with self.aside() as scope:
            result = run()
        step = self.step(self.choices.joined([ops for part in scope.steps for ops in part.operators]), sources)
        scope.undo()
        own = set(scope.steps)
        for memory in scope.before if self.follows else ():
            if memory.step not in own:
                self.write(memory, UNKNOWN)
        made = (SymbolicTensor(self, symbol.spec, Memory(step)) for symbol in symbols_in(result))
        return replace_symbols(result, made)

    def write(self, memory: Memory, step: Step) -> None:
        """Note that a step writes to memory, and to what is the same for some choices."""
        self._scope.write(memory, step)
        for other, same in memory.links(self.choices).items():
            if same is None:
                self._scope.write(other, UNKNOWN)
            else:
                differs = self.choices.combine([same], operator.not_)
                self._scope.write(other, self.step((), [(step, same), (other.step, differs)]))

    @contextlib.contextmanager
    def aside(self) -> Iterator[Scope]:
        """Note steps in a separate list; what they write to memory is undone if it fails."""
        outer, self._scope = self._scope, Scope()
        try:
            yield self._scope
        except BaseException:
            self._scope.undo()
            raise
        finally:
            self._scope = outer

    def select(self, choice: Varying, cases: Mapping[Any, Callable[[], Any]]) -> Any:
        """Run all cases of a choice; the operators of each count where it is chosen, and so does its result."""
        results: dict[Any, Any] = {}
        chosen = {value: is_chosen(choice, value) for value in cases} if self.follows else {}
        written: dict[Memory, dict[Any, Step]] = {}
        scopes, age = [], Memory().age
        for value, run in cases.items():
            with self.aside() as scope:
                try:
                    result = run()
                except ImpossibleError as error:
                    scope.undo()
                    scope.steps, scope.before = [Step((Varying.constant(Invalid(str(error))),), (), ALWAYS)], {}
                    result = Invalid(str(error))
            copies = (SymbolicTensor(self, item.spec, item.memory.seen_since(age)) for item in symbols_in(result))
            results[value] = replace_symbols(result, copies)
            for memory in scope.before:
                written.setdefault(memory, {})[value] = memory.step
            scope.undo()
            scopes.append(scope.steps)
        self._condition(choice, chosen, dict(zip(cases, scopes, strict=True)))
        for memory, steps in written.items():
            self._scope.write(memory, self._either({value: steps.get(value, memory.step) for value in cases}, chosen))
        return self._merge(choice, chosen, results)

    def _condition(self, choice: Varying, chosen: Mapping[Any, Varying], cases: Mapping[Any, Sequence[Step]]) -> None:
        """Note the steps of all cases of a choice; they count where theirs is chosen."""
        nothing = dict.fromkeys(cases, Varying.constant(()))
        if not self.follows:
            noted: dict[tuple[str, ...], dict[Any, Varying]] = {}
            for value, steps in cases.items():
                for ops in self.choices.joined([ops for step in steps for ops in step.operators]):
                    noted.setdefault(ops.labels, {})[value] = ops
            self.step([self.choices.switch(choice, {**nothing, **found}) for found in noted.values()], ())
            return
        for value, steps in cases.items():
            for step in steps:
                step.operators = tuple(self.choices.switch(choice, {**nothing, value: ops}) for ops in step.operators)
                step.kept = both(self.choices, chosen[value], step.kept)
            self._scope.steps += steps

    def _either(self, cases: Mapping[Any, Step], chosen: Mapping[Any, Varying]) -> Step:
        """Return a step that takes the result of the step of the case that is chosen."""
        return self.step((), [(step, chosen[value]) for value, step in cases.items()]) if self.follows else NOTHING

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
        if self._by == "module" and isinstance(module, DescribesItself):
            return self._enumerated(module, args, kwargs)  # it is one operator
        try:
            with self.aside() as scope:
                result = module.forward(*args, **kwargs)
        except NotSymbolicError:
            return self._enumerated(module, args, kwargs)
        self._scope.extend(scope)
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

        def once(*items: Any) -> tuple[Flow, Any]:
            module = make(*items[: len(parts)])
            specs = items[len(parts) :]
            self._kept.append(module)
            key = (self._signatures.of(module), plain, specs)
            if key not in self._traces:
                self._traces[key] = self._trace(module, key[0], [args, kwargs], specs)
            return self._traces[key]

        return self._note(self.choices.combine([*parts, *(symbol.spec for symbol in symbols)], once), symbols)

    def _note(self, done: Varying, given: Sequence[SymbolicTensor]) -> Any:
        """Note the operators of ``(flow, result)`` on some tensors, and return the result in symbolic form."""
        result = self._unpack(self.choices.combine([done], lambda pair: pair[1]))
        flows = self.choices.combine([done], lambda pair: pair[0])
        if not self.follows:
            self.step([self.choices.combine([flows], lambda flow: flow.operators)], ())
            return result
        sources = [symbol.memory.step for symbol in given]
        steps = steps_of(self.choices, flows, sources)
        self._scope.steps += steps.all
        for symbol, writer in zip(symbols_in(result), steps.results, strict=True):
            symbol.memory = Memory(writer) if isinstance(writer, Step) else given[writer].memory
        for symbol, source, writer in zip(given, sources, steps.given, strict=True):
            if writer is not source:
                self.write(symbol.memory, writer)
        return result

    def _trace(
        self,
        module: nn.Module,
        signature: Hashable,
        given: list[Any],
        specs: Sequence[TensorSpec],
        by: By | None = None,
    ) -> tuple[Flow, Any]:
        if signature not in self._shadows:
            self._shadows[signature] = copy.deepcopy(module).to("meta").eval()
        made = [spec.make() for spec in specs]
        args, kwargs = replace_symbols(given, iter(made))
        shadow = self._shadows[signature]
        with user_code():
            flow, result = self._run(shadow, tuple(args), kwargs, by or self._by, made)
        own = [tensor for tensor in (*shadow.parameters(), *tensors_in([args, kwargs])) if is_parameter(tensor)]
        return flow, pack(result, shares_memory_of(own))

    def _run(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], by: By, given: Sequence[torch.Tensor]
    ) -> tuple[Flow, Any]:
        try:
            return run_traced(module, args, kwargs, by, given)
        except RuntimeError:  # torch has no other class for channels that do not fit
            if not self._elastic:
                raise
        _stretch(module, args, kwargs)
        return run_traced(module, args, kwargs, by, given)

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

    def _merge(self, choice: Varying, chosen: Mapping[Any, Varying], results: Mapping[Any, Any]) -> Any:
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
            return nested.made([self._merge(choice, chosen, {**results, **part}) for part in parts])
        if all(isinstance(other, SymbolicTensor) for other in possible.values()):
            impossible = {value: Varying.constant(other) for value, other in results.items() if value not in possible}
            specs = {value: other.spec for value, other in possible.items()}
            memory = Memory(self._either({value: other.memory.step for value, other in possible.items()}, chosen))
            for value, where in chosen.items():
                for source in possible[value].memory.same if value in possible else ():
                    memory.is_same(self.choices, source, where)
            return SymbolicTensor(self, self.choices.switch(choice, impossible | specs), memory)
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
