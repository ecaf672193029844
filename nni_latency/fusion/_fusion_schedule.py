"""`FusionSchedule`: probes, apart and together, until it is clear of each whether it runs as one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nni_latency.errors import MeasurementError
from nni_latency.fusion._probes import Probe, constant_network
from nni_latency.measurement import (
    Chain,
    Failure,
    Measurement,
    NetworkSchedule,
    Protocol,
    Record,
    Summary,
    fewest_samples,
)
from nni_latency.operators import FusionTimes


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
