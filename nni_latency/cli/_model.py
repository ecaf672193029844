# SPDX-License-Identifier: Apache-2.0
"""A network of the user's own: a class in a Python file, its arguments and its inputs."""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import nni_latency.operators as operators
from nni_latency.cli._option import DURATION, option
from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.imports import FILE_PREFIX, import_place, quiet_nni

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Numbers of an input that are drawn one by one; all numbers of a larger one are the same, and take no memory.
_DRAWN = 2**24


timeout_option = partial(
    option, "Time limit for making a network of your own and tracing it.", type=DURATION, default="60s", rare=True
)

inputs_option = partial(
    option,
    "Shape of an input without the batch, such as 3,224,224, or with it as state=2,N,128, where N is the batch; for an "
    "ONNX file also 1,3,224,224. Repeat for further inputs.",
    "--input",
    multiple=True,
    metavar="[NAME=]SIZES[:DTYPE]",
)


@dataclass(frozen=True)
class UserCodeOptions:
    """What the code of a network may do."""

    timeout: float = timeout_option()


def names_a_class(text: str) -> bool:
    """Whether a text means a class, ``file.py:Class`` or ``package.module:Class``."""
    place, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and (place.endswith(".py") or _is_dotted(place))


def load_class(text: str) -> Any:
    """Import what ``file.py:Class`` or ``package.module:Class`` names. Importing runs the file.

    Raises
    ------
    InvalidValueError
        If there is no such file, it cannot be imported, or does not have that name.
    """
    place, _, name = text.rpartition(":")
    try:
        with quiet_nni():
            module = import_place(place)
    except LatencyError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InvalidValueError(f"Cannot import {place!r}: {reason_of(error)}") from error
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if _is_network_class(value, module)]
        raise InvalidValueError(f"{place!r} has no class {name!r}. It has: {', '.join(found) or 'no network'}.")
    return getattr(module, name)


def make_network(text: str, made_of: Any, kwargs: dict[str, Any]) -> nn.Module:
    """Make the network that `load_class` found: an instance of a class, or what a function returns.

    Raises
    ------
    InvalidValueError
        If it does not take the arguments, fails, or is no network.
    """
    from torch import nn

    if not callable(made_of) or isinstance(made_of, nn.Module):
        raise InvalidValueError(
            f"{text!r} must be a class or a function that makes a network. Got {type(made_of).__name__!r}, an object."
        )
    _check_arguments(text, made_of, kwargs)
    try:
        with quiet_nni():
            network = made_of(**kwargs)
    except Exception as error:  # user code may raise anything
        raise InvalidValueError(f"{text!r} cannot be made with {kwargs}: {reason_of(error)}") from error
    if not isinstance(network, nn.Module):
        raise InvalidValueError(f"{text!r} must make a torch.nn.Module. Got {type(network).__name__}.")
    send_by_value(network)
    return network


def send_by_value(network: nn.Module) -> None:
    """Let worker processes have the classes of a network that came from a file, and that they cannot import."""
    import cloudpickle

    for name in {type(module).__module__ for module in network.modules()}:
        if name.startswith(FILE_PREFIX) and name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])


def make_inputs(texts: tuple[str, ...], batch_size: int) -> Any:
    """Make example inputs of texts such as ``3,224,224``, ``16:int64`` or ``mask=16,16``, each without the batch.

    Returns
    -------
    tuple
        Positional inputs, and a dictionary of those with a name. Numbers with a fraction are random, whole ones are 0.

    Raises
    ------
    InvalidValueError
        If a text is of another form, or there is none.
    """
    import torch

    if not texts:
        raise InvalidValueError(
            "The network needs the shape of its input: give it without the batch, as in --input 3,224,224."
        )
    generator = torch.Generator().manual_seed(0)
    args, kwargs = [], {}
    for given in onnx_inputs_of(texts) or ():
        value = _numbers(given.shape(batch_size), getattr(torch, given.dtype or "float32"), generator)
        if given.name:
            kwargs[given.name] = value
        else:
            args.append(value)
    return (*args, kwargs) if kwargs else tuple(args)


def onnx_inputs_of(texts: tuple[str, ...]) -> list[operators.InputShape] | None:
    """Return the shapes of the inputs of an ONNX file, which says how many dimensions each has; None without any.

    Raises
    ------
    InvalidValueError
        If a text is of another form.
    """
    return [operators.InputShape.parse(text) for text in texts] or None


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return random numbers, or zeros of a type without fractions; they take no memory where there are many."""
    import torch

    drawn = shape if math.prod(shape) <= _DRAWN else ()
    value = torch.randn(drawn, generator=generator) if dtype.is_floating_point else torch.zeros(())
    return value.to(dtype).expand(shape)


def _check_arguments(text: str, made_of: Any, kwargs: dict[str, Any]) -> None:
    try:
        # What NNI wraps around a constructor hides its signature.
        wrapped = getattr(made_of, "_init_wrapped", None)
        signature = inspect.signature(wrapped or made_of)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] if wrapped else []), **kwargs)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name != "self") or "none"
        raise InvalidValueError(
            f"{text!r} cannot be made with the arguments {kwargs}: {error}. It takes: {takes}. Give them as "
            "--kwargs '{\"name\": value}'."
        ) from error


def _is_dotted(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _is_network_class(value: Any, module: ModuleType) -> bool:
    from torch import nn

    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
