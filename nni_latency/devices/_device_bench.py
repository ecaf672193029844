# SPDX-License-Identifier: Apache-2.0
"""Benches on a device: a visit is one request, and those of a round are sent together."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from nni_latency.devices._forecast import forecast
from nni_latency.devices._place import DevicePlaced, described_arrays
from nni_latency.devices._session import Answer
from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Bench,
    Benches,
    CandidateError,
    Chain,
    LocalBench,
    Protocol,
    Stage,
    Visit,
    Visited,
    as_subject_error,
)
from nni_latency.measurement.runtimes import (
    KERNEL_SECONDS,
    MOST_KERNEL_RUNS,
    SETTLING_RUNS,
    Chained,
    Native,
    Parallel,
    PlacedNetwork,
    PlacedProfiledNetwork,
    Prepared,
    each_array,
)
from nni_latency.platforms import Conditions, Platform
from nni_latency.units import format_bytes

if TYPE_CHECKING:
    from nni_latency.devices._device_runtime import DeviceRuntime


class DeviceBenches(Benches):
    """Benches on a device; each has a process there."""

    isolated = True

    def __init__(self, runtime: DeviceRuntime) -> None:
        self.runtime = runtime

    @property
    def platform(self) -> Platform:
        """Where the numbers are taken."""
        return self.runtime.platform

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return self.runtime.conditions()

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench."""
        return DeviceBench(self.runtime, protocol, calls=calls)

    @contextlib.contextmanager
    def expecting(self, sessions: Iterable[Sequence[Chain]]) -> Iterator[None]:
        """Say how much is about to be sent to the device, and how much was."""
        runtime, where = self.runtime, self.runtime.connection.description
        with runtime.keeping_candidates():
            if runtime.on_send is None:
                yield
                return
            before = runtime.sent
            reference, joins = runtime.reference_subject, runtime.divides
            found = forecast(sessions, reference, runtime.size_of, joins=joins, request=runtime.request)
            if found.networks:
                runtime.on_send(found.sentence(where, runtime.weights_note))
            yield
            runtime.on_send(f"Sent {format_bytes(runtime.sent - before)} to {where}")


@dataclass(frozen=True)
class _Asked:
    """A visit that is about to be asked for."""

    natives: Sequence[Native]
    stage: Stage
    networks: Sequence[PlacedNetwork]
    inputs: Sequence[Any]
    is_divided: bool
    piece: Mapping[str, Any]
    preparation: float


class HoldingBench(LocalBench):
    """Base of benches that hold a device. Subjects are made here as by `LocalBench`, and run there."""

    runtime: DeviceRuntime

    @abstractmethod
    def _get_ready(self) -> None:
        """Prepare the device, which is held."""

    def __enter__(self) -> HoldingBench:
        """Take the device, and prepare it and the reference network."""
        with contextlib.ExitStack() as opening:
            self.runtime.take()
            opening.callback(self.runtime.give_back)
            self._get_ready()
            super().__enter__()
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of all subjects, and give the device back."""
        super().__exit__(kind, error, trace)
        self.runtime.give_back()

    def cool_down(self) -> bool:
        """Wait for a device that heat slows down."""
        return self.runtime.cooling.wait()


class DeviceBench(HoldingBench):
    """A bench on a device with the agent.

    A subject that crashes or hangs takes a process of the device with it, which is started again.

    Parameters
    ----------
    runtime, protocol, calls
        As for `LocalBench`. The protocol's `timeout` is how long one visit may take there.
    """

    def __init__(self, runtime: DeviceRuntime, protocol: Protocol, *, calls: bool = False) -> None:
        super().__init__(runtime, protocol, calls=calls)
        self._line = runtime.place.session
        #: The subjects that were stepped through, and the number of the line on which the first one ran.
        self._stepped: list[str] = []
        self._stepped_on = 0

    def _get_ready(self) -> None:
        """Start another process there."""
        self._line.timeout = self.protocol.timeout
        self._line.renew()

    def _try(self, stage: Stage, inputs: Any) -> None:
        if isinstance(stage, Native):
            stage(inputs)

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up a network and time it."""
        return next(self.visit_all([(keys, calls)])).visit

    def visit_all(self, asked: Sequence[tuple[Sequence[str], bool]]) -> Iterator[Visited]:
        """Visit networks; all are made and sent before the first is waited for, so that the device never waits."""
        prepared, failure = self._prepared(asked)
        answers = self._line.ask_all([item.piece for item in prepared], self.protocol.timeout)
        begin = time.perf_counter()
        for item in prepared:
            answer = next(answers)
            now = time.perf_counter()
            with as_subject_error():
                visit = self._visit_of(item, answer)
            yield Visited(visit, duration=item.preparation + now - begin)
            begin = now
        if failure is not None:
            raise failure

    def _prepared(self, asked: Sequence[tuple[Sequence[str], bool]]) -> tuple[list[_Asked], CandidateError | None]:
        """Make the networks of visits, up to the first that fails."""
        found: list[_Asked] = []
        for keys, calls in asked:
            begin = time.perf_counter()
            try:
                item = self._asked(keys, calls=calls)
            except CandidateError as error:
                return found, error
            found.append(replace(item, preparation=time.perf_counter() - begin))
            self.on_step(f"prepared {len(found)} of {len(asked)}")
        return found, None

    def _asked(self, keys: Sequence[str], *, calls: bool) -> _Asked:
        calls = calls and self.calls
        divide = self.runtime.divides and (len(keys) > 1 or calls or self._are_kernels(keys))
        chain, value = self._network(keys, divide=divide)
        natives = [stage for stage in chain if isinstance(stage, Native)]
        if len(chain) == 1 and isinstance(chain[0], Chained):
            natives, chain = list(chain[0].natives), [chain[0].prepared]
            stage: Stage = Chained(natives, chain[0])  # type: ignore[arg-type]
        else:
            chain = chain[len(natives) :]
            if not chain:
                raise CandidateError("it consists of what runs in torch alone, and a device has no torch")
            stage = chain[0]
        with as_subject_error():
            for native in natives:
                value = native(value)
        networks = [_network_of(item) for item in chain]
        own = [value] if len(chain) == 1 else [self._inputs[key] for key in keys[len(natives) :]]
        inputs = self._arrays(networks[0].feed(each_array(value)))
        piece = self._piece(networks, inputs, natives)
        if divide:
            piece |= {"profile": self._profile_of(stage), "calls": list(networks[0].answers)}
        else:
            # Now, for nothing may be asked while the answers of a round arrive. They are kept.
            for network in networks:
                for method in network.answers:
                    network.placed.call(method)
        return _Asked(natives, stage, networks, own, divide, piece, 0.0)

    def _piece(
        self, networks: Sequence[PlacedNetwork], inputs: Sequence[Mapping[str, Any]], natives: Sequence[Native]
    ) -> dict[str, Any]:
        """Return what a device is asked for: a visit without a profile."""
        reference = _network_of(self._reference)
        reference_inputs = self._arrays(reference.feed(each_array(self._reference_input)))
        names = [placed_name(item) for item in networks]
        contents = [item["content"] for item in (*inputs, *reference_inputs)]
        return {
            "do": "visit",
            "needs": list(dict.fromkeys([*names, placed_name(reference), *contents])),
            "networks": names,
            "inputs": inputs,
            "reference": placed_name(reference),
            "reference_inputs": reference_inputs,
            "settling": SETTLING_RUNS,
            "warmups": self.protocol.n_warmup,
            "runs": self._runs,
            "longest": self._longest,
            "flush": sum(_bytes_of(native) for native in natives),
            "copies": bool(natives),
            "profile": None,
            "calls": [],
        }

    def _profile_of(self, stage: Stage) -> dict[str, Any]:
        """Return how a network is profiled there, as `ProfiledRuntime.divide` does it here."""
        is_parallel = isinstance(stage, Parallel)
        return {
            "around": not isinstance(stage, (Chained, Parallel)) and self.runtime.costs_around,
            "near": is_parallel,
            "seconds": KERNEL_SECONDS if is_parallel else 0.0,
            "most": MOST_KERNEL_RUNS,
        }

    def _arrays(self, arrays: Any) -> list[dict[str, Any]]:
        return described_arrays(self._line, arrays)

    def _visit_of(self, asked: _Asked, answer: Answer) -> Visit:
        """Make a visit of what the device answered."""
        values, network = answer.values, asked.networks[0]
        assert isinstance(network.placed, DevicePlaced), network.placed
        network.placed.learn(answer)
        whole = self._times(values["whole"])
        (reference,) = self._times([values["reference"]])
        parts: list[list[float]] = [self._times(run) for run in values["parts"]]
        if asked.is_divided:
            assert isinstance(network, PlacedProfiledNetwork), network
            profiles = network.read_profile(values["profile"])
            parts = self.runtime.attribute(asked.stage, profiles, self._times(values["around"]))
        elif asked.natives and len(asked.networks) == 1:
            parts = [[seconds] for seconds in whole]
        if asked.natives and not asked.is_divided:
            least = [self.runtime.clock.resolution] * len(asked.natives)
            parts = [[*least, *run] for run in parts]
        fallen = (item.fallbacks(each_array(value)) for item, value in zip(asked.networks, asked.inputs, strict=True))
        fallbacks = dict.fromkeys(itertools.chain.from_iterable(fallen))
        return Visit(reference, parts, {"latency": whole}, fallbacks=tuple(fallbacks))

    def _times(self, seconds: Sequence[Any]) -> list[float]:
        """Return times as a device reports them, none below its clock's resolution."""
        found = [float(value) for value in seconds]
        if not all(math.isfinite(value) and value >= 0 for value in found):
            raise MeasurementError(
                f"The clock of {self.runtime.connection.description} returned {found}, which are not valid times."
            )
        return [max(value, self.runtime.clock.resolution) for value in found]

    def begin(self, key: str) -> None:
        """Get ready for `step`: the input of the network whose first subject has this key."""
        self._value, self._stepped, self._stepped_on = self._inputs[key], [], self._line.lines

    def step(self, key: str) -> None:
        """Run one subject on what the step before returned, or a kernel on its own input.

        A device that was lost since `begin` has lost what the steps before returned: they are taken again.
        """
        self._stepped.append(key)
        try:
            self._step(key)
        except CandidateError:
            if self._line.lines == self._stepped_on or len(self._stepped) == 1:
                raise
            self._value, self._stepped_on = self._inputs[self._stepped[0]], self._line.lines
            for again in self._stepped:
                self._step(again)

    def _step(self, key: str) -> None:
        stage = self._stages[key]
        with as_subject_error():
            if isinstance(stage, Native):
                self._value = stage(self._value)
                return
            if key in self._kernels and self.runtime.divides:
                self._value = self._inputs[key]
            network = _network_of(stage)
            inputs = None if self._value is None else self._arrays(network.feed(each_array(self._value)))
            self._value = None
            needs = [placed_name(network), *(item["content"] for item in inputs or ())]
            self._line.ask("step", needs=needs, network=placed_name(network), inputs=inputs)


def _network_of(stage: Any) -> PlacedNetwork:
    assert isinstance(stage, Prepared) and isinstance(stage.compiled, PlacedNetwork), stage
    return stage.compiled


def placed_name(network: PlacedNetwork) -> str:
    """Return the name of a network's content on a device."""
    assert isinstance(network.placed, DevicePlaced), network.placed
    return network.placed.name


def _bytes_of(native: Native) -> int:
    """Return how much memory a module of torch writes, which a device writes in its place."""
    buffers = native.module.buffers() if isinstance(native.module, torch.nn.Module) else ()
    return sum(buffer.nbytes for buffer in buffers)
