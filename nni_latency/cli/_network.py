# SPDX-License-Identifier: Apache-2.0
"""NET: how a command line names a network, and how that network is made. Every command that takes networks uses it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import nni_latency.graphs as graphs
import nni_latency.operators as operators
import nni_latency.profiling as profiling
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._model import (
    inputs_option,
    load_class,
    make_inputs,
    make_network,
    names_a_class,
    onnx_inputs_of,
    send_by_value,
    timeout_option,
)
from nni_latency.cli._option import JSON_OBJECT, option
from nni_latency.cli._space_options import ChosenSpace, SpaceOptions, plan_for
from nni_latency.cli._supervision import user_code
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import is_file
from nni_latency.plugins import load_registry

if TYPE_CHECKING:
    from torch import nn

#: How help names the networks of a command.
NETWORKS = "NET..."

#: Separates a space from the architecture; the path of a file may have the sign as well.
_ARCHITECTURE = re.compile(r"(?P<space>.*?\.py:\w+|[\w.:-]+)@(?P<architecture>.+)", re.DOTALL)

#: Input of torchvision's networks, without the batch.
_PICTURE = "3,224,224"

_FORMS = (
    "A network is an ONNX file (net.onnx), a class or function (net.py:Net, package.module:function), the name of a "
    "published network, or an architecture of a space (fbnet@fbnet-c)."
)


@dataclass(frozen=True)
class NetworkOptions:
    """How networks are made, and what they take.

    Parameters
    ----------
    inputs : tuple of str
        Shapes as they were typed, an input each.
    batch_size : int or None
        Inputs of a run; None leaves it to a table, to the ONNX file, or to 1.
    kwargs : dict or None
        Arguments of the class, function or space.
    timeout : float
        Time limit for making a network of the user and tracing it [s].
    """

    inputs: tuple[str, ...] = inputs_option()
    batch_size: int | None = option(
        "Inputs of a run.  [default: that of the table or of the ONNX file, or 1]", type=click.IntRange(1)
    )
    kwargs: dict[str, Any] | None = option(
        "Arguments of the class, function or space as a JSON object.", type=JSON_OBJECT
    )
    timeout: float = timeout_option()


@dataclass(frozen=True)
class NamedNetwork:
    """A network as a command line names it.

    Parameters
    ----------
    text : str
        What was typed.
    kind : {"onnx", "code", "architecture", "published", "torchvision"}
        An ONNX file; a class or function; an architecture of a space; a network of a family; one of torchvision.
    space, architecture : str
        Both sides of ``SPACE@ARCHITECTURE``.
    """

    text: str
    kind: Literal["onnx", "code", "architecture", "published", "torchvision"]
    space: str = ""
    architecture: str = ""

    @property
    def short(self) -> str:
        """The name of a file without its folder, and everything else as it was typed."""
        return Path(self.text).name if self.kind == "onnx" else self.text

    @property
    def runs_code(self) -> bool:
        """Whether making it runs a file of the user."""
        return self.kind == "code" or ":" in self.space


@dataclass(frozen=True)
class Network:
    """A network that is made.

    Parameters
    ----------
    named : NamedNetwork
        How it was named.
    model : nn.Module or str
        The network, or the path of an ONNX file.
    inputs : Any
        What it takes; of an ONNX file the shapes that were given, or None.
    batch_size : int or None
        Inputs of a run; None leaves it to the ONNX file.
    layers : mapping of str to str
        Names of its layers by their place in the module, where a space names them.
    """

    named: NamedNetwork
    model: nn.Module | str
    inputs: Any
    batch_size: int | None = None
    layers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        """Whether it is an ONNX file."""
        return isinstance(self.model, str)

    def graph(self) -> operators.Graph:
        """Return its graph in the form in which ONNX files have it."""
        return graphs.graph_of(self.model, self.inputs, self.batch_size)

    def example_inputs(self) -> Any:
        """Return what it is run on; of an ONNX file shapes that are all known."""
        if not isinstance(self.model, str):
            return self.inputs
        return list(operators.onnx_inputs(self.model, self.batch_size, self.inputs).args)

    def layer_name(self, name: str) -> str:
        """Return the name of an operator, with the name of its layer in front where there is one."""
        place, dot, rest = name.partition(".")
        return f"{self.layers.get(place, place)}{dot}{rest}"


def parse_networks(texts: Sequence[str], options: NetworkOptions) -> list[NamedNetwork]:
    """Read the networks of a command line.

    Parameters
    ----------
    texts : sequence of str
        What was typed, such as ``net.onnx`` or ``fbnet@fbnet-c``.
    options : NetworkOptions
        How they are made.

    Returns
    -------
    list of NamedNetwork
        In the same order; none is made yet.

    Raises
    ------
    UnknownNameError
        If one is of no known form.
    InvalidValueError
        If one is named twice, or an option is for none of them.
    """
    twice = next((text for place, text in enumerate(texts) if text in texts[:place]), None)
    if twice is not None:
        raise InvalidValueError(f"{twice!r} is named twice. Name each network once.")
    found = [parse_network(text) for text in texts]
    if options.inputs and found and all(item.kind == "published" for item in found):
        raise InvalidValueError(
            f"--input is for networks whose input is not fixed. {found[0].text!r} has a fixed input: omit --input."
        )
    if options.kwargs and found and not any(item.kind in ("code", "architecture") for item in found):
        raise InvalidValueError(
            f"--kwargs is for a class, a function or a space, such as net.py:Net. Got {found[0].text!r}."
        )
    return found


def parse_network(text: str) -> NamedNetwork:
    """Read one network.

    Raises
    ------
    UnknownNameError
        If it is of no known form.

    Examples
    --------
    >>> parse_network("net.onnx").kind, parse_network("net.py:Net").kind, parse_network("resnet18").kind
    ('onnx', 'code', 'published')
    >>> named = parse_network("my_space.py:MySpace@found.json")
    >>> named.space, named.architecture
    ('my_space.py:MySpace', 'found.json')
    """
    if text.endswith(".onnx"):
        return NamedNetwork(text, "onnx")
    if names_a_class(text):
        return NamedNetwork(text, "code")
    match = _ARCHITECTURE.fullmatch(text)
    if match is not None:
        return NamedNetwork(text, "architecture", match["space"], match["architecture"])
    if profiling.plain_name(text) in profiling.published_names():
        return NamedNetwork(text, "published")
    vision = profiling.vision_names()
    if text in vision:
        return NamedNetwork(text, "torchvision")
    raise UnknownNameError(_unknown(text, vision))


def _unknown(text: str, vision: Sequence[str]) -> str:
    """Say which networks exist instead of one that does not."""
    if text.endswith(".py"):
        return f"{text!r} is a Python file. Name the class or function in it, such as {text}:Net."
    if is_file(text):
        return f"{text!r} is not an ONNX file, whose name ends with .onnx. {_FORMS}"
    if text in load_registry().spaces:
        return _without_architecture(text)
    known = UnknownNameError.of("network", text, sorted({*graphs.families(), *profiling.published_names(), *vision}))
    more = "" if vision else "; those of torchvision, such as resnet50, after pip install 'nni_latency[vision]'"
    return f"{str(known).removesuffix('.')}{more}. {_FORMS}"


def _without_architecture(space: str) -> str:
    """Say how a network of a space is named, where the space alone was."""
    example = "fbnet-c" if space == "fbnet" else "sample.json"
    return f"{space!r} is a model space. Name one of its networks as {space}@ARCHITECTURE, such as {space}@{example}."


def make(named: NamedNetwork, options: NetworkOptions) -> Network:
    """Make a network.

    Raises
    ------
    InvalidValueError
        If it cannot be made as the options say.
    UnknownNameError
        If its space does not exist.
    """
    batch_size = options.batch_size or 1
    if named.kind == "onnx":
        return Network(named, named.text, onnx_inputs_of(options.inputs), options.batch_size)
    if named.kind == "code":
        return Network(named, _of_code(named.text, options), make_inputs(options.inputs, batch_size), batch_size)
    if named.kind == "published":
        family = graphs.families()[profiling.published_names()[profiling.plain_name(named.text)]]
        return Network(named, family.network(0), family.example_inputs(batch_size), batch_size)
    if named.kind == "torchvision":
        return _of_torchvision(named, options)
    if named.space == tables.OPERATORS:
        raise InvalidValueError(
            f"{named.text!r} lists operators, whose costs a table knows. Name it, as in: "
            "nni-latency predict NET --estimator TABLE"
        )
    asked = space_options(named, options)
    chosen = ChosenSpace(asked.name, asked.arguments, asked.input_size, batch_size)
    return make_architecture(named, chosen, chosen.make(), options)


@contextlib.contextmanager
def limited(named: NamedNetwork, options: NetworkOptions) -> Iterator[None]:
    """Mark the code of a network, whose output is not part of the result."""
    limit = options.timeout if named.runs_code else 0.0
    with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {named.text!r}", limit):
        yield


def make_networks(named: Sequence[NamedNetwork], options: NetworkOptions) -> Iterator[Network]:
    """Make networks, one after another, each within its time limit.

    The time limit of a network ends when the next one is asked for, so that it holds for tracing, too.

    Parameters
    ----------
    named : sequence of NamedNetwork
        Those that `parse_networks` read.
    options : NetworkOptions
        How they are made.

    Yields
    ------
    Network
        With ``model``, ``inputs`` and ``batch_size``; the model of an ONNX file is its path.

    Raises
    ------
    LatencyError
        If a network cannot be made as the options say.
    """
    for item in named:
        with limited(item, options):
            yield make(item, options)


def space_options(named: NamedNetwork, options: NetworkOptions) -> SpaceOptions:
    """Return the space of ``SPACE@ARCHITECTURE``, with the arguments and the input that were given."""
    return SpaceOptions(named.space, (options.kwargs or {},), _size(options.inputs))


def make_architecture(named: NamedNetwork, chosen: ChosenSpace, space: Any, options: NetworkOptions) -> Network:
    """Make an architecture of a space.

    Raises
    ------
    InvalidValueError
        If the space does not have it, or it is not known what the space takes.
    """
    import torch

    if hasattr(space, "measure_plan"):
        plan = plan_for(space, chosen.name, chosen.batch_size)
        check_picture(named, options, plan.input_shape)
        network = plan.network_of(spaces.parse_architecture(named.architecture, plan))()
        layers = {str(place): layer.name for place, layer in enumerate(plan.layers)}
        return Network(named, network, random_inputs(torch.zeros(plan.input_shape)), chosen.batch_size, layers)
    network = spaces.network_of(space, sample_of(space, chosen.name, named.architecture))()
    send_by_value(network)
    inputs = random_inputs(chosen.example_inputs(space))
    check_picture(named, options, tuple(inputs.shape))
    return Network(named, network, inputs, chosen.batch_size)


def check_picture(named: NamedNetwork, options: NetworkOptions, shape: tuple[int, ...]) -> None:
    """Raise `InvalidValueError` if ``--input`` is not what a space takes; its shape is given with the batch."""
    if options.inputs and len(shape) > 1 and _picture(options.inputs, "an architecture of a space") != shape[1:]:
        raise InvalidValueError(
            f"The space {named.space!r} takes inputs of the shape {','.join(map(str, shape[1:]))}. "
            f"Got --input {options.inputs[0]}."
        )


def sample_of(space: Any, name: str, text: str) -> Mapping[str, Any]:
    """Read a sample: a file, or JSON itself."""
    if not text.lstrip().startswith("{"):
        if not is_file(text):
            raise InvalidValueError(
                f"An architecture of {name!r} must be the file of a saved sample, or a JSON object of labels and "
                f"choices. Got {text[:60]!r}."
            )
        return spaces.read_sample(space, text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"The architecture is not valid JSON: {error}. Got {text[:60]!r}.") from error
    return spaces.check_sample(space, content)


def random_inputs(inputs: Any) -> Any:
    """Return random numbers of the same shape, so that the values in a network differ."""
    import torch

    if not (isinstance(inputs, torch.Tensor) and inputs.is_floating_point()):
        return inputs
    return torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))


def _of_code(text: str, options: NetworkOptions) -> nn.Module:
    made_of = load_class(text)
    # What every model space of NNI has.
    if isinstance(made_of, type) and hasattr(made_of, "frozen_factory"):
        raise InvalidValueError(_without_architecture(text))
    return make_network(text, made_of, options.kwargs or {})


def _of_torchvision(named: NamedNetwork, options: NetworkOptions) -> Network:
    import torch

    shape = _picture(options.inputs or (_PICTURE,), "a network of torchvision")
    batch_size = options.batch_size or 1
    network = profiling.vision_model(named.text, batch_size, shape).build()
    return Network(named, network, random_inputs(torch.zeros(batch_size, *shape)), batch_size)


def _size(inputs: tuple[str, ...]) -> int | None:
    """Return the size of the square picture that the networks of a space take; None leaves it to the space."""
    if not inputs:
        return None
    *_, height, width = _picture(inputs, "an architecture of a space")
    if height != width:
        raise InvalidValueError(
            f"The input of an architecture of a space must be a square picture, such as --input {_PICTURE}. "
            f"Got {inputs[0]!r}."
        )
    return width


def _picture(inputs: tuple[str, ...], what: str) -> tuple[int, ...]:
    """Return the shape of the picture that is the only input, without the batch."""
    (text, *rest) = inputs
    given = operators.InputShape.parse(text)
    shape = given.shape(1, rank=4)
    if rest or given.name or given.dtype or len(shape) != 4 or shape[0] != 1:
        raise InvalidValueError(
            f"The input of {what} must be one picture, such as --input {_PICTURE}. Got {', '.join(inputs)!r}."
        )
    return shape[1:]
