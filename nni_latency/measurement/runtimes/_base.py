# SPDX-License-Identifier: Apache-2.0
"""`Runtime`: the interface to what executes networks."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from nni_latency.errors import MeasurementError
from nni_latency.hook_checks import CONTEXT, COUNT, FLAG, TEXT, Check, Guard, Pluggable, instance_of, is_number, is_text
from nni_latency.measurement._isolation import Benches, Limits, LocalBenches
from nni_latency.measurement._meter import Meter
from nni_latency.measurement._record import Fallback
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._timing import Clock, Stage
from nni_latency.platforms import Conditions, Platform

if TYPE_CHECKING:
    from nni_latency.operators import Inputs

_STAGE: Check = ("something to call", callable)

Arrays = tuple[NDArray[Any], ...]

#: Least share of a node's time that is left after the overhead of profiling is subtracted.
_LEAST_LEFT = 0.1

#: Input shape of the reference module.
REFERENCE_SHAPE = (1, 64, 28, 28)


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and callable(answer[0])


def _are_times(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and all(is_number(seconds) for seconds in answer)


def _are_kernels(answer: Any) -> bool:
    return answer is None or (
        isinstance(answer, list)
        and all(isinstance(item, tuple) and len(item) == 2 and is_text(item[0]) for item in answer)
    )


_PAIR: Check = ("a pair of something to call and what it takes", _is_pair)


class Runtime(Pluggable, ABC):
    """Executes networks: prepares modules and inputs, and provides a clock.

    Not thread-safe: one session at a time in a process. `prepare` may move and change modules. Errors of the device are
    raised as `MeasurementError`.
    """

    _kind = "runtime"
    # Any exception of a subject that cannot be prepared or run is reported under the subject's name.
    _guards: ClassVar[Mapping[str, Guard]] = {
        "session": Guard(CONTEXT, opens=True),
        "prepare": Guard(_STAGE, may_raise=True),
        "inputs": Guard(may_raise=True),
        "time_calls": Guard(("a list of times [s]", _are_times), may_raise=True),
        "join": Guard(_STAGE, may_raise=True),
        "join_parallel": Guard(_PAIR, may_raise=True),
        "divide": Guard(
            ("a list of lists of times [s]", lambda answer: isinstance(answer, list) and all(map(_are_times, answer))),
            may_raise=True,
        ),
        "reference": Guard(_PAIR),
        "fused_operators": Guard(("None or a list of (kernel, operators)", _are_kernels), may_raise=True),
        "layout_changes": Guard(
            ("None or a whole number", lambda answer: answer is None or isinstance(answer, int)), may_raise=True
        ),
        "fallbacks": Guard(
            (
                "a tuple of Fallback",
                lambda answer: isinstance(answer, tuple) and all(isinstance(item, Fallback) for item in answer),
            )
        ),
        "benches": Guard(instance_of(Benches)),
        "stand_in": Guard(("a Runtime or None", lambda answer: answer is None or isinstance(answer, Runtime))),
        "conditions": Guard(instance_of(Conditions)),
    }
    _attributes: ClassVar[Mapping[str, Check]] = {
        "name": TEXT,
        "platform": ("a nni_latency.Platform", lambda value: isinstance(value, Platform)),
        "clock": (
            "a clock with 'resolution', 'mark' and 'intervals'",
            lambda value: all(hasattr(value, name) for name in ("resolution", "mark", "intervals")),
        ),
        "least_runs": COUNT,
        **dict.fromkeys(
            ("supports_layer_timing", "portable", "runs_here", "divides", "sees_calls", "takes_onnx"), FLAG
        ),
    }

    #: Name in platform ids, such as ``torch``.
    name: str

    #: Whether the parts of a network can run in sequence as they would in the whole, so that each can be timed inside
    #: it. False for a runtime that compiles whole networks, which is timed only from the outside.
    supports_layer_timing: bool = True

    #: Whether it can be pickled, and measure in a worker process as in this one.
    portable: bool = True

    #: Whether networks run on this machine. Those of a device are measured by the benches of `benches`, and never by
    #: `LocalBenches`.
    runs_here: bool = True

    #: Whether it compiles whole networks and reports the time of each part after a run. A chain is then joined to one
    #: network, and `divide` returns the times of its parts.
    divides: bool = False

    #: Fewest runs of a visit, because the preparation of a visit takes long.
    least_runs: int = 1

    #: Whether it calls every operator of a network from Python, so that `time_calls` can time each of them.
    sees_calls: bool = False

    #: Whether it compiles networks from ONNX, and so accepts ONNX files.
    takes_onnx: bool = False

    @property
    @abstractmethod
    def platform(self) -> Platform:
        """Platform of its measurements."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """A clock that waits for the end of the work."""

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """Set threads and all other global state that it needs, and restore them afterwards."""

    @abstractmethod
    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a subject's module, prepare it for inputs, and return a callable that runs it.

        Parameters
        ----------
        subject : Subject
            Subject to build.
        inputs : object
            The subject's inputs, as returned by `inputs`.
        """

    @abstractmethod
    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make the input of a stage: a random tensor of a shape, or the given tensors."""

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once and time its calls of torch functions, views and properties included.

        Returns
        -------
        list of float
            Time of every call since the end of the previous one [s], in the order of `nni_latency.operators.trace`:
            the time of Python between two calls counts for the later one, and that at the end for the last.

        Raises
        ------
        MeasurementError
            If the runtime does not call operators one by one.
        """
        raise self.sees_no_calls("Measure with 'torch', or whole networks.")

    def sees_no_calls(self, remedy: str) -> MeasurementError:
        """Return the error for timing single operators in a runtime whose `sees_calls` is False."""
        return MeasurementError(
            f"The runtime {self.name!r} cannot time the operators of a network one by one (its 'sees_calls' is False). "
            f"{remedy}"
        )

    def join(self, stages: Sequence[Stage], value: Any) -> Stage:
        """Compile prepared stages that run in sequence to one network, for the input of the first.

        Raises
        ------
        MeasurementError
            If the runtime does not divide networks.
        """
        raise MeasurementError(f"The runtime {self.name!r} does not join networks.")

    def join_parallel(self, stages: Sequence[Stage], values: Sequence[Any]) -> tuple[Stage, Any]:
        """Compile independent prepared stages to one network, and return it with its input.

        Parameters
        ----------
        stages, values : sequence
            The stages, and the input of each.

        Raises
        ------
        MeasurementError
            If the runtime does not divide networks.
        """
        raise MeasurementError(f"The runtime {self.name!r} does not join networks.")

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a prepared network several times and return the times of its parts.

        Returns
        -------
        list of list of float
            Times by run [s]: of the parts of a joined network, or of the calls of torch functions, as for `time_calls`.

        Raises
        ------
        MeasurementError
            As for `time_calls`.
        """
        return [self.time_calls(stage, value) for _ in range(runs)]

    def reference(self) -> tuple[Stage, Any]:
        """Prepare a small fixed workload and its input.

        It is timed in every round to observe the drift of the machine. By default it consists of a few torch layers; a
        runtime that takes other modules overrides this.
        """
        inputs = self.inputs(REFERENCE_SHAPE)
        return self.prepare(self.reference_subject, inputs), inputs

    @property
    def reference_subject(self) -> Subject:
        """The subject that `reference` prepares."""
        return Subject("reference", reference_module, REFERENCE_SHAPE)

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]] | None:
        """Return which operators of a network run as one kernel, if the runtime reports them.

        Called within a session.

        Parameters
        ----------
        subject, inputs
            As for `prepare`.

        Returns
        -------
        list of (str, tuple of str) or None
            Name of every kernel, with the names of the modules or functions that it runs, as in
            `nni_latency.operators.trace`; operators that were folded into weights belong to the kernel of these
            weights. None, the default, if the runtime does not report kernels.

        Raises
        ------
        Exception
            Any exception, if the runtime cannot run the network.
        """
        return None

    def layout_changes(self, subject: Subject, inputs: Any) -> int | None:
        """Return how often a network changes the memory layout of a tensor; None, the default, if unknown.

        Called within a session.

        Parameters
        ----------
        subject, inputs
            As for `prepare`.

        Raises
        ------
        Exception
            Any exception, if the runtime cannot run the network.
        """
        return None

    def fallbacks(self, stage: Stage, value: Any) -> tuple[Fallback, ...]:
        """Return the nodes of a prepared network that run in another place or precision than requested.

        Called within a session, after the network has run; the result is part of every record.

        Parameters
        ----------
        stage : callable
            Result of `prepare` or `join`.
        value : object
            Its input.

        Returns
        -------
        tuple of Fallback
            One for each other place or precision; empty, the default, if there is none.
        """
        return ()

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return the factory of its benches: on this machine, unless it stands for a runtime of another one."""
        return LocalBenches(self, meters, limits)

    def stand_in(self) -> Runtime | None:
        """Return a runtime of the same device with layer timing; None if there is none, or this one has it."""
        return None

    def conditions(self) -> Conditions:
        """Return the conditions of the device at this moment; empty if they are unknown."""
        return Conditions()


class RunnableNetwork(ABC):
    """Base of a network that a runtime has compiled, and of one that an adapter has loaded."""

    @abstractmethod
    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once; the results are valid until the next run."""

    @property
    def keeps_weights(self) -> bool:
        """Whether it has the original weights. Otherwise they are random, and only the shapes of results matter."""
        return True

    def settled(self, inputs: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        """Run it several times, until one-time work of the runtime is done, and return the last results."""
        return [self.run(inputs) for _ in range(runs)][-1]

    def settle(self, inputs: Arrays, runs: int) -> None:
        """Run it several times as a warm-up; on a device, this happens before it is first timed."""
        self.settled(inputs, runs)

    def times(self, inputs: Arrays, runs: int) -> list[float] | None:
        """Time runs where the network is, such as on a device [s]; None, the default, for this process."""
        return None


class CompiledNetwork(RunnableNetwork):
    """A network that a runtime has compiled."""

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Return the nodes that run in another place or precision than requested; none by default.

        See `nni_latency.measurement.fallbacks_of`. Called at every visit: cache results that take time.
        """
        return ()


@dataclass(frozen=True)
class ProfiledNode:
    """Profile of a node of a runtime in one run. Immutable.

    Parameters
    ----------
    names : sequence of str
        Its own name, and those of the operators or tensors of the original network that it represents.
    seconds : float
        Its time [s].
    changes_layout : bool, default=False
        Whether the runtime added it to change the memory layout of a tensor. It occurs only where the layout changes,
        so it is not part of the cost of a kernel.
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
        Time of the whole run, from the call to its return [s].
    span : float, default=0.0
        Time from the beginning of the first node to the end of the last [s], if a profile adds time between nodes; at
        least the time of the nodes.
    """

    nodes: Sequence[ProfiledNode]
    seconds: float
    span: float = 0.0

    @property
    def inside(self) -> float:
        """Time of its nodes [s]."""
        return math.fsum(node.seconds for node in self.nodes)

    @property
    def outside(self) -> float:
        """Time before the first node and after the last one, such as that of copying the input [s]."""
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
    """Overhead of a profile for every node of a run. Immutable.

    Parameters
    ----------
    inside : float, default=0.0
        Overhead in the profiled time of a node, less the time between two nodes without a profile [s].
    """

    inside: float = 0.0

    def taken_off(self, run: ProfiledRun) -> ProfiledRun:
        """Return a run without the overhead of the profile; a share of every node is always left."""
        return run.with_nodes(_shifted(node.seconds, -self.inside) for node in run.nodes)

    def brought_to(self, whole: float, runs: Sequence[ProfiledRun]) -> list[ProfiledRun]:
        """Return runs whose median is the time of the network without a profile.

        The difference is spread evenly over all nodes, up to twice the overhead of a node: that differs between
        networks, and profiles round times down. The rest is attributed to the speed of the machine.

        Parameters
        ----------
        whole : float
            Time of a run without a profile [s].
        runs : sequence of ProfiledRun
            Runs as returned by `taken_off`.
        """
        lacking = (whole - statistics.median(run.seconds for run in runs)) / max(1, len(runs[0].nodes))
        longer = min(max(lacking, -2 * self.inside), 2 * self.inside)
        found = [run.with_nodes(_shifted(node.seconds, longer) for node in run.nodes) for run in runs]
        factor = whole / statistics.median(run.seconds for run in found)
        return [run.scaled(factor) for run in found]


def _shifted(seconds: float, by: float) -> float:
    return max(seconds + by, _LEAST_LEFT * seconds)


class ProfiledNetwork(CompiledNetwork):
    """A compiled network that reports the times of its nodes."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times, each time on new inputs."""


def reference_module() -> Any:
    """Build a dense and a depthwise convolution, bound by computation, and a matrix of 4 MiB, bound by memory.

    Its time therefore reflects other processes that take processor time, and those that take the cache.

    Returns
    -------
    torch.nn.Module
        A new module with the same weights every time. The global random state is not changed.
    """
    # Imported here, because the interface of all runtimes must load without torch.
    import torch
    from torch import nn

    def filled(kind: type[nn.Module], *arguments: int, **options: Any) -> nn.Module:
        # The default initialisation would draw from the global generator.
        made: nn.Conv2d = nn.utils.skip_init(kind, *arguments, **options, bias=False, dtype=torch.float32)
        deviation = math.sqrt(2 / made.weight[0].numel())
        with torch.no_grad():
            made.weight.copy_(torch.randn(made.weight.shape, generator=generator) * deviation)
        return made

    generator = torch.Generator().manual_seed(0)
    return nn.Sequential(
        filled(nn.Conv2d, 64, 64, 3, padding=1),
        nn.ReLU(),
        filled(nn.Conv2d, 64, 64, 3, padding=1, groups=64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        filled(nn.Linear, 64, 16384),
    )
