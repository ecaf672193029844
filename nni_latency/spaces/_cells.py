# SPDX-License-Identifier: Apache-2.0
"""How the choices and cells of NNI run on symbolic tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.estimators import Derived
from nni_latency.spaces._nni import (
    Cell,
    CellBuilder,
    ChosenInputs,
    InputChoice,
    LayerChoice,
    Repeat,
    create_cell_op_candidates,
    preprocess_cell_inputs,
)
from nni_latency.spaces._steps import ALWAYS
from nni_latency.spaces._varying import Varying
from nni_latency.spaces._walker import Handler, Walker


def run_layer_choice(walker: Walker, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Run every candidate."""
    cases = {name: functools.partial(walker.run, module[name], args, kwargs) for name in module.names}
    return walker.select(walker.choices.label(module.label), cases)


def run_input_choice(walker: Walker, module: Any, candidates: Sequence[Any]) -> Any:
    """Reduce every selection of inputs."""
    choice = walker.choices.label(module.label)
    made = {value: ChosenInputs(list(value), module.reduction) for value in choice.values}
    return walker.select(
        choice, {value: functools.partial(walker.run, chosen, (candidates,), {}) for value, chosen in made.items()}
    )


def run_repeat(walker: Walker, module: Any, value: Any) -> Any:
    """Run the blocks one after another; each counts where the depth reaches it."""
    depth = walker.expression(module.depth_choice)
    for index, block in enumerate(module.blocks):
        reached = walker.choices.combine([depth], lambda steps, index=index: index < steps)
        if reached.values == (True,):
            value = walker.run(block, (value,), {})
        elif True in reached.values:
            before = value
            cases: dict[Any, Callable[[], Any]] = {
                True: functools.partial(walker.run, block, (before,), {}),
                False: functools.partial(_same, before),
            }
            value = walker.select(reached, cases)
    return value


def _same(value: Any) -> Any:
    return value


class CellRunner:
    """Runs cells, whose operators may depend on the input that they are given.

    Parameters
    ----------
    names : sequence of str or None
        Candidates of NNI's own cell-based spaces, whose cells are made with one candidate only.

    Attributes
    ----------
    derived : list of Derived
        For every kind of cell: how many loose ends it joins, and which predecessors it takes, where that is asked for.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = names
        self.derived: list[Derived] = []
        self._operators: dict[Any, nn.Module] = {}

    def run(self, walker: Walker, cell: Any, *inputs: Any) -> Any:
        """Run a cell as its forward would."""
        given = preprocess_cell_inputs(cell.num_predecessors, *inputs)
        states = list(cell.preprocessor(given))
        takes = [(state, ALWAYS) for state in states]
        if len(states) > 1 and not walker.log.keeps:
            taken = self._predecessors(walker, cell)
            contains = (functools.partial(_contains, place) for place in range(len(states)))
            takes = [
                (state, walker.choices.combine([taken], item)) for state, item in zip(states, contains, strict=True)
            ]
        joined = walker.whole(functools.partial(self._nodes, walker, cell, states), takes)
        return cell.postprocessor(joined, given)

    def _nodes(self, walker: Walker, cell: Any, states: list[Any]) -> Any:
        """Run the nodes of a cell, all of which lead to its result."""
        for node in range(cell.num_nodes):
            current = [self._slot(walker, cell, node, slot, states) for slot in range(cell.num_ops_per_node)]
            states.append(torch.sum(torch.stack(current), 0))
        return self._join(walker, cell, states)

    def _predecessors(self, walker: Walker, cell: Any) -> Varying:
        """Return which predecessors the nodes of a cell take: one or more.

        This is derived two nodes at a time, since all inputs of a cell have too many combinations for an expected cost.
        """
        label = f"{cell.label}/predecessors"
        if label not in walker.choices.values:
            places = frozenset(range(cell.num_predecessors))
            sizes = range(1, len(places) + 1)
            sets = [frozenset(found) for size in sizes for found in itertools.combinations(sorted(places), size)]
            before: list[str] = []
            for start in range(0, cell.num_nodes, 2):
                made = label if start + 2 >= cell.num_nodes else f"{label}{start}"
                labels = [*before, *(source.label for node in cell.inputs[start : start + 2] for source in node)]
                walker.choices.add(made, sets)
                self.derived.append(Derived((made,), tuple(labels), functools.partial(list_taken, labels, places)))
                before = [made]
        return walker.choices.label(label)

    def _slot(self, walker: Walker, cell: Any, node: int, slot: int, states: list[Any]) -> Any:
        """Run one operator of a node on every input that it may have."""
        layer, source = cell.ops[node][slot], cell.inputs[node][slot]
        inputs = walker.choices.label(source.label)
        names = walker.choices.label(layer.label)

        def on_input(chosen: tuple[int, ...]) -> Any:
            if cell.op_candidates_factory is None:
                return walker.run(layer, (states[chosen[0]],), {})
            made = self._candidates(cell, node + cell.num_predecessors, slot, chosen[0])
            cases = {
                name: functools.partial(walker.run, module, (states[chosen[0]],), {}) for name, module in made.items()
            }
            return walker.select(names, cases)

        return walker.select(inputs, {value: functools.partial(on_input, value) for value in inputs.values})

    def _candidates(self, cell: Any, node: int, slot: int, source: int) -> Mapping[str, nn.Module]:
        factories = cell.op_candidates_factory
        named = factories if isinstance(factories, dict) else {str(i): item for i, item in enumerate(factories)}
        if self.names is not None:
            (factory,) = named.values()
            named = {name: functools.partial(factory.func, **{**factory.keywords, "op": name}) for name in self.names}
        return {name: self._make(factory, node, slot, source) for name, factory in named.items()}

    def _make(self, factory: Any, node: int, slot: int, source: int) -> nn.Module:
        """Make an operator; one of NNI's own cells depends on nothing but whether its input comes from another cell."""
        bound = getattr(getattr(factory, "func", None), "__self__", None)
        if isinstance(bound, CellBuilder):
            words = tuple(sorted((name, str(value)) for name, value in factory.keywords.items()))
            key: Any = (words, source < bound.num_predecessors, bound.drop_path_prob)
        else:
            key = (id(factory), node, slot, source)
        if key not in self._operators:
            with torch.device("meta"):
                self._operators[key] = create_cell_op_candidates([factory], node, slot, source)[0]["0"]
        return self._operators[key]

    def _join(self, walker: Walker, cell: Any, states: list[Any]) -> Any:
        """Join all nodes, or those that no other takes as its input."""
        first = cell.num_predecessors
        if cell.merge_op == "all":
            return torch.cat([states[index] for index in cell.output_node_indices], cell.concat_dim)
        loose = self._loose_ends(walker, cell)
        cases = {
            count: functools.partial(torch.cat, states[first : first + count], cell.concat_dim)
            for count in range(1, cell.num_nodes + 1)
        }
        return walker.select(walker.choices.label(loose), cases)

    def _loose_ends(self, walker: Walker, cell: Any) -> str:
        """Return the label of how many loose ends a cell has; all nodes are of one shape, so no more matters."""
        label = f"{cell.label}/loose_ends"
        if label not in walker.choices.values:
            labels = [source.label for node in cell.inputs for source in node]
            nodes = range(cell.num_predecessors, cell.num_predecessors + cell.num_nodes)
            walker.choices.add(label, range(1, cell.num_nodes + 1))
            self.derived.append(Derived((label,), tuple(labels), functools.partial(count_loose_ends, labels, nodes)))
        return label


def _contains(place: int, places: frozenset[int]) -> bool:
    return place in places


def list_taken(labels: Sequence[str], places: frozenset[int], sample: Mapping[str, Any]) -> tuple[frozenset[int]]:
    """List the places that some label names."""
    return (places.intersection(itertools.chain.from_iterable([sample[label] for label in labels])),)


def count_loose_ends(labels: Sequence[str], nodes: Sequence[int], sample: Mapping[str, Any]) -> tuple[int]:
    """Count the nodes that no other takes as its input."""
    taken = {chosen for label in labels for chosen in sample[label]}
    return (sum(node not in taken for node in nodes),)


def handlers_of(cells: CellRunner) -> list[tuple[type, Handler]]:
    """List the classes that do not run by their forward."""
    return [
        (LayerChoice, run_layer_choice),
        (InputChoice, run_input_choice),
        (Repeat, run_repeat),
        (Cell, cells.run),
    ]
