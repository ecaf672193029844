"""Networks as runtimes have compiled them, and what they tell of their nodes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from nni_latency.measurement._fallback import Fallback

Arrays = tuple[NDArray[Any], ...]

#: What profiling costs leaves this share of a node's time at least.
_LEAST_LEFT = 0.1


class CompiledNetwork(ABC):
    """A network as a runtime has compiled it."""

    @abstractmethod
    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which nodes do not run where, or in the precision, that was asked for; none by default.

        See `nni_latency.measurement.fallbacks_of`. Asked at every visit, so an answer that takes time is kept.
        """
        return ()


@dataclass(frozen=True)
class ProfiledNode:
    """What a runtime says of one of its nodes in one run. Immutable.

    Parameters
    ----------
    names : sequence of str
        Its own name, and those of the operators or tensors of the original network that it stands for.
    seconds : float
        What it took [s].
    changes_layout : bool, default=False
        Whether the runtime made it to bring a tensor into another memory layout. A network has it only where the layout
        changes, so it is no part of what a kernel costs.
    """

    names: Sequence[str]
    seconds: float
    changes_layout: bool = False


@dataclass(frozen=True)
class ProfiledRun:
    """One run of a network with a profile. Immutable.

    Parameters
    ----------
    nodes : sequence of ProfiledNode
        Its nodes in the order in which they ran.
    seconds : float
        What the whole run took, from the call until it returned [s].
    """

    nodes: Sequence[ProfiledNode]
    seconds: float

    @property
    def inside(self) -> float:
        """What its nodes took [s]."""
        return math.fsum(node.seconds for node in self.nodes)

    @property
    def outside(self) -> float:
        """What lies outside of its nodes, such as taking the input [s]."""
        return max(0.0, self.seconds - self.inside)


@dataclass(frozen=True)
class ProfileCost:
    """What a profile adds to a run for every node. Immutable.

    Parameters
    ----------
    inside : float, default=0.0
        What it adds to the time that the profile says of a node [s].
    between : float, default=0.0
        What it adds between two nodes [s].
    outside : float, default=math.inf
        The most that lies outside of the nodes without a profile [s]. A profile adds more between the nodes of large
        networks than between those of small ones, which would be taken for it.
    """

    inside: float = 0.0
    between: float = 0.0
    outside: float = math.inf

    def taken_off(self, run: ProfiledRun) -> ProfiledRun:
        """Return a run as it would have been without a profile; some of every node is left."""
        nodes = [
            replace(node, seconds=max(node.seconds - self.inside, _LEAST_LEFT * node.seconds)) for node in run.nodes
        ]
        outside = min(max(0.0, run.outside - self.between * len(nodes)), self.outside)
        return ProfiledRun(nodes, math.fsum(node.seconds for node in nodes) + outside)


class ProfiledNetwork(CompiledNetwork):
    """A compiled network that tells what its nodes take."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times, each time on new inputs."""
