# SPDX-License-Identifier: Apache-2.0
"""The interface between measuring and what executes a model."""

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

#: What profiling costs leaves this share of a node's time at least.
_LEAST_LEFT = 0.1

#: Shape of its input.
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
    """What executes a model: prepares modules and inputs, and says what time it is.

    Not thread-safe: one session at a time in a process. Modules given to `load` may be moved and changed.
    Errors of the device surface as `MeasurementError`.
    """

    _kind = "runtime"
    # A subject that cannot be prepared or run is reported by its own name, whatever was raised.
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

    #: Its name in platform ids, such as ``torch``.
    name: str

    #: Whether the parts of a network can be run one after another as the whole would run, so that each can be timed
    #: inside it. A runtime that compiles whole networks says False, and is timed from the outside alone.
    supports_layer_timing: bool = True

    #: Whether it can be pickled and measure in a worker process just as well as in this one.
    portable: bool = True

    #: Whether networks run on this machine. Those of a device are measured by the benches that `benches` returns, and
    #: never by `LocalBenches`.
    runs_here: bool = True

    #: Whether it compiles a network whole and reports afterwards what each part of it took. A chain is then joined to
    #: one network, and `divide` returns the times of its parts.
    divides: bool = False

    #: Runs that a visit takes at least, because getting ready for one takes long.
    least_runs: int = 1

    #: Whether it calls every operator of a network from Python, so that `time_calls` can time each of them.
    sees_calls: bool = False

    #: Whether it compiles networks from ONNX, and so takes a file of one as it is.
    takes_onnx: bool = False

    @property
    @abstractmethod
    def platform(self) -> Platform:
        """Where its numbers are taken."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """A clock that sees the end of the work, not only its start."""

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """Set threads and everything else that must hold while it runs; put it back afterwards."""

    @abstractmethod
    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a subject's module, prepare it to run on such inputs, and return what runs it.

        Parameters
        ----------
        subject : Subject
            What to build.
        inputs : object
            What `inputs` made of the subject's inputs.
        """

    @abstractmethod
    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make what a stage takes: one tensor of random numbers of a shape, or the tensors that are given."""

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once and time its calls of torch functions, views and properties included.

        Returns
        -------
        list of float
            By call, in the order of `nni_latency.operators.trace`, the time since the end of the one before [s]: what
            Python did in between counts for the call that follows, and what it did at the end for the last.

        Raises
        ------
        MeasurementError
            If the runtime does not call operators one by one.
        """
        raise self.sees_no_calls("Measure with 'torch', or whole networks.")

    def sees_no_calls(self, remedy: str) -> MeasurementError:
        """Return the error of a runtime whose `sees_calls` is False where operators are timed one by one."""
        return MeasurementError(
            f"The runtime {self.name!r} cannot time the operators of a network one by one (its 'sees_calls' is False). "
            f"{remedy}"
        )

    def join(self, stages: Sequence[Stage], value: Any) -> Stage:
        """Compile prepared stages that run one after another as one network, for the input of the first.

        Raises
        ------
        MeasurementError
            If the runtime does not divide networks.
        """
        raise MeasurementError(f"The runtime {self.name!r} does not join networks.")

    def join_parallel(self, stages: Sequence[Stage], values: Sequence[Any]) -> tuple[Stage, Any]:
        """Compile prepared stages that have nothing to do with each other as one network, and return it with its input.

        Parameters
        ----------
        stages, values : sequence
            What is run, and what each of them takes.

        Raises
        ------
        MeasurementError
            If the runtime does not divide networks.
        """
        raise MeasurementError(f"The runtime {self.name!r} does not join networks.")

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a prepared network several times and say what each part of it took.

        Returns
        -------
        list of list of float
            By run, the time of every part of a network that was joined, or else of every call of a torch function, as
            for `time_calls` [s].

        Raises
        ------
        MeasurementError
            As for `time_calls`.
        """
        return [self.time_calls(stage, value) for _ in range(runs)]

    def reference(self) -> tuple[Stage, Any]:
        """Prepare a fixed small piece of work and its input.

        It is timed in every round, so that the drift of the machine shows. By default it is a few
        layers of torch; a runtime that takes other modules overrides this.
        """
        inputs = self.inputs(REFERENCE_SHAPE)
        return self.prepare(self.reference_subject, inputs), inputs

    @property
    def reference_subject(self) -> Subject:
        """What `reference` prepares."""
        return Subject("reference", reference_module, REFERENCE_SHAPE)

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]] | None:
        """Say which operators of a network run as one kernel, where the runtime's own model lists them.

        Called inside a session.

        Parameters
        ----------
        subject, inputs
            As for `prepare`.

        Returns
        -------
        list of (str, tuple of str) or None
            Every kernel by its name, with the names of the modules or functions that it runs, as
            `nni_latency.operators.trace` has them; what was folded into weights belongs to the kernel that has these.
            None, as by default, where the runtime does not report them.

        Raises
        ------
        Exception
            Whatever says why the runtime cannot take the network.
        """
        return None

    def layout_changes(self, subject: Subject, inputs: Any) -> int | None:
        """Say how often a network brings a tensor into another memory layout; None, the default, where that is unknown.

        Called inside a session.

        Parameters
        ----------
        subject, inputs
            As for `prepare`.

        Raises
        ------
        Exception
            Whatever says why the runtime cannot take the network.
        """
        return None

    def fallbacks(self, stage: Stage, value: Any) -> tuple[Fallback, ...]:
        """Say which nodes of a prepared network do not run where, or in the precision, that was asked for.

        Called inside a session, after the network has run; every record keeps the answer.

        Parameters
        ----------
        stage : callable
            What `prepare` or `join` returned.
        value : object
            What it takes.

        Returns
        -------
        tuple of Fallback
            One for each other place or precision; empty, as by default, where everything ran as it was asked for, or
            the runtime has no way to run anything otherwise.
        """
        return ()

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return what opens benches of it: those of this machine, unless it stands for a runtime of another one."""
        return LocalBenches(self, meters, limits)

    def stand_in(self) -> Runtime | None:
        """Return a runtime of the same device that can be timed inside; None if there is none, or no need."""
        return None

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment; nothing, where that cannot be known."""
        return Conditions()


class CompiledNetwork(ABC):
    """A network as a runtime has compiled it."""

    @abstractmethod
    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""

    @property
    def keeps_weights(self) -> bool:
        """Whether it has the weights of the original. Others are random, and only the shapes of results count."""
        return True

    def settled(self, inputs: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        """Run it several times, until what a runtime does once is done, and return the last results."""
        return [self.run(inputs) for _ in range(runs)][-1]

    def settle(self, inputs: Arrays, runs: int) -> None:
        """Run it several times for nothing; on a device that happens before it is first timed."""
        self.settled(inputs, runs)

    def times(self, inputs: Arrays, runs: int) -> list[float] | None:
        """Time runs where the network is, as on a device [s]; None, as by default, where that is this process."""
        return None

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
        changes, so it is not part of what a kernel costs.
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

        The difference is spread evenly over all nodes, up to twice what a profile costs a node: that cost differs from
        network to network, and profiles round times down. The rest is the speed of the machine.

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
    """A compiled network that reports the times of its nodes."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times, each time on new inputs."""


def reference_module() -> Any:
    """Build a dense and a depthwise convolution and a matrix of 4 MiB: cycles bound the ones, fetching the other.

    So it feels a neighbour that takes the processor as well as one that takes the cache.

    Returns
    -------
    torch.nn.Module
        A new one every time, always with the same weights. The global random numbers are left alone.
    """
    # Here and not above: the interface of all runtimes loads without torch.
    import torch
    from torch import nn

    def filled(kind: type[nn.Module], *arguments: int, **options: Any) -> nn.Module:
        # Their own initialisation would draw from the global generator.
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
