# SPDX-License-Identifier: Apache-2.0
"""`ProfiledModel`: a network to profile, given by name or by the user."""

from __future__ import annotations

import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import families
from nni_latency.imports import require
from nni_latency.measurement import NetworkCalls, Subject
from nni_latency.operators import OpSpec, Trace, TracedOperator, TracingWarning, freeze_inputs, trace_both

#: Default input shape of torchvision networks, without the batch.
_PICTURE = (3, 224, 224)

#: Largest number of words in the name of a published network; longer texts are descriptions.
_MOST_WORDS = 2

#: Torchvision networks with slow default weight initialisation, which issue a warning about it.
_SLOWLY_DRAWN = frozenset({"googlenet", "inception_v3"})


@dataclass(frozen=True)
class ProfiledModel:
    """A network to profile. Immutable.

    Parameters
    ----------
    name : str
        Name in reports.
    build : callable
        Builds the network; sent to worker processes by cloudpickle.
    inputs : tuple of int or Inputs
        Inputs, as for `Subject`.
    trace : Trace
        Trace by modules: leaf modules with their inputs, and calls between them.
    calls : Trace
        Trace of the same forward pass by single calls.

    Raises
    ------
    InvalidValueError
        If it has no operators.
    """

    name: str
    build: Callable[[], nn.Module] = field(compare=False, repr=False)
    inputs: Any = field(compare=False, repr=False)
    trace: Trace = field(repr=False)
    calls: Trace = field(repr=False)

    def __post_init__(self) -> None:
        if not self.trace.operators:
            raise InvalidValueError(f"The model {self.name!r} computes nothing that can be timed.")

    @property
    def key(self) -> str:
        """Digest of its operators and their data flow; also the key of the subject."""
        return self.calls.digest

    @property
    def network_calls(self) -> NetworkCalls:
        """Mapping of calls to operators."""
        return NetworkCalls.of(self.trace, self.calls)

    @cached_property
    def subject(self) -> Subject:
        """Subject for a bench."""
        specification = {"name": self.name, **self.network_calls.content()}
        return Subject(self.key, self.build, self.inputs, "network", self.key, specification)

    @property
    def counts(self) -> Counter[str]:
        """Number of runs of every operator by key."""
        return Counter(item.op.op_key for item in self.trace.operators)

    @property
    def operators(self) -> dict[str, TracedOperator]:
        """First occurrence of every operator by key."""
        found: dict[str, TracedOperator] = {}
        for item in self.trace.operators:
            found.setdefault(item.op.op_key, item)
        return found

    @property
    def ops(self) -> dict[str, OpSpec]:
        """Distinct operators by key."""
        return {key: item.op for key, item in self.operators.items()}

    @property
    def weights(self) -> int:
        """Number of elements of parameters and buffers, without those of functions."""
        network = structure_of(self.build)
        return sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))


def published_names() -> Mapping[str, str]:
    """Return the normalised names of published networks, each with its family.

    Examples
    --------
    >>> published_names()["resnet18"], published_names()["vgg16"]
    ('resnet', 'vgg')
    """
    found = {}
    for name, family in families().items():
        own = family.summary.partition(" (")[0].partition(",")[0]
        if len(own.split()) <= _MOST_WORDS:
            found[plain_name(own)] = name
        found[plain_name(name)] = name
    return found


def plain_name(name: str) -> str:
    """Normalise a name to lower-case letters and digits.

    >>> plain_name("MobileNet_V3-Large")
    'mobilenetv3large'
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def family_model(name: str, batch_size: int = 1) -> ProfiledModel | None:
    """Return the published network with the name of a family or a network; None if the name is unknown.

    Examples
    --------
    >>> model = family_model("squeezenet")
    >>> model.name, len(model.trace.operators)
    ('squeezenet', 64)
    >>> family_model("resnet-9000") is None
    True
    """
    known = published_names().get(plain_name(name))
    if known is None:
        return None
    family = families()[known]
    build, shape = partial(family.network, 0), (batch_size, *family.input_shape)
    if family.vocabulary is None:
        return _traced(name, build, shape, torch.empty(shape, device="meta"))
    words = family.example_inputs(batch_size)
    return _traced(name, build, freeze_inputs(words, device=None), words)


def vision_names() -> tuple[str, ...]:
    """Return the names of torchvision's classification networks; empty if it is not installed.

    Raises
    ------
    MissingDependencyError
        If torchvision is installed but cannot be imported, for example because of another torch version.
    """
    if importlib.util.find_spec("torchvision") is None:
        return ()
    vision = require("torchvision.models", "A model of torchvision", "nni_latency[vision]")
    return tuple(vision.list_models(module=vision))


def vision_model(name: str, batch_size: int = 1, input_shape: tuple[int, ...] = _PICTURE) -> ProfiledModel:
    """Return a torchvision network with random weights.

    Parameters
    ----------
    name : str
        Name in torchvision, such as ``resnet50``.
    batch_size : int, default=1
        Inputs per run.
    input_shape : tuple of int
        Shape of the input without the batch.

    Raises
    ------
    MissingDependencyError
        If torchvision is not installed.
    UnknownNameError
        If torchvision has no such classification network.
    """
    vision = require("torchvision.models", f"The model {name!r}", "nni_latency[vision]")
    known = vision.list_models(module=vision)
    if name not in known:
        raise UnknownNameError.of("model", name, sorted({*families(), *known}))
    inputs = (batch_size, *input_shape)
    return _traced(name, partial(_make_vision_model, name), inputs, torch.empty(inputs, device="meta"))


def own_model(name: str, network: nn.Module, example_inputs: Any) -> ProfiledModel:
    """Wrap an existing network; every process gets a copy.

    Parameters
    ----------
    name : str
        Name in reports.
    network : nn.Module
        The network.
    example_inputs : Tensor, tuple or dict
        Inputs, as for `nni_latency.operators.trace`.

    Raises
    ------
    InvalidValueError
        If the inputs do not match, the weights have no values, or the network has no operators.

    Examples
    --------
    >>> own_model("mine", nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.zeros(1, 4)).counts["relu()@1x2:float32"]
    1
    """
    subject = Subject.of_module(network, example_inputs)
    return _traced(name, subject.build, subject.inputs, example_inputs)


def _traced(name: str, build: Callable[[], nn.Module], inputs: Any, example: Any) -> ProfiledModel:
    with warnings.catch_warnings():
        # Visits that deviate from the trace are rejected.
        warnings.simplefilter("ignore", TracingWarning)
        trace, calls = trace_both(structure_of(build), example)
    return ProfiledModel(name, build, inputs, trace, calls)


def structure_of(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network without memory for its weights, if its code allows it."""
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # the code of a network may need values during construction
        return build()


def _make_vision_model(name: str) -> nn.Module:
    import torchvision

    options = {"init_weights": False} if name in _SLOWLY_DRAWN else {}
    network: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return network
