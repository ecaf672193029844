# SPDX-License-Identifier: Apache-2.0
"""`Walker`: one symbolic forward pass through a model space finds the operators of all its networks."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.operators import (
    By,
    DescribesItself,
    Flow,
    shares_memory_of,
)
from nni_latency.spaces._neighbours import NOBODY, Neighbours
from nni_latency.spaces._nni import (
    Mutable,
    MutableModule,
    ParametrizedModule,
    model_context,
    recursive_freeze,
)
from nni_latency.spaces._step_log import Part, StepLog
from nni_latency.spaces._steps import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    Memory,
    Step,
    counted,
    is_chosen,
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
    opened,
    replace_symbols,
    symbols_in,
)
from nni_latency.spaces._tracer import Tracer
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
    neighbours : Neighbours, optional
        Operators with costs beside neighbours, which are noted as well.

    Attributes
    ----------
    log : StepLog
        The steps noted so far.
    tracer : Tracer
        Runs what has no choices.
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
        neighbours: Neighbours | None = None,
    ) -> None:
        self.choices = choices
        self.log = StepLog(choices, keeps=runs_unused, neighbours=neighbours)
        self._raw = raw
        self._by = by
        self._handlers = tuple(handlers)
        self.tracer = Tracer(by, elastic=elastic)
        self._runs: dict[Hashable, Part] = {}
        self._expressions: dict[int, Varying] = {}
        self._mutable: dict[int, bool] = {}
        # Objects that are identified by `id` stay alive, so that no other object gets the same one.
        self._kept: list[Any] = []

    def walk(self, space: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Varying]:
        """Run the whole space on meta tensors of the inputs' shapes, and return its operators by choices."""
        given = [self.symbol(item) for item in args], {name: self.symbol(item) for name, item in kwargs.items()}
        self.tracer.learned = shares_memory_of([*space.parameters()])
        with in_evaluation(space), calls_to(self.run, space), torch.inference_mode():
            result = self.run(space, tuple(given[0]), given[1])
        steps = self.log.scope.steps
        # All count where it is unknown what makes the output.
        known = [*steps, *(symbol.memory.step for symbol in symbols_in(given)), UNKNOWN]
        ends = {symbol.memory.step for symbol in symbols_in(result)}.intersection(known) or steps
        used = used_steps(self.choices, steps, ends)
        if used.get(UNKNOWN, NEVER).values != (False,):
            raise TooManyChoicesError(
                "The networks cannot be followed: an operator works in place on a tensor that is another one for some "
                "choices."
            )
        return counted(self.choices, steps, used)

    def symbol(self, tensor: Any) -> Any:
        """Make a symbolic tensor that is the same for all networks; of a list or tuple of tensors, one of each."""
        if isinstance(tensor, (list, tuple)):
            return type(tensor)(map(self.symbol, tensor))
        return SymbolicTensor(self, Varying.constant(TensorSpec.of(tensor)), Memory(Step()))

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a module; what it computes is noted. The same module on inputs of the same shapes is looked up."""
        symbols, memories, bare = opened([args, dict(kwargs)])
        key = (
            self.tracer.signatures.of(module),
            self.tracer.signatures.of_value(bare),
            tuple(symbol.spec.key for symbol in symbols),
            tuple(memory.makers.key for memory in memories),
        )
        if key not in self._runs:
            starts = [Step() for _ in memories]
            given = [Memory(start, makers=memory.makers) for start, memory in zip(starts, memories, strict=True)]
            stand_in = dict(zip(memories, given, strict=True))
            new = (SymbolicTensor(self, symbol.spec, stand_in[symbol.memory]) for symbol in symbols)
            with self.log.aside() as scope:
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
        part = self._runs[key]
        now = self.log.replay(part, memories)
        # A copy of lists, because forwards may append to them.
        copies = (SymbolicTensor(self, symbol.spec, now[symbol.memory]) for symbol in symbols_in(part.result))
        return replace_symbols(part.result, copies)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch once for every distinct combination of shapes."""
        symbols, memories, _ = opened([args, kwargs])

        def once(*specs: TensorSpec) -> tuple[Flow, Any]:
            return self.tracer.function(function, [args, kwargs], specs)

        return self._note(self.choices.combine([symbol.spec for symbol in symbols], once), memories)

    def flow(self, module: nn.Module, specs: Sequence[TensorSpec], by: By | None = None) -> Flow:
        """Return the operators of a module without choices on inputs that are known."""
        given = [[SymbolicTensor(self, Varying.constant(spec)) for spec in specs], {}]
        return self.tracer.module(module, given, specs, by)[0]

    def whole(self, run: Callable[[], Any], takes: Sequence[tuple[SymbolicTensor, Varying]]) -> Any:
        """Run something whose operators count where its result does; it takes some tensors where conditions hold.

        What it does to these tensors in place is not followed.
        """
        sources = [(symbol.memory.step, taken) for symbol, taken in takes]
        with self.log.aside() as scope:
            result = run()
        makers = [symbol.memory.makers for symbol in symbols_in(result)]
        step = self.log.step(self.choices.joined([ops for part in scope.steps for ops in part.operators]), sources)
        scope.undo()
        own = set(scope.steps)
        for memory in scope.before if self.log.follows else ():
            if memory.step not in own:
                self.log.write(memory, UNKNOWN, NOBODY)
        made = (
            SymbolicTensor(self, symbol.spec, Memory(step, makers=ways))
            for symbol, ways in zip(symbols_in(result), makers, strict=True)
        )
        return replace_symbols(result, made)

    def select(self, choice: Varying, cases: Mapping[Any, Callable[[], Any]]) -> Any:
        """Run all cases of a choice; the operators of each count where it is chosen, and so does its result."""
        results: dict[Any, Any] = {}
        chosen = {value: is_chosen(choice, value) for value in cases} if self.log.follows else {}
        written: dict[Memory, dict[Any, tuple[Step, Varying]]] = {}
        scopes, age = [], Memory().age
        for value, run in cases.items():
            with self.log.aside() as scope:
                try:
                    result = run()
                except ImpossibleError as error:
                    scope.undo()
                    scope.steps, scope.before = [Step((Varying.constant(Invalid(str(error))),), (), ALWAYS)], {}
                    result = Invalid(str(error))
            items = list(symbols_in(result))
            often = Counter(item.memory for item in items)
            copies = (item.memory.seen_since(age, often[item.memory]) for item in items)
            results[value] = replace_symbols(
                result, (SymbolicTensor(self, item.spec, memory) for item, memory in zip(items, copies, strict=True))
            )
            for memory in scope.before:
                written.setdefault(memory, {})[value] = memory.step, memory.makers
            scope.undo()
            scopes.append(scope.steps)
        self.log.select(choice, chosen, dict(zip(cases, scopes, strict=True)))
        for memory, changes in written.items():
            then = {value: changes.get(value, (memory.step, memory.makers)) for value in cases}
            step = self.log.either({value: step for value, (step, _) in then.items()}, chosen)
            self.log.scope.write(memory, step, self._switch(choice, {value: ways for value, (_, ways) in then.items()}))
        return self._merge(choice, chosen, results)

    def _switch(self, choice: Varying, makers: Mapping[Any, Varying]) -> Varying:
        """Return the makers of a tensor by those of all cases."""
        return self.choices.switch(choice, makers) if self.log.neighbours else NOBODY

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
            with self.log.aside() as scope:
                result = module.forward(*args, **kwargs)
        except NotSymbolicError:
            return self._enumerated(module, args, kwargs)
        self.log.scope.extend(scope)
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
        symbols, memories, _ = opened([args, kwargs])

        def once(*items: Any) -> tuple[Flow, Any]:
            return self.tracer.module(make(*items[: len(parts)]), [args, kwargs], items[len(parts) :])

        return self._note(self.choices.combine([*parts, *(symbol.spec for symbol in symbols)], once), memories)

    def _note(self, done: Varying, given: Sequence[Memory]) -> Any:
        """Note the operators of ``(flow, result)`` on some memory, and return the result in symbolic form."""
        result = self._unpack(self.choices.combine([done], lambda pair: pair[1]))
        flows = self.choices.combine([done], lambda pair: pair[0])
        for symbol, memory in zip(symbols_in(result), self.log.flow(flows, given), strict=False):
            symbol.memory = memory
        return result

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
            makers = {value: other.memory.makers for value, other in possible.items()}
            memory = Memory(
                self.log.either({value: other.memory.step for value, other in possible.items()}, chosen),
                makers=self._switch(choice, {**dict.fromkeys(results, NOBODY), **makers}),
            )
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
