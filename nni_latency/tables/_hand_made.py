# SPDX-License-Identifier: Apache-2.0
"""Layers and entries of tables that are made by hand, from given numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nni_latency.errors import InvalidValueError, is_int
from nni_latency.operators import OpSpec
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._plan import UNKNOWN_SPACE, SpaceReference, measure_plan_of

_Ops = Mapping[str, Mapping[str, OpSpec]]


def hand_made_outline(
    space: Any, batch_size: int, asked: Sequence[int] | None
) -> tuple[dict[str, Any], list[TableLayer], _Ops]:
    """Return space and input shape, the layers without entries, and their operators, for any kind of space."""
    shape = None if asked is None else _checked_shape(asked)
    batch_size = batch_size if shape is None else shape[0]
    if hasattr(space, "measure_plan"):
        plan = measure_plan_of(space, batch_size)
        if shape not in (None, plan.input_shape):
            raise InvalidValueError(f"The 'input_shape' of {plan.space} must be {plan.input_shape}. Got {shape}.")
        header = {"space": plan.space, "input_shape": plan.input_shape}
        return header, [TableLayer.of_plan(layer) for layer in plan.layers], plan.ops
    if hasattr(space, "simplify"):
        labels = {label: _values(label, mutable) for label, mutable in space.simplify().items()}
        reference = SpaceReference.of_class(type(space), getattr(space, "args", {}))
    elif isinstance(space, Mapping):
        labels, reference = dict(space), SpaceReference(UNKNOWN_SPACE)
    else:
        raise InvalidValueError(
            f"The 'space' must be an NNI model space or a mapping of labels to choices. Got {type(space).__name__}."
        )
    if not labels:
        raise InvalidValueError(f"The space {reference} has no choices: there is nothing to search.")
    layers = [TableLayer(str(name), _hand_choices(str(name), values), {}) for name, values in labels.items()]
    if shape is None:
        example = space.example_inputs(batch_size) if hasattr(space, "example_inputs") else None
        shape = tuple(getattr(example, "shape", (batch_size,)))
    return {"space": reference, "input_shape": shape}, layers, {}


def _values(label: str, mutable: Any) -> Sequence[Any]:
    if not hasattr(mutable, "values"):
        raise InvalidValueError(f"The choice {label!r} must be one of a list of values. It is {mutable!r}.")
    found: Sequence[Any] = mutable.values
    return found


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or not all(is_int(size, 1) for size in shape):
        raise InvalidValueError(f"The 'input_shape' must be whole numbers of at least 1, batch first. Got {shape!r}.")
    return tuple(shape)


def _hand_choices(layer: str, values: Any) -> tuple[str, ...]:
    choices = tuple(map(str, values))
    if not choices:
        raise InvalidValueError(f"The layer {layer!r} has no choices. Name its choices, or leave it out.")
    repeated = next((choice for choice in choices if choices.count(choice) > 1), None)
    if repeated is not None:
        raise InvalidValueError(
            f"The layer {layer!r} has two choices that are both called {repeated!r} in a table. Rename one of them."
        )
    return choices


def hand_made_entries(layer: str, given: Mapping[Any, float], ops: Mapping[str, OpSpec]) -> dict[str, Entry]:
    entries = {}
    for choice, cost in given.items():
        if str(choice) in entries:
            raise InvalidValueError(
                f"The layer {layer!r} has two costs of the choice {str(choice)!r}. Keep one of them."
            )
        try:
            entries[str(choice)] = Entry(float(cost), float(cost), float(cost), op=ops.get(str(choice)))
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"The cost of {layer!r}, choice {choice!r} must be a positive, finite number. Got {cost!r}."
            ) from error
    return entries
