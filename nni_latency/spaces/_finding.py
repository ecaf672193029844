# SPDX-License-Identifier: Apache-2.0
"""Spaces by name: registered ones, those of NNI's hub, and a user's own class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from nni_latency.errors import InvalidValueError, LatencyError, MismatchError, reason_of
from nni_latency.hook_checks import set_origin
from nni_latency.imports import import_place, quiet_nni
from nni_latency.operators import freeze_shapes
from nni_latency.plugins import load_registry
from nni_latency.spaces._fbnet import FBNetSpace
from nni_latency.spaces._hub import HUB_SPACES, hub_class, hub_name
from nni_latency.spaces._nni import ModelSpace
from nni_latency.tables import MeasurePlan, SpaceReference, measure_plan_of

#: How spaces were asked for, so that they can be made again in another process.
_REFERENCES: WeakKeyDictionary[Any, SpaceReference] = WeakKeyDictionary()


def make_space(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Make a space by name.

    Parameters
    ----------
    name : str
        A registered name such as ``fbnet`` or ``mobilenetv3``, a class as ``package.module:Class``, or one in a file as
        ``path/to/file.py:Class``.
    arguments : mapping, optional
        Arguments of its constructor, with plain values.

    Returns
    -------
    ModelSpace

    Raises
    ------
    UnknownNameError
        If no space is registered under the name.
    PluginError
        If its plugin fails, or makes no model space.
    InvalidValueError
        If there is no such class, it is not a model space, or it does not take the arguments.

    Examples
    --------
    >>> make_space("fbnet", {"depth": 0.25}).reference.name
    'fbnet'
    """
    reference = SpaceReference(name, arguments or {})
    space = _instantiate(space_class(name), reference.arguments, name) if ":" in name else _registered(name, reference)
    _REFERENCES[space] = reference
    return space


def hub_space(name: str, **arguments: Any) -> Any:
    """Make a space of NNI's hub, such as ``mobilenetv3``, with the constructor's own arguments.

    Those with a choice of data sets (``darts``, ``nasnet``, ``enas``, ``amoebanet``, ``pnas``) take CIFAR unless
    ``dataset="imagenet"`` is asked for.

    Raises
    ------
    UnknownNameError
        If the hub has no space of that name.
    InvalidValueError
        If it does not take the arguments.
    """
    kind = hub_class(name)
    return _instantiate(kind, {**HUB_SPACES[name].defaults, **arguments}, name)


def fbnet_space(**arguments: Any) -> Any:
    """Make an `FBNetSpace`; raises as `hub_space` where it does not take the arguments."""
    return _instantiate(FBNetSpace, arguments, "fbnet")


def space_class(name: str) -> type[Any]:
    """Import the class of a space, ``package.module:Class`` or ``path/to/file.py:Class``.

    Modules are looked for in the current folder as well.

    Raises
    ------
    InvalidValueError
        If it cannot be imported, or is not a model space.
    """
    place, _, class_name = name.rpartition(":")
    if not place or not class_name:
        raise InvalidValueError(
            f"A space of your own must be written as package.module:Class or path/to/file.py:Class. Got {name!r}."
        )
    kind: Any = _import(place, name)
    for part in class_name.split("."):
        if not hasattr(kind, part):
            raise InvalidValueError(f"{place!r} has no class {class_name!r}.")
        kind = getattr(kind, part)
    if not (isinstance(kind, type) and issubclass(kind, ModelSpace)):
        raise InvalidValueError(f"{name!r} must be a class derived from nni.nas.nn.pytorch.ModelSpace. It is not.")
    return kind


def parameters_of(name: str) -> tuple[str, ...]:
    """Return the names of the arguments that a space of NNI's hub, or a user's own, takes.

    Raises
    ------
    UnknownNameError
        If the hub has no space of that name.
    InvalidValueError
        If the class cannot be imported, or is not a model space.

    Examples
    --------
    >>> parameters_of("nasbench201")
    ('stem_out_channels', 'num_modules_per_stack', 'num_labels')
    """
    return tuple(_signature(class_of(name)).parameters)


def class_of(name: str) -> type[Any]:
    """Return the class of a space of NNI's hub, or of a user's own; see `parameters_of` for what is raised."""
    return space_class(name) if ":" in name else hub_class(name)


def is_space(reference: SpaceReference, space: Any) -> bool:
    """Whether a reference names a space, by the name that the space was made by or by its class."""
    return reference.name == reference_of(space).name or reference.is_of(type(space))


def reference_of(space: Any) -> SpaceReference:
    """Name a space by what is needed to make it again in another process.

    Parameters
    ----------
    space : ModelSpace
        Any space.

    Returns
    -------
    SpaceReference
        The name that it was made by; otherwise its name in NNI's hub, or its class as ``module:Class``. With all
        arguments of the constructor, the usual ones included.

    Raises
    ------
    InvalidValueError
        If it is not a model space, or was made with arguments that are not plain values.
    """
    own = getattr(space, "reference", None)
    if isinstance(own, SpaceReference):
        return own
    if not isinstance(space, ModelSpace):
        raise InvalidValueError(f"The space must be an NNI model space. Got {type(space).__name__}.")
    kind, asked = type(space), _REFERENCES.get(space)
    name = asked.name if asked else hub_name(kind) or SpaceReference.of_class(kind).name
    if asked and asked.name in load_registry().spaces and asked.name not in HUB_SPACES:
        # The factory of a plugin has its own arguments.
        return asked
    return SpaceReference(name, space.args)


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


def _registered(name: str, reference: SpaceReference) -> Any:
    registration = load_registry().find("space", name)
    space = registration.make(**reference.arguments)
    if not isinstance(space, ModelSpace):
        raise registration.makes_no("an NNI model space", space)
    set_origin(space, "space", registration.owner, name)
    return space


def _instantiate(kind: type[Any], arguments: Mapping[str, Any], name: str) -> Any:
    _check_arguments(_signature(kind), arguments, name)
    try:
        with quiet_nni():
            return kind(**arguments)
    except LatencyError:
        raise
    except Exception as error:  # user code may raise anything
        raise InvalidValueError(
            f"The space {name!r} cannot be made with {dict(arguments)}: {reason_of(error)}"
        ) from error


def _check_arguments(signature: inspect.Signature, arguments: Mapping[str, Any], name: str) -> None:
    """Raise `InvalidValueError` if what makes a space does not take the arguments."""
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise InvalidValueError(
            f"The space {name!r} cannot be made with these arguments: {error}. It takes: {takes}."
        ) from error


def _signature(kind: type[Any]) -> inspect.Signature:
    # What NNI wraps around the constructor hides its signature.
    whole = inspect.signature(getattr(kind, "_init_wrapped", kind.__init__))
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def _import(place: str, name: str) -> ModuleType:
    try:
        with quiet_nni():
            return import_place(place)
    except LatencyError:
        raise
    except Exception as error:  # user code may raise anything
        raise InvalidValueError(f"Cannot import the space {name!r}: {reason_of(error)}") from error
