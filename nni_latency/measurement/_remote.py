# SPDX-License-Identifier: Apache-2.0
"""`Remote`: other machines that measure, or fit, for this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from nni_latency.errors import MeasurementError, RemoteError, UnknownNameError
from nni_latency.hook_checks import CONTEXT, TEXT, Check, Guard, PluggableContext, instance_of
from nni_latency.measurement._meter import Meter
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform

#: ``ready`` workers get work. ``quarantined`` ones get none until their reference networks agree again.
State = Literal["ready", "quarantined"]


@dataclass(frozen=True)
class WorkerState:
    """State of a machine that measures for others. Immutable.

    Parameters
    ----------
    name : str
        Its name for people.
    address : str
        Its address.
    platform : str
        Id of its platform.
    state : {"ready", "quarantined"}
        Whether it gets work.
    reason : str
        Why it gets no work; empty if it does.
    benches : int
        Number of campaigns that it measures at this moment.
    jobs : int
        Number of slices of campaigns that it has measured.
    joined : float
        When it joined [s since 1970, UTC].
    checked : float
        When its reference networks were timed last [s since 1970, UTC].
    references : mapping of str to float
        Times of the reference networks then [s], by name.
    slower : float
        Ratio of these times to the best ones.
    conditions : mapping
        Conditions of the machine when it joined.
    """

    name: str
    address: str
    platform: str
    state: State
    reason: str = ""
    benches: int = 0
    jobs: int = 0
    joined: float = 0.0
    checked: float = 0.0
    references: Mapping[str, float] = field(default_factory=dict)
    slower: float = 1.0
    conditions: Mapping[str, Any] = field(default_factory=dict)


def _are(kind: type[Any]) -> Check:
    return (
        f"a list of {kind.__name__}",
        lambda answer: isinstance(answer, (list, tuple)) and all(isinstance(item, kind) for item in answer),
    )


class Remote(PluggableContext, ABC):
    """Other machines that measure, or fit, for this one. A context manager; safe in several threads.

    A runtime of such machines is a `Runtime` whose `benches` open benches there, so that everything that takes a
    runtime can measure there. Implement `runtimes` and `close`; the rest has a default.
    """

    _kind = "remote"
    _guards: ClassVar[Mapping[str, Guard]] = {
        "runtimes": Guard(_are(Runtime)),
        "runtime": Guard(instance_of(Runtime)),
        "workers": Guard(_are(WorkerState)),
        "meter": Guard(instance_of(Meter)),
        "fitting": Guard(CONTEXT, opens=True),
    }
    _attributes: ClassVar[Mapping[str, Check]] = {
        "advice": ("a text", lambda value: isinstance(value, str)),
        "description": TEXT,
    }

    #: Its name in messages, such as ``farm tcp://127.0.0.1:8786``.
    description: str

    #: A sentence that says what to do if no machine measures.
    advice: str = ""

    @abstractmethod
    def runtimes(self) -> Sequence[Runtime]:
        """Return a runtime for every platform that its machines have.

        Raises
        ------
        RemoteError
            If no machine answers.
        """

    def runtime(self, platform: Platform | str) -> Runtime:
        """Return the runtime of a platform, or of the platform of an id.

        Raises
        ------
        UnknownNameError
            If no machine has it.
        RemoteError
            If no machine answers.
        """
        wanted = platform.id if isinstance(platform, Platform) else platform
        found = {item.platform.id: item for item in self.runtimes()}
        if wanted not in found:
            raise UnknownNameError.of("platform", wanted, sorted(found))
        return found[wanted]

    def workers(self) -> Sequence[WorkerState]:
        """Return the states of the machines; none if they are unknown. Raises as `runtimes`."""
        return ()

    def meter(self, platform: Platform | str, name: str = "") -> Meter:
        """Return a stand-in for a meter of the machines of a platform; without a name, for the usual one.

        Raises
        ------
        MeasurementError
            If they have no such meter.
        """
        raise MeasurementError(
            f"The machines of {self.description} read no energy. A power can be assumed instead, as in constant:15."
        )

    def fitting(self) -> AbstractContextManager[None]:
        """Return a context in which joblib runs the parallel parts of fitting there.

        Raises
        ------
        RemoteError
            If none of the machines fits.
        """
        raise RemoteError(f"The machines of {self.description} fit no predictors. Omit the option to fit here.")

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the machines; measurements that they run fail."""
