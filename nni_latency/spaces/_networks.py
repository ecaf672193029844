# SPDX-License-Identifier: Apache-2.0
"""Networks of any space: what builds one, in this process or another, and what goes into it."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.spaces._finding import make_space, reference_of, space_class
from nni_latency.spaces._hub import HUB_SPACES, hub_class
from nni_latency.tables import SpaceReference


@dataclass(frozen=True)
class NetworkBuilder:
    """Builds one network of a space when it is called. It can be pickled, and built in any process.

    Parameters
    ----------
    reference : SpaceReference
        The space.
    sample : mapping
        ``{label: choice}``.
    kind : type or None
        Class of the space where it cannot be imported by its name, as in a notebook.
    """

    reference: SpaceReference
    sample: Mapping[str, Any]
    kind: type[Any] | None = field(default=None, repr=False)

    def __call__(self) -> Any:
        """Return a new network with new weights."""
        if self.reference.name in HUB_SPACES or self.kind:
            return self.anew()
        with quiet_nni():
            # What is frozen shares its parts with the space, and with all that is frozen of it.
            return copy.deepcopy(_made(_key(self.reference)).freeze(dict(self.sample)))

    def anew(self) -> Any:
        """Return a new network whose weights are drawn now, so that the seed decides them; slower for large spaces."""
        with quiet_nni():
            arguments = self.reference.arguments
            if self.reference.name in HUB_SPACES:
                # Makes what the sample has and nothing else.
                return hub_class(self.reference.name).frozen_factory(dict(self.sample))(**arguments)
            space = self.kind(**arguments) if self.kind else make_space(self.reference.name, arguments)
            return space.freeze(dict(self.sample))

    def __reduce__(self) -> Any:
        """Pickle it as plain values: a reference holds a read-only view, which cannot be pickled."""
        return _restore, (self.reference.name, dict(self.reference.arguments), dict(self.sample), self.kind)


def network_of(space: Any, sample: Mapping[str, Any]) -> NetworkBuilder:
    """Return what builds a network of a space.

    Parameters
    ----------
    space : ModelSpace or SpaceReference
        The space, or its name and arguments.
    sample : mapping
        ``{label: choice}``, valid for the space.

    Returns
    -------
    NetworkBuilder
        Called without arguments, it returns the frozen network.
    """
    if isinstance(space, SpaceReference):
        return NetworkBuilder(space, sample)
    reference = reference_of(space)
    return NetworkBuilder(reference, sample, None if _is_importable(reference.name, type(space)) else type(space))


def example_inputs_of(space: Any, batch_size: int = 1, input_size: int | None = None) -> torch.Tensor:
    """Return an input of the right shape for a space.

    Parameters
    ----------
    space : ModelSpace
        One of NNI's hub, or one with a method ``example_inputs(batch_size)``; others need `input_size`.
    batch_size : int, default=1
        Images.
    input_size : int, optional
        Input image size [pixel]; without it, what the space is made for.

    Returns
    -------
    Tensor of shape (batch_size, 3, input_size, input_size)
        Zeros. A space's own method may return another shape, whose batch and channels stay.

    Raises
    ------
    InvalidValueError
        If it is not known what the space takes.
    """
    if hasattr(space, "example_inputs"):
        inputs: torch.Tensor = space.example_inputs(batch_size)
        if input_size in (None, inputs.shape[-1]):
            return inputs
        if inputs.dim() != 4:
            raise InvalidValueError(
                f"An input image size is for spaces that take images. The example input of {type(space).__name__} has "
                f"the shape {tuple(inputs.shape)}. Leave the size out."
            )
        return inputs.new_zeros(*inputs.shape[:2], input_size, input_size)
    reference = reference_of(space)
    if input_size is None:
        if not knows_inputs(space):
            raise InvalidValueError(
                f"It is not known what the space {reference.name!r} takes. Give the input image size, or the class a "
                "method example_inputs(batch_size)."
            )
        input_size = HUB_SPACES[reference.name].size_for(reference.arguments)
    return torch.zeros(batch_size, 3, input_size, input_size)


def knows_inputs(space: Any) -> bool:
    """Whether a space says what it takes, so that `example_inputs_of` needs no size."""
    return hasattr(space, "example_inputs") or reference_of(space).name in HUB_SPACES


def _restore(name: str, arguments: dict[str, Any], sample: dict[str, Any], kind: type[Any] | None) -> NetworkBuilder:
    return NetworkBuilder(SpaceReference(name, arguments), sample, kind)


def _key(reference: SpaceReference) -> str:
    return json.dumps([reference.name, dict(reference.arguments)])


@functools.lru_cache(maxsize=2)
def _made(key: str) -> Any:
    """Make a space once for all the networks that are frozen of it."""
    name, arguments = json.loads(key)
    return make_space(name, arguments)


def _is_importable(name: str, kind: type[Any]) -> bool:
    """Whether a space's name is enough to make it in another process."""
    module, _, path = name.rpartition(":")
    if not module:
        return True
    if kind.__module__ == "__main__" or "<locals>" in path:
        return False
    if module.endswith(".py"):
        return space_class(name) is not None
    return importlib.util.find_spec(module) is not None
