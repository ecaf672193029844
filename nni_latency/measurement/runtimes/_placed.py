# SPDX-License-Identifier: Apache-2.0
"""Adapters of runtimes, in this process or on a device: the places where they run networks.

An adapter is one file that imports numpy and the runtime alone, so that it can be sent to a device. It has a class
``Adapter`` with ``facts()``, ``load(data)``, and networks with ``run(arrays)``; those of a runtime with a profiler have
``profile(feed, runs)`` as well. Everything else stays on this machine.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from nni_latency.errors import MeasurementError, first_line
from nni_latency.measurement.runtimes._base import (
    Arrays,
    CompiledNetwork,
    ProfiledNetwork,
    ProfiledRun,
    RunnableNetwork,
)

if TYPE_CHECKING:
    from nni_latency.operators import OnnxNetwork


class Placed(RunnableNetwork):
    """A network that an adapter has loaded, in this process or on a device."""

    @abstractmethod
    def profile(self, feed: Callable[[], Arrays], runs: int) -> Mapping[str, Any]:
        """Run it several times and return the profile as plain values."""

    @abstractmethod
    def call(self, method: str) -> Any:
        """Call a method of the adapter's network without arguments; it returns bytes or plain values."""


class Place(ABC):
    """The place where an adapter runs networks."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Facts that the adapter reports: the version of the runtime, and others that distinguish platforms."""

    @abstractmethod
    def load(self, data: bytes, weights: Iterable[NDArray[Any]] = ()) -> Placed:
        """Load a network in the format of the adapter.

        Parameters
        ----------
        data : bytes
            The network.
        weights : iterable of ndarray
            Weights in it that may be replaced by random numbers, so that they need not be sent to a device.

        Raises
        ------
        MeasurementError
            If the runtime cannot load it.
        """


class Here(Place):
    """An adapter in this process.

    Parameters
    ----------
    module : str
        Name of the module that is the adapter.
    settings : mapping
        Settings of the adapter, such as the number of threads.
    """

    def __init__(self, module: str, settings: Mapping[str, Any]) -> None:
        self._module, self._settings = module, dict(settings)

    @cached_property
    def _adapter(self) -> Any:
        return importlib.import_module(self._module).Adapter(self._settings)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the adapter, because another process makes its own."""
        return {"_module": self._module, "_settings": self._settings}

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts that the adapter reports of the runtime."""
        found: Mapping[str, Any] = self._adapter.facts()
        return found

    def load(self, data: bytes, weights: Iterable[NDArray[Any]] = ()) -> Placed:
        """Load a network."""
        try:
            return _PlacedHere(self._adapter.load(data))
        except Exception as error:  # whatever a runtime raises
            raise MeasurementError(f"{self._adapter.name} cannot load the network: {first_line(error)}") from error


#: Factory of the place of an adapter, given the name of its module and its settings.
MakePlace = Callable[[str, Mapping[str, Any]], Place]


class _PlacedHere(Placed):
    def __init__(self, network: Any) -> None:
        self._network = network

    def run(self, arrays: Arrays) -> Sequence[NDArray[Any]]:
        found: Sequence[NDArray[Any]] = self._network.run(arrays)
        return found

    def profile(self, feed: Callable[[], Arrays], runs: int) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._network.profile(feed, runs)
        return found

    def call(self, method: str) -> Any:
        return getattr(self._network, method)()


class PlacedNetwork(CompiledNetwork):
    """A compiled network that an adapter runs.

    Parameters
    ----------
    placed : Placed
        The network of the adapter.
    network : OnnxNetwork, optional
        The original network, which determines the inputs of the adapter and their order; by default all inputs.
    """

    #: Methods of the adapter's network whose results are needed after every visit, so that a device sends them with the
    #: visit or before it.
    answers: tuple[str, ...] = ()

    def __init__(self, placed: Placed, network: OnnxNetwork | None = None) -> None:
        self.placed, self.network = placed, network

    def feed(self, inputs: Arrays) -> Arrays:
        """Return what the adapter takes."""
        return inputs if self.network is None else tuple(self.network.feed(inputs).values())

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        return self.placed.run(self.feed(inputs))

    def settled(self, inputs: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        """Run it several times and return the last results."""
        return self.placed.settled(self.feed(inputs), runs)

    def settle(self, inputs: Arrays, runs: int) -> None:
        """Run it several times as a warm-up."""
        self.placed.settle(self.feed(inputs), runs)

    def times(self, inputs: Arrays, runs: int) -> list[float] | None:
        """Time runs on a device [s]; None if the network is in this process."""
        return self.placed.times(self.feed(inputs), runs)

    @property
    def keeps_weights(self) -> bool:
        """Whether it has the original weights."""
        return self.placed.keeps_weights


class PlacedProfiledNetwork(PlacedNetwork, ProfiledNetwork):
    """A network that an adapter runs and profiles."""

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times with a profile."""
        return self.read_profile(self.placed.profile(lambda: self.feed(make_inputs()), runs))

    @abstractmethod
    def read_profile(self, found: Mapping[str, Any]) -> list[ProfiledRun]:
        """Read what `profile` of the adapter's network returned."""
