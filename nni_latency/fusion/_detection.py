"""Which operators a runtime runs as one kernel: the rounds of the probes, and what they say."""

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
    """Rounds over the networks of all probes and one that takes no time, in an order that is drawn anew for each.

    A probe is fused if together its operators take less than apart by more than half of what the shorter part takes
    (nn-Meter [1]_). Measuring goes on until that is clear of every probe, or the budget is spent.

    Parameters
    ----------
    probes : sequence of Probe
        What to try.
    protocol, isolated
        As for `nni_latency.measurement.Schedule`.

    References
    ----------
    .. [1] L. L. Zhang et al., "nn-Meter: towards accurate latency prediction of deep-learning model inference on
       diverse edge devices", MobiSys 2021. https://doi.org/10.1145/3458864.3467882
    """

    kind = "fusion"
    counts_preparation = True
    # Every visit warms its own network up.
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
        """How many probes are not clear yet."""
        return sum(not self._is_clear(probe) for probe in self.probes if not self.reason_against(probe))

    def next_round(self) -> list[Chain]:
        """Return the networks of the probes that are not clear yet in a new order, and the one that takes no time."""
        unclear = [probe for probe in self.probes if not self.reason_against(probe) and not self._is_clear(probe)]
        wanted = {self._trivial.key, *(subject.key for probe in unclear for subject in probe.networks)}
        return [chain for chain in super().next_round() if chain[0].key in wanted]

    @property
    def constant(self) -> float:
        """What the runtime adds to every run [s]."""
        return self._summary(self._trivial.key).value

    def reason_against(self, probe: Probe) -> str:
        """Say why a probe cannot be tried; empty if it can."""
        keys = [subject.key for subject in probe.networks]
        return next((f"{key.partition('@')[0]}: {self.failures[key]}" for key in keys if key in self.failures), "")

    def times(self, probe: Probe) -> FusionTimes:
        """Return what a probe takes apart and together, less what the runtime adds to every run."""
        found = [self._summary(key) for key in (*(subject.key for subject in probe.networks), self._trivial.key)]
        before, last, together = (item.value - found[-1].value for item in found[:3])
        shorter = min(before, last)
        error = math.hypot(*(item.half_width for item in found))
        return FusionTimes(before, last, together, error / shorter if shorter > 0 else 1.0)

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round."""
        super().observe(records)
        self._summaries.clear()

    def fail(self, failure: Failure) -> None:
        """Leave a network out.

        Raises
        ------
        MeasurementError
            If it is the one that takes no time, without which nothing can be told.
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


#: By a power of two, channels of which it is the largest that divides them: whether an operator works in the layout of
#: convolutions may depend on that.
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
    """Find out which operators a runtime runs as one kernel, and write the rules.

    A runtime that says so is asked (`nni_latency.measurement.runtimes.Runtime.fused_operators`). With any other, the
    operators of every probe are measured apart and together, in interleaved rounds; every visit is in the store before
    the next begins: the same call resumes.

    Parameters
    ----------
    runtime : Runtime
        What makes the kernels; its platform goes into the file.
    protocol : Protocol
        How to measure.
    out : str or Path
        Where the rules go.
    probes : sequence of Probe
        What to try; by default the neighbours that networks have.
    overwrite : bool, default=False
        Replace a finished file.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    FusionRules
        What was written.

    Raises
    ------
    OutputError
        If the file or a record cannot be written.
    InvalidValueError
        If there is a file already and `overwrite` is false, there is no probe or one is there twice, or the budget is
        too small for one round.
    BusyError
        If another process writes the file or measures the same.
    MismatchError
        If runtime and protocol differ in threads.
    MeasurementError
        If nothing can be run, or the clock does not work.
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
    """Read the rules off the runtime's own division of the probes; None if it does not say."""
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
    """Return the kinds of operators that never work in the layout of convolutions, and the blocks of those that may."""
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
            # Every further input is brought into the layout of the convolution that takes it.
            taken = len(inputs) if isinstance(inputs, tuple) else 1
            changes[kind] = (runtime.layout_changes(subject, inputs) or 0) - taken
    return tuple(kind for kind, count in changes.items() if count > changes.get("", count))


def kernels_of(runtime: Runtime, subject: Subject) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the kernels of a probe's network by name, with the numbers of their operators; None if nobody says."""
    kernels = runtime.fused_operators(subject, runtime.inputs(subject.inputs))
    if kernels is None:
        return None
    numbers = operator_names(subject)
    found = ((kernel, [_number(part, numbers) for part in parts]) for kernel, parts in kernels)
    return [(kernel, tuple(number for number in places if number is not None)) for kernel, places in found]


def _number(part: str, numbers: Mapping[str, int]) -> int | None:
    """Return the number of an operator; a function is named by its module and itself, such as parts.0.conv2d."""
    return next((number for name, number in numbers.items() if f"{part}.".startswith(f"{name}.")), None)


def _read_off(probe: Probe, kernels: Sequence[tuple[str, tuple[int, ...]]]) -> FusionRule:
    last = len(probe.kinds) - 1
    kernel, parts = next(((name, parts) for name, parts in kernels if last in parts), ("no kernel of its own", ()))
    fused = last - 1 in parts
    listed = " + ".join(probe.kinds[part] for part in parts) or "nothing"
    source = f"read from the runtime's model: {kernel} runs {listed}"
    return FusionRule(probe.kinds, fused, folds=fused and probe.folds, source=source)
