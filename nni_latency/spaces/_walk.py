"""Walking a model space into its plan and its choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.operators import freeze_shapes
from nni_latency.spaces._varying import TooManyChoicesError, as_key
from nni_latency.tables import MeasurePlan, measure_plan_of


def plan_of(space: Any, example_inputs: Any = None) -> MeasurePlan | None:
    """Return the measure plan of a space, or None if the space does not make one.

    Parameters
    ----------
    space : ModelSpace
        A space; one with a method ``measure_plan(batch_size)`` has a plan.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the network; without it, a batch of one of the space's own input size.

    Raises
    ------
    MismatchError
        If the inputs are of another size than the space's.
    """
    if not hasattr(space, "measure_plan"):
        return None
    if example_inputs is None:
        return measure_plan_of(space)
    shape = tuple(freeze_shapes(example_inputs)[0].shape)
    plan = measure_plan_of(space, shape[0])
    if shape != plan.input_shape:
        raise MismatchError(f"The example inputs have shape {shape}, the space is made for {plan.input_shape}.")
    return plan


def choices_of(space: Any) -> dict[str, list[Any]]:
    """List the labels of a space, each with its choices in the order of their indices.

    Raises
    ------
    InvalidValueError
        If it is no model space, has no choices, or one that is not a plain list of values.
    """
    if not hasattr(space, "simplify"):
        raise InvalidValueError(f"The space must be an NNI model space. Got {type(space).__name__}.")
    mutables = space.simplify()
    if not mutables:
        raise InvalidValueError(f"The space {type(space).__name__} has no choices: there is nothing to search.")
    for label, mutable in mutables.items():
        # A choice of several values (NNI's InputChoice, even of one input) has samples that are lists.
        if not hasattr(mutable, "values") or hasattr(mutable, "n_chosen"):
            raise InvalidValueError(f"The label {label!r} is no choice among values but a {type(mutable).__name__}.")
    return {label: list(mutable.values) for label, mutable in mutables.items()}


def list_choices(space: Any) -> tuple[dict[str, tuple[Any, ...]], Callable[[dict[str, Any]], dict[str, Any]]]:
    """List the choices of every label, hashable, and return what turns such a sample into NNI's form.

    Labels without values, such as constraints, are left out.

    Raises
    ------
    TooManyChoicesError
        If a label has no finite list of values.
    """
    values: dict[str, tuple[Any, ...]] = {}
    raws: dict[str, dict[Any, Any]] = {}
    for label, mutable in space.simplify().items():
        if not hasattr(mutable, "values"):
            if hasattr(mutable, "low") or not hasattr(mutable, "freeze"):
                raise TooManyChoicesError(
                    f"The label {label!r} is no choice among values but a {type(mutable).__name__}."
                )
            continue
        listed = list(mutable.grid()) if hasattr(mutable, "n_chosen") else list(mutable.values)
        raws[label] = {as_key(value): value for value in listed}
        values[label] = tuple(raws[label])

    def raw(sample: dict[str, Any]) -> dict[str, Any]:
        return {label: raws[label][value] for label, value in sample.items()}

    return values, raw
