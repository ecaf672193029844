"""Networks as runtimes have compiled them, and what they tell of their nodes."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
    span : float, default=0.0
        From the begin of the first node to the end of the last [s], where a profile adds something between nodes. What
        the nodes took is the least.
    """

    nodes: Sequence[ProfiledNode]
    seconds: float
    span: float = 0.0

    @property
    def inside(self) -> float:
        """What its nodes took [s]."""
        return math.fsum(node.seconds for node in self.nodes)

    @property
    def outside(self) -> float:
        """What lies before the first node and behind the last, such as taking the input [s]."""
        return max(0.0, self.seconds - max(self.span, self.inside))

    def with_nodes(self, seconds: Iterable[float]) -> ProfiledRun:
        """Return the run with other times of its nodes [s], and nothing between them."""
        nodes = [replace(node, seconds=value) for node, value in zip(self.nodes, seconds, strict=True)]
        return ProfiledRun(nodes, math.fsum(node.seconds for node in nodes) + self.outside)

    def scaled(self, factor: float) -> ProfiledRun:
        """Return the run at another speed."""
        nodes = [replace(node, seconds=factor * node.seconds) for node in self.nodes]
        return ProfiledRun(nodes, factor * self.seconds, factor * self.span)


@dataclass(frozen=True)
class ProfileCost:
    """What a profile adds to a run for every node. Immutable.

    Parameters
    ----------
    inside : float, default=0.0
        What it adds to the time that the profile says of a node, less what passes between two nodes without it [s].
    """

    inside: float = 0.0

    def taken_off(self, run: ProfiledRun) -> ProfiledRun:
        """Return a run as it would have been without a profile; some of every node is left."""
        return run.with_nodes(_shifted(node.seconds, -self.inside) for node in run.nodes)

    def brought_to(self, whole: float, runs: Sequence[ProfiledRun]) -> list[ProfiledRun]:
        """Return runs whose median is what the network takes without a profile.

        What they lack or have too much belongs to all nodes alike, up to twice what a profile costs a node: that cost
        differs from network to network, and profiles round times down. The rest is the speed of the machine.

        Parameters
        ----------
        whole : float
            What a run takes without a profile [s].
        runs : sequence of ProfiledRun
            As `taken_off` returns them.
        """
        lacking = (whole - statistics.median(run.seconds for run in runs)) / max(1, len(runs[0].nodes))
        longer = min(max(lacking, -2 * self.inside), 2 * self.inside)
        found = [run.with_nodes(_shifted(node.seconds, longer) for node in run.nodes) for run in runs]
        factor = whole / statistics.median(run.seconds for run in found)
        return [run.scaled(factor) for run in found]


def _shifted(seconds: float, by: float) -> float:
    return max(seconds + by, _LEAST_LEFT * seconds)


class ProfiledNetwork(CompiledNetwork):
    """A compiled network that tells what its nodes take."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times, each time on new inputs."""
