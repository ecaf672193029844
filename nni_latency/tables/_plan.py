# SPDX-License-Identifier: Apache-2.0
"""Plans of the networks to measure for a table: a space by layers, or a list of networks by operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from nni_latency.errors import InvalidValueError
from nni_latency.hook_checks import PluginCall, origin_of
from nni_latency.imports import FILE_PREFIX
from nni_latency.measurement import NetworkCalls, compose
from nni_latency.operators import OpSpec, Trace, work_of

#: Name of the space of a table that is keyed by operators and not by the layers of a space.
OPERATORS = "operators"

#: Name of the space of a manual table that was given only labels and choices.
UNKNOWN_SPACE = "unknown"

#: Arguments that change only the head, whose cost is common to all networks of a space.
HEAD_ONLY = ("num_classes", "num_labels", "head_channels")

#: A network by its choices, ``{layer: choice}`` with every layer.
Selection = Mapping[str, str]

ArgumentValue = str | int | float | bool | None | tuple["ArgumentValue", ...]


@dataclass(frozen=True)
class SpaceReference:
    """Identifies the space of a table.

    Parameters
    ----------
    name : str
        Name under which the space is registered, such as ``fbnet``.
    arguments : mapping
        All arguments of its constructor, as plain values; lists become tuples.

    Raises
    ------
    InvalidValueError
        If an argument is not a plain value.
    """

    name: str
    arguments: Mapping[str, ArgumentValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments = {name: self._plain(name, value) for name, value in self.arguments.items()}
        object.__setattr__(self, "arguments", MappingProxyType(arguments))

    def _plain(self, name: str, value: Any) -> ArgumentValue:
        if isinstance(value, (list, tuple)):
            return tuple(self._plain(name, item) for item in value)
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        raise InvalidValueError(
            f"The argument {name!r} of the space {self.name!r} must be a number, a text or a list of such, so that the "
            f"space can be named in a file. Got {type(value).__name__}."
        )

    @classmethod
    def of_class(cls, kind: type, arguments: Mapping[str, Any] | None = None) -> SpaceReference:
        """Name an unregistered space after its class, ``module:Class``.

        A class of a script, or of a file that was loaded by path, is named ``/path/to/file.py:Class``.
        """
        file = _file_of(kind)
        by_path = file is not None and (kind.__module__ == "__main__" or kind.__module__.startswith(FILE_PREFIX))
        return cls(f"{file if by_path else kind.__module__}:{kind.__qualname__}", arguments or {})

    def is_of(self, kind: type) -> bool:
        """Whether the space is named after a class. Nothing is imported.

        A file that does not exist on this machine, such as that of a foreign table, is compared by its file name; a
        module also matches the path of its file.
        """
        place, _, class_name = self.name.rpartition(":")
        file = _file_of(kind)
        if class_name != kind.__qualname__ or file is None:
            return self.name == f"{kind.__module__}:{kind.__qualname__}"
        if not place.endswith(".py"):
            return place == kind.__module__ or f"/{file.as_posix()}".endswith(f"/{place.replace('.', '/')}.py")
        named = Path(place)
        return named.resolve() == file if named.is_file() else named.name == file.name

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a file: lists in place of tuples."""
        return {"name": self.name, "arguments": {name: _listed(value) for name, value in self.arguments.items()}}

    def differences(self, other: SpaceReference, *, ignore: Sequence[str] = ()) -> list[str]:
        """Describe the differences; arguments that only one side has are compared too."""
        found = [] if self.name == other.name else [f"{self.name} against {other.name}"]
        for name in dict.fromkeys([*self.arguments, *other.arguments]):
            mine, theirs = self.arguments.get(name), other.arguments.get(name)
            if name not in ignore and mine != theirs:
                found.append(f"{name}={mine} against {name}={theirs}")
        return found


def _file_of(kind: type) -> Path | None:
    """Return the file of a class; None for one of a notebook."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).resolve() if file else None


def _listed(value: ArgumentValue) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


class NetworkSource(Protocol):
    """A space whose networks can be measured whole: a `MeasurePlan`, or a space that samples networks.

    A network is given by its choices, ``{layer: choice}`` or ``{label: choice}``.
    """

    @property
    def space(self) -> SpaceReference:
        """The space."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the networks' input, batch first."""

    @property
    def reference(self) -> Mapping[str, Any]:
        """The first of the reference networks."""

    @property
    def references(self) -> Sequence[Mapping[str, Any]]:
        """Up to four different networks, fixed for the space, that are timed in every round."""

    def network_of(self, selection: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the factory of a network; it can be sent to another process."""


@dataclass(frozen=True)
class PlanCandidate:
    """One candidate of a layer: its operator, and the factory of its module."""

    op: OpSpec
    build: Callable[[], Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class PlanLayer:
    """One layer of a plan.

    Parameters
    ----------
    name : str
        Label of the layer in the space.
    candidates : mapping of str to PlanCandidate
        Candidates, in the order of the space's indices.
    searched : bool, default=True
        Whether the space chooses; a fixed layer uses `default`.
    default : str or None
        Candidate of a fixed layer.
    """

    name: str
    candidates: Mapping[str, PlanCandidate]
    searched: bool = True
    default: str | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidValueError(f"Layer {self.name!r} has no candidates: there is nothing to measure.")
        if not self.searched and self.default not in self.candidates:
            raise InvalidValueError(
                f"The fixed layer {self.name!r} must name one of {', '.join(self.candidates)}. Got {self.default!r}."
            )


@dataclass(frozen=True)
class MeasurePlan:
    """Everything to measure for a table of a space: layers in order, each with its candidates.

    Parameters
    ----------
    space : SpaceReference
        Space of the candidates.
    input_shape : tuple of int
        Shape of the network's input, batch first.
    layers : tuple of PlanLayer
        Layers from input to output; each consumes the output of the previous one.
    published : mapping of str to mapping
        Named networks of the space, ``{name: {layer: choice}}`` with every layer.
    """

    space: SpaceReference
    input_shape: tuple[int, ...]
    layers: tuple[PlanLayer, ...]
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not any(layer.searched for layer in self.layers):
            raise InvalidValueError(f"The space {self.space} has no choices: there is nothing to search.")

    @property
    def batch_size(self) -> int:
        """Batch size, the first dimension of the input shape."""
        return self.input_shape[0]

    @property
    def searched(self) -> tuple[PlanLayer, ...]:
        """The searchable layers, in order."""
        return tuple(layer for layer in self.layers if layer.searched)

    @property
    def ops(self) -> dict[str, dict[str, OpSpec]]:
        """The operators of the candidates, by layer and choice."""
        return {layer.name: {name: item.op for name, item in layer.candidates.items()} for layer in self.layers}

    def ops_of(self, selection: Mapping[str, str]) -> list[OpSpec]:
        """Return the operators of a network, ``{layer: choice}`` with every layer, in order."""
        return [layer.candidates[selection[layer.name]].op for layer in self.layers]

    def indices_of(self, selection: Mapping[str, str]) -> tuple[int, ...]:
        """Return a network, ``{layer: choice}`` with every layer, as an index per layer."""
        return tuple(list(layer.candidates).index(selection[layer.name]) for layer in self.layers)

    def network_of(self, selection: Mapping[str, str]) -> Callable[[], Any]:
        """Return the factory of a network, ``{layer: choice}`` with every layer; picklable if its parts are.

        Raises
        ------
        InvalidValueError
            If the selection lacks a layer, or has a choice that is not in the plan.
        """
        for layer in self.layers:
            if selection.get(layer.name) not in layer.candidates:
                raise InvalidValueError(
                    f"The choice of {layer.name!r} must be one of {', '.join(layer.candidates)}. "
                    f"Got {selection.get(layer.name)!r}."
                )
        return partial(compose, [layer.candidates[selection[layer.name]].build for layer in self.layers])

    @property
    def reference(self) -> dict[str, str]:
        """The first of the reference networks, with candidates of all kinds, ``{layer: choice}``."""
        return self.references[0]

    @cached_property
    def references(self) -> tuple[dict[str, str], ...]:
        """Different networks that are fixed for the space, ``{layer: choice}``; four, or fewer in a small space.

        They are timed in every round of every campaign in the space, and so measure the machine's speed. Two contain
        candidates of all kinds, one the lighter and one the heavier half of each layer's.
        """
        found: list[dict[str, str]] = []
        for pick in _PICKS:
            network = {layer.name: layer.default or pick(index, layer) for index, layer in enumerate(self.layers)}
            if network not in found:
                found.append(network)
        return tuple(found)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Candidates per layer."""
        return tuple(len(layer.candidates) for layer in self.layers)


def _in_turn(index: int, layer: PlanLayer) -> str:
    return list(layer.candidates)[index % len(layer.candidates)]


def _by_twos(index: int, layer: PlanLayer) -> str:
    return list(layer.candidates)[(2 * index + len(layer.candidates) // 2) % len(layer.candidates)]


def _lighter(index: int, layer: PlanLayer) -> str:
    return _by_work(layer)[index % ((len(layer.candidates) + 1) // 2)]


def _heavier(index: int, layer: PlanLayer) -> str:
    return _by_work(layer)[-1 - index % ((len(layer.candidates) + 1) // 2)]


def _by_work(layer: PlanLayer) -> list[str]:
    """Return the candidates in ascending order of work."""
    return sorted(layer.candidates, key=lambda name: _work(layer.candidates[name].op))


@lru_cache(maxsize=4096)
def _work(op: OpSpec) -> tuple[int, int]:
    features, _ = work_of(op)
    return features.macs, features.memory


#: Selection rules of the reference networks: functions of the index of a layer and the layer.
_PICKS: tuple[Callable[[int, PlanLayer], str], ...] = (_in_turn, _lighter, _heavier, _by_twos)


def measure_plan_of(space: Any, batch_size: int = 1) -> MeasurePlan:
    """Return the measure plan of a space that defines one.

    Parameters
    ----------
    space : ModelSpace
        A space with a method ``measure_plan(batch_size)``.
    batch_size : int, default=1
        Inputs per run.

    Raises
    ------
    PluginError
        If the method fails, or returns another type; the message names the space and its plugin.
    """
    check = ("a MeasurePlan", lambda answer: isinstance(answer, MeasurePlan))
    plan: MeasurePlan = PluginCall(origin_of(space, "space"), "measure_plan", space.measure_plan, check)(batch_size)
    return plan


@dataclass(frozen=True)
class PlannedNetwork:
    """A network to measure.

    Parameters
    ----------
    sample : mapping
        Choices of the network, ``{label: choice}``.
    build : callable
        Its factory; must be serialisable by cloudpickle.
    trace : Trace
        Operators of the network, by modules.
    calls : Trace
        The same forward pass by single calls, which resolves leaf modules of several calls.
    """

    sample: Mapping[str, Any]
    build: Callable[[], Any] = field(compare=False, repr=False)
    trace: Trace = field(repr=False)
    calls: Trace = field(repr=False)

    @property
    def subject_calls(self) -> NetworkCalls:
        """The mapping of the calls of a run to its operators."""
        return NetworkCalls.of(self.trace, self.calls)

    def without_unused(self) -> PlannedNetwork:
        """Return the network without operators that no output depends on."""
        return replace(self, trace=self.trace.without_unused(), calls=self.calls.without_unused())

    @property
    def op_keys(self) -> list[str]:
        """Keys of its operators, by modules, in order."""
        return [item.op.op_key for item in self.trace.operators]


@dataclass(frozen=True)
class OperatorPlan:
    """Everything to measure for a table of operators: sampled networks that cover the operators of a space.

    Parameters
    ----------
    space : SpaceReference
        Space of the networks.
    input_shape : tuple of int
        Shape of their input, batch first.
    networks : tuple of PlannedNetwork
        Networks to measure. The first one is the reference network of the space.
    coverage : float
        Share of the operators in other random networks of the space that are covered by `networks`, in [0, 1].

    Raises
    ------
    InvalidValueError
        If there is no network, or one without operators.
    """

    space: SpaceReference
    input_shape: tuple[int, ...]
    networks: tuple[PlannedNetwork, ...]
    coverage: float = 1.0

    def __post_init__(self) -> None:
        if not self.networks:
            raise InvalidValueError(f"There is no network of {self.space.name!r} to measure.")
        empty = [network.sample for network in self.networks if not network.trace.operators]
        if empty:
            raise InvalidValueError(f"A network of {self.space.name!r} computes nothing that can be timed: {empty[0]}.")

    @property
    def ops(self) -> dict[str, OpSpec]:
        """All operators of the networks, by modules and by calls, keyed by operator key."""
        return {
            item.op.op_key: item.op
            for network in self.networks
            for trace in (network.trace, network.calls)
            for item in trace.operators
        }
