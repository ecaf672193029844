# SPDX-License-Identifier: Apache-2.0
"""Detection of fused operators: rounds of probes and their evaluation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.fusion._document import save_rules
from nni_latency.fusion._probes import PROBES, Probe, constant_network, layout_networks, operator_names
from nni_latency.measurement import (
    Chain,
    Failure,
    Measurement,
    NetworkSchedule,
    Protocol,
    Record,
    Subject,
    Summary,
    fewest_samples,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import FusionRule, FusionRules, FusionTimes
from nni_latency.tables import Measuring, MeasuringOptions, new_file


class FusionSchedule(NetworkSchedule):
    """Rounds over the networks of all probes and an empty one, in a random order per round.

    A probe is fused if running its operators together saves more than half of the time of the shorter part (nn-Meter
    [1]_). Measuring continues until every probe is conclusive, or the budget is spent.

    Parameters
    ----------
    probes : sequence of Probe
        Probes to measure.
    protocol, isolated
        As for `nni_latency.measurement.Schedule`.

    References
    ----------
    .. [1] L. L. Zhang et al., "nn-Meter: towards accurate latency prediction of deep-learning model inference on
       diverse edge devices", MobiSys 2021. https://doi.org/10.1145/3458864.3467882
    """

    kind = "fusion"
    counts_preparation = True
    # Every visit warms up its network.
    warm_up = 1

    def __init__(self, probes: Sequence[Probe], protocol: Protocol, *, isolated: bool = True) -> None:
        self._trivial = constant_network()
        networks = {subject.key: subject for probe in probes for subject in probe.networks}
        super().__init__([self._trivial, *networks.values()], protocol, isolated=isolated)
        self.probes = tuple(probes)
        self._summaries: dict[str, Summary] = {}
        self._fewest_samples = fewest_samples(protocol.statistic, protocol.confidence)

    @property
    def unsettled(self) -> int:
        """Number of inconclusive probes."""
        return sum(not self._is_clear(probe) for probe in self.probes if not self.reason_against(probe))

    def next_round(self) -> list[Chain]:
        """Return the networks of inconclusive probes and the empty one in a new random order."""
        unclear = [probe for probe in self.probes if not self.reason_against(probe) and not self._is_clear(probe)]
        wanted = {self._trivial.key, *(subject.key for probe in unclear for subject in probe.networks)}
        return [chain for chain in super().next_round() if chain[0].key in wanted]

    @property
    def constant(self) -> float:
        """Overhead of the runtime per run [s]."""
        return self._summary(self._trivial.key).value

    def reason_against(self, probe: Probe) -> str:
        """Return the reason why a probe cannot be measured; empty if it can."""
        keys = [subject.key for subject in probe.networks]
        return next((f"{key.partition('@')[0]}: {self.failures[key]}" for key in keys if key in self.failures), "")

    def times(self, probe: Probe) -> FusionTimes:
        """Return the times of a probe, separately and together, without the overhead of the runtime."""
        found = [self._summary(key) for key in (*(subject.key for subject in probe.networks), self._trivial.key)]
        before, last, together = (item.value - found[-1].value for item in found[:3])
        shorter = min(before, last)
        error = math.hypot(*(item.half_width for item in found))
        return FusionTimes(before, last, together, error / shorter if shorter > 0 else 1.0)

    def observe(self, records: Sequence[Record]) -> None:
        """Add the records of one round."""
        super().observe(records)
        self._summaries.clear()

    def fail(self, failure: Failure) -> None:
        """Exclude a network.

        Raises
        ------
        MeasurementError
            If the empty network fails, without which no probe can be evaluated.
        """
        super().fail(failure)
        if failure.subject == self._trivial.key:
            raise MeasurementError(f"The runtime cannot run a network of a single ReLU: {failure.reason}.")

    def _is_clear(self, probe: Probe) -> bool:
        keys = [subject.key for subject in probe.networks]
        return all(len(self._samples.get(key, ())) >= self._fewest_samples for key in keys) and self.times(probe).clear

    def _summary(self, key: str) -> Summary:
        if key not in self._summaries:
            self._summaries[key] = Measurement(tuple(self._samples[key]), self.protocol).summary
        return self._summaries[key]


#: Channel counts by their largest power-of-two divisor, on which the layout of an operator may depend.
_CHANNELS_OF_BLOCKS = {4: 20, 8: 24, 16: 48, 32: 96, 64: 64}


def detect_fusion(
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    probes: Sequence[Probe] = PROBES,
    overwrite: bool = False,
    **how: Unpack[MeasuringOptions],
) -> FusionRules:
    """Detect which operators a runtime fuses, and write the rules.

    If the runtime reports fused operators (`nni_latency.measurement.runtimes.Runtime.fused_operators`), they are used.
    Otherwise, the operators of every probe are measured separately and together in interleaved rounds; every visit is
    stored before the next begins: the same call resumes.

    Parameters
    ----------
    runtime : Runtime
        Runtime to examine; its platform is written to the file.
    protocol : Protocol
        Measurement protocol.
    out : str or Path
        Path of the file of rules.
    probes : sequence of Probe
        Probes to test; by default neighbours common in networks.
    overwrite : bool, default=False
        Whether to replace a finished file.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    FusionRules
        The written rules.

    Raises
    ------
    OutputError
        If the file or a record cannot be written.
    InvalidValueError
        If the file exists and `overwrite` is false, there is no probe or a duplicate, or the budget is too small for
        one round.
    BusyError
        If another process writes the file or measures on the platform.
    MismatchError
        If runtime and protocol differ in the number of threads.
    MeasurementError
        If nothing can be run, or the clock fails.
    """
    if not probes or len(set(probes)) != len(probes):
        raise InvalidValueError("The 'probes' must all be different, at least one.")
    with new_file(out, overwrite=overwrite) as target:
        rules = _told(runtime, probes) or _measured(Measuring(runtime, protocol, **how), probes)
        save_rules(rules, target)
    return rules


def _measured(measuring: Measuring, probes: Sequence[Probe]) -> FusionRules:
    schedule = FusionSchedule(probes, measuring.protocol, isolated=measuring.benches.isolated)
    done = measuring.run(schedule, {"probes": [list(probe.kinds) for probe in probes]})
    failures = {probe.name: reason for probe in probes if (reason := schedule.reason_against(probe))}
    rules = []
    for probe in probes:
        if probe.name not in failures:
            times = schedule.times(probe)
            fused = times.share > 0.5
            rules.append(FusionRule(probe.kinds, fused, folds=fused and probe.folds, times=times))
    return FusionRules(measuring.runtime.platform, tuple(rules), schedule.constant, failures, done.campaign)


def _told(runtime: Runtime, probes: Sequence[Probe]) -> FusionRules | None:
    """Derive the rules from the kernels that the runtime reports; None if it does not report them."""
    if type(runtime).fused_operators is Runtime.fused_operators:
        return None
    rules, failures = [], {}
    with runtime.session():
        for probe in probes:
            try:
                kernels = kernels_of(runtime, probe.asked)
            except Exception as error:  # a runtime may raise anything about a network
                failures[probe.name] = f"{type(error).__name__}: {error}"
                continue
            if kernels is None:
                return None
            rules.append(_read_off(probe, kernels))
        plain, blocks = _layouts(runtime)
    if not rules:
        reason = next(iter(failures.values()))
        raise MeasurementError(f"The runtime {runtime.name!r} can be asked about no probe: {reason}")
    return FusionRules(runtime.platform, tuple(rules), failures=failures, plain=plain, blocks=blocks)


def _layouts(runtime: Runtime) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the kinds of operators that never use the layout of convolutions, and the block sizes of the others."""
    copied = {block: _kinds_copied(runtime, channels) for block, channels in _CHANNELS_OF_BLOCKS.items()}
    plain = copied[max(copied)]
    blocks = {}
    for kind in dict.fromkeys(kind for kinds in copied.values() for kind in kinds if kind not in plain):
        blocks[kind] = 2 * max(block for block, kinds in copied.items() if kind in kinds)
    return plain, blocks


def _kinds_copied(runtime: Runtime, channels: int) -> tuple[str, ...]:
    """Return the kinds of operators for which the runtime changes the layout between two convolutions."""
    changes: dict[str, int] = {}
    for kind, subject in layout_networks(channels).items():
        inputs = runtime.inputs(subject.inputs)
        with contextlib.suppress(Exception):  # a runtime may raise anything about a network
            # Every further input is converted to the layout of the convolution that reads it.
            taken = len(inputs) if isinstance(inputs, tuple) else 1
            changes[kind] = (runtime.layout_changes(subject, inputs) or 0) - taken
    return tuple(kind for kind, count in changes.items() if count > changes.get("", count))


def kernels_of(runtime: Runtime, subject: Subject) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the kernels of a probe's network by name, with the indices of their operators; None if not reported."""
    kernels = runtime.fused_operators(subject, runtime.inputs(subject.inputs))
    if kernels is None:
        return None
    numbers = operator_names(subject)
    found = ((kernel, [_number(part, numbers) for part in parts]) for kernel, parts in kernels)
    return [(kernel, tuple(number for number in places if number is not None)) for kernel, places in found]


def _number(part: str, numbers: Mapping[str, int]) -> int | None:
    """Return the index of an operator; functions are named by module and function, such as parts.0.conv2d."""
    return next((number for name, number in numbers.items() if f"{part}.".startswith(f"{name}.")), None)


def _read_off(probe: Probe, kernels: Sequence[tuple[str, tuple[int, ...]]]) -> FusionRule:
    last = len(probe.kinds) - 1
    kernel, parts = next(((name, parts) for name, parts in kernels if last in parts), ("no kernel of its own", ()))
    fused = last - 1 in parts
    listed = " + ".join(probe.kinds[part] for part in parts) or "nothing"
    source = f"read from the runtime's model: {kernel} runs {listed}"
    return FusionRule(probe.kinds, fused, folds=fused and probe.folds, source=source)
