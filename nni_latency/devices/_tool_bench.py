# SPDX-License-Identifier: Apache-2.0
"""Benches of a benchmark binary: a visit starts it on the reference network, and then on the network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nni_latency.devices._device_bench import DeviceBenches, HoldingBench
from nni_latency.measurement import Bench, CandidateError, Protocol, Stage, Visit, as_subject_error
from nni_latency.measurement.runtimes import (
    Chained,
    CompiledNetwork,
    Native,
    Parallel,
    Prepared,
    ProfiledNetwork,
    each_array,
)

if TYPE_CHECKING:
    from nni_latency.devices._tool_runtime import ToolRuntime


class ToolBenches(DeviceBenches):
    """Benches of a benchmark binary on a device; it is another process for every visit."""

    runtime: ToolRuntime

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench."""
        return ToolBench(self.runtime, protocol, calls=calls)


class ToolBench(HoldingBench):
    """A bench of a benchmark binary.

    A subject that crashes or hangs takes one start of the tool with it.

    Parameters
    ----------
    runtime, protocol, calls
        As for `LocalBench`. The protocol's `timeout` is how long one start may take.
    """

    runtime: ToolRuntime

    def _get_ready(self) -> None:
        device = self.runtime.device
        device.timeout, device.warmups, device.longest = self.protocol.timeout, self.protocol.n_warmup, self._longest

    def _try(self, stage: Stage, inputs: Any) -> None:
        if isinstance(stage, Prepared):
            _times(stage.compiled, each_array(inputs), 1)

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Run the reference network, and then a network."""
        calls = calls and self.calls
        divide = self.runtime.divides and (len(keys) > 1 or calls or self._are_kernels(keys))
        chain, value = self._network(keys, divide=divide)
        if len(chain) != 1 or not isinstance(chain[0], Prepared):
            raise self._refusal()
        stage = chain[0]
        inputs = each_array(value)
        with as_subject_error():
            reference = statistics.median(_times(_compiled(self._reference), each_array(self._reference_input), 3))
            runs = self._runs
            if not divide:
                whole = _times(stage.compiled, inputs, runs)
                return Visit(reference, [], {"latency": whole}, fallbacks=self.runtime.fallbacks(stage, value))
            whole, parts = self._divided_runs(stage, inputs, runs)
            return Visit(reference, parts, {"latency": whole}, fallbacks=self.runtime.fallbacks(stage, value))

    def _divided_runs(self, stage: Prepared, inputs: Any, runs: int) -> tuple[list[float], list[list[float]]]:
        """Return times of whole runs, and of the parts in equally many."""
        compiled = stage.compiled
        assert isinstance(compiled, ProfiledNetwork), compiled
        profiles = compiled.profile(lambda: inputs, runs)
        if not profiles or not profiles[0].nodes:
            raise CandidateError(f"{self.runtime.device.tool.name} reports no layers")
        if self.runtime.device.tool.counts_always:
            whole = [run.seconds for run in profiles]
        else:
            whole = _times(compiled, inputs, runs)
        around = whole if self.runtime.costs_around and not isinstance(stage, Parallel) else []
        parts = self.runtime.attribute(stage, profiles, around)
        count = min(len(whole), len(parts))
        if count == len(whole):
            return whole, parts[:count]
        # Where the tool reports layers as a mean alone, the runs have their shares.
        return [statistics.median(whole)] * count, parts[:count]

    def _refusal(self) -> CandidateError:
        return CandidateError(
            f"{self.runtime.device.tool.name} runs whole networks, and nothing that is timed behind other work of this "
            "machine, such as an operator behind a flush of the caches"
        )

    def step(self, key: str) -> None:
        """Run one subject, on inputs that the tool makes."""
        with as_subject_error():
            stage = self._stages[key]
            if isinstance(stage, (Native, Chained)):
                raise self._refusal()
            _times(_compiled(stage), each_array(self._inputs[key]), 1)


def _compiled(stage: Any) -> CompiledNetwork:
    assert isinstance(stage, Prepared), stage
    return stage.compiled


def _times(compiled: CompiledNetwork, inputs: Any, runs: int) -> list[float]:
    found = compiled.times(inputs, runs)
    assert found is not None, compiled
    return found
