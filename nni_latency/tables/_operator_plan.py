"""`OperatorPlan`: which networks are measured for a table of operators, apart from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import NetworkCalls
from nni_latency.operators import OpSpec, Trace
from nni_latency.tables._plan import SpaceReference


@dataclass(frozen=True)
class PlannedNetwork:
    """One network that is to be measured.

    Parameters
    ----------
    sample : mapping
        Its choices, ``{label: choice}``.
    build : callable
        Makes it; it must be possible to send it to another process by cloudpickle.
    trace : Trace
        Its operators, by modules.
    calls : Trace
        The same forward pass, by single calls: what leaf modules of several calls are made of.
    """

    sample: Mapping[str, Any]
    build: Callable[[], Any] = field(compare=False, repr=False)
    trace: Trace = field(repr=False)
    calls: Trace = field(repr=False)

    @property
    def subject_calls(self) -> NetworkCalls:
        """Which calls of a run belong to which of its operators."""
        return NetworkCalls.of(self.trace, self.calls)

    @property
    def op_keys(self) -> list[str]:
        """Keys of its operators, by modules, in order."""
        return [item.op.op_key for item in self.trace.operators]


@dataclass(frozen=True)
class OperatorPlan:
    """What a table of a space's operators needs measured: a sample of networks that covers the operators.

    Parameters
    ----------
    space : SpaceReference
        Whose networks they are.
    input_shape : tuple of int
        Shape of their input, batch first.
    networks : tuple of PlannedNetwork
        What is measured. The first one is the space's reference network.
    coverage : float
        Share of the operators of other random networks of the space that are among those of `networks`, in [0, 1].

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
        """Every operator of the networks, by modules and by calls, by its key."""
        return {
            item.op.op_key: item.op
            for network in self.networks
            for trace in (network.trace, network.calls)
            for item in trace.operators
        }
