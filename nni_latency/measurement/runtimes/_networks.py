"""Networks as runtimes have compiled them, and what they tell of their nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nni_latency.measurement._fallback import Fallback

Arrays = tuple[NDArray[Any], ...]


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


class ProfiledNetwork(CompiledNetwork):
    """A compiled network that tells what its nodes take."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[list[ProfiledNode]]:
        """Run it several times, each time on new inputs.

        Returns
        -------
        list of list of ProfiledNode
            By run, its nodes in the order in which they ran.
        """
