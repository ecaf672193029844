# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the builders of tables and points: exclusive output files, campaigns in a store, and finishing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from nni_latency.database import open_store
from nni_latency.errors import InvalidValueError
from nni_latency.files import reserved
from nni_latency.measurement import (
    SLOWED,
    Benches,
    Campaign,
    CampaignHeader,
    CampaignLog,
    Meter,
    Progress,
    Protocol,
    Record,
    Schedule,
    Store,
    StoredCampaign,
    quantile,
    summarise_fallbacks,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Conditions, remarks_on
from nni_latency.tables._header import TableHeader
from nni_latency.tables._plan import SpaceReference
from nni_latency.units import format_percent, number_of

#: Location of records: a store, its URL or file, or None for the user's default.
StoreSource = Store | str | None

#: A result with the fields `conditions`, `remarks` and `campaign`, which record how it was measured.
Result = TypeVar("Result", bound=TableHeader)


#: Key of the meters in the content of a campaign.
METERS = "meters"

#: Share of the power due to the work below which a meter may measure another device.
_LEAST_NET = 0.02

#: Metrics that require an energy meter.
METERED = ("energy", "power")


def check_metered(metric: str, meters: Sequence[Meter]) -> None:
    """Raise `InvalidValueError` if a metric requires an energy meter and there is none."""
    if metric in METERED and not any(meter.metric == "energy" for meter in meters):
        raise InvalidValueError(
            f"The metric {metric!r} needs a meter of energy: meters=(load_meter('rapl'),), or an assumed power: "
            "load_meter('constant:15')."
        )


def check_new(target: Path, *, overwrite: bool = False) -> None:
    """Raise `InvalidValueError` if a file exists and must not be replaced."""
    if target.exists() and not overwrite:
        raise InvalidValueError(f"{str(target)!r} exists. Choose another file, or replace it: overwrite=True.")


def as_store(source: StoreSource) -> Store:
    """Return a store unchanged, or open it by name."""
    return source if isinstance(source, Store) else open_store(source)


class MeasuringOptions(TypedDict, total=False):
    """The optional fields of `Measuring`."""

    store: StoreSource
    fresh: bool
    on_progress: Callable[[Progress], None]
    on_step: Callable[[Progress, str], None]
    on_start: Callable[[int], None]
    meters: tuple[Meter, ...]
    timer: Callable[[], float]


@dataclass(frozen=True)
class Measuring:
    """Measuring options of builders. Immutable.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes the subjects.
    protocol : Protocol
        Measuring protocol.
    store : Store, str or None, default=None
        Store that receives every visit before the next begins: a store, or its URL or file; by default the user's.
        Visits that it holds of the same campaign are not repeated.
    fresh : bool, default=False
        Ignore the stored visits and measure again.
    on_progress : callable, optional
        Called with a `Progress` after every round.
    on_step : callable, optional
        Called inside of a round, once a second at most, with a `Progress` and what was done.
    on_start : callable, optional
        Called with the number of rounds in the store, once everything is checked.
    meters : sequence of Meter, default=()
        Meters to read in addition to the clock.
    timer : callable, default=time.perf_counter
        Clock of the time budget [s].
    wait : float, default=0.0
        Time to wait for another process that measures the same [s].
    """

    runtime: Runtime
    protocol: Protocol
    store: StoreSource = None
    fresh: bool = False
    on_progress: Callable[[Progress], None] = lambda _progress: None
    on_step: Callable[[Progress, str], None] = lambda _progress, _what: None
    on_start: Callable[[int], None] = lambda _rounds: None
    meters: tuple[Meter, ...] = ()
    timer: Callable[[], float] = time.perf_counter
    wait: float = 0.0

    @property
    def benches(self) -> Benches:
        """Factory of benches."""
        return self.runtime.benches(self.meters)

    def run(self, schedule: Schedule, content: Mapping[str, Any]) -> Measured:
        """Measure a schedule, resuming from the store.

        Raises
        ------
        BusyError
            If another process is measuring the same.
        OutputError
            If the store cannot be written.
        MismatchError
            If runtime and protocol differ in the number of threads.
        MeasurementError
            If a required subject cannot be executed, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        """
        self.protocol.check_threads(self.runtime.platform.threads)
        store, benches = as_store(self.store), self.benches
        if self.meters:
            # The meters determine which metrics can be derived, and the length of a visit.
            content = {**content, METERS: [meter.description for meter in self.meters]}
        header = CampaignHeader(schedule.kind, content, benches.platform, schedule.protocol)
        with store.campaign(header, fresh=self.fresh, wait=self.wait) as log:
            campaign = Campaign(schedule, benches, log, self.timer, self.on_progress, self.on_step)
            self.on_start(campaign.resumed)
            campaign.run()
            return Measured.of(log)


@dataclass(frozen=True)
class Measured:
    """How the results of a campaign were measured."""

    campaign: str
    conditions: Mapping[str, Any]
    fallbacks: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()

    @classmethod
    def of(cls, campaign: CampaignLog | StoredCampaign) -> Measured:
        """Collect it from the records of a campaign."""
        networks = {record.subjects: record.fallbacks for record in campaign.records}
        records = tuple(campaign.records)
        return cls(campaign.identifier, dict(campaign.conditions), summarise_fallbacks(networks), records)

    def mark(self, result: Result) -> Result:
        """Add the campaign, its fallbacks and its conditions to a table or a set of points."""
        known = (*result.remarks, *self.fallbacks)
        fields: dict[str, Any] = {"campaign": self.campaign, "remarks": known}
        if set(self.conditions) >= {"before", "after"}:
            before, after = (Conditions.from_dict(self.conditions[moment]) for moment in ("before", "after"))
            fields["conditions"] = {"before": before.as_dict(), "after": after.as_dict()}
            slowed = self.conditions.get(SLOWED, {})
            hot = {name: slowed[name] for name in ("cpu_slowed", "cpu_temperature") if name in slowed}
            remarks = remarks_on(before, replace(after, **hot))
            fields["remarks"] = (*known, *map(str, remarks), *self._metered(before, after))
        return replace(result, **fields)

    def _metered(self, before: Conditions, after: Conditions) -> Iterator[str]:
        """Describe the meter, the share of energy that is net of idle power, and disturbed windows."""
        powers = [watts for record in self.records for watts in record.samples.get("power", ())]
        if not powers or before.meter_assumption:
            return
        idle = [conditions.idle_power for conditions in (before, after) if conditions.idle_power is not None]
        rest = "What the machine draws without work is not known."
        if idle:
            net = max(0.0, 1 - sum(idle) / len(idle) / quantile(powers, 0.5))
            moments = zip(idle, ("before", "after"), strict=False)
            drawn = " and ".join(f"{watts:.3g} W {moment}" for watts, moment in moments)
            rest = f"Without work the machine drew {drawn}: {format_percent(net)} of it is net."
            if net < _LEAST_NET:
                rest += " The meter hardly shows the work: it may be that of another machine, or device."
        yield f"Energy and power are gross, read by {before.meter}. {rest}"
        disturbed = [marks for record in self.records if (marks := record.marks)]
        if disturbed:
            yield f"Disturbed: {len(disturbed)} of {number_of(len(powers), 'window')}. The first: {disturbed[0][0]}"


@contextlib.contextmanager
def new_file(out: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """Reserve a file for writing, so that no other process writes it meanwhile.

    Raises
    ------
    OutputError
        If it cannot be written.
    InvalidValueError
        If it exists and `overwrite` is false.
    BusyError
        If another process is writing it.
    """
    target = Path(out)
    with reserved(target, "building"):
        check_new(target, overwrite=overwrite)
        yield target


def space_content(space: SpaceReference, input_shape: tuple[int, ...], what: Any) -> dict[str, Any]:
    """Return the content of a campaign over a space, as plain values."""
    return {
        "space": space.as_dict(),
        "input_shape": list(input_shape),
        "what": what,
    }
