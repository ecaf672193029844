# SPDX-License-Identifier: Apache-2.0
"""Measurement of this machine for a graph predictor: a sample of networks, as many as a budget allows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np

import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.graphs import MeasuredNetwork
from nni_latency.learning._speed import measure_reference
from nni_latency.measurement import Progress, Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.tables import MeasuringOptions
from nni_latency.units import format_seconds, number_of

#: Default protocol: three visits per network suffice, since the predictor errs more than a visit does. Its campaigns
#: differ from those of data sets, so that each has a budget of its own.
MACHINE_PROTOCOL = Protocol(
    n_warmup=1, n_run=10, max_measure_execution_time=0.05, time_budget=180.0, half_width=0.05, processes=1, timeout=60.0
)

#: Fewest networks from which a platform is learned.
FEWEST = 5

#: Smallest budget in which that many networks can be prepared, loaded and visited [s].
_LEAST_BUDGET = 30.0

#: Time per network that is assumed before the first ones are measured [s].
_FIRST_GUESS = 1.5

#: Share of the budget that remains for learning: a minute for 180 networks on one core.
LEARNING_SHARE = 0.35

#: Seed of the choice of networks.
_SEED = 0

#: Candidates of a family, and of each kind of random blocks.
_CANDIDATES, _MIXED_CANDIDATES = 12, 48

#: Largest latency of a candidate on the platforms that ship [s]: in the time of a larger one, several small ones are
#: loaded and measured.
_LARGEST = 0.1

#: Networks that are chosen at most, and those that are written and measured before the next are.
_MOST, _AT_ONCE = 256, 20

#: Fewest visits of a network to learn from: the first one is cold.
_FEWEST_VISITS = 2

#: Called with what is done, and the share of the budget that is spent.
Watch = Callable[[str, float], None]


@dataclass(frozen=True)
class MachineMeasurements:
    """Networks measured on this machine for a predictor. Immutable.

    Parameters
    ----------
    networks : tuple of MeasuredNetwork
        Measured networks, the anchors of the data set first.
    failures : mapping of str to str
        Networks that the runtime cannot run, and the reason.
    spent : float
        Time spent measuring, loading included, in earlier calls as well [s].
    """

    networks: tuple[MeasuredNetwork, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    spent: float = 0.0


def choose_networks(count: int = _MOST, *, takes_onnx: bool = True) -> list[datasets.NetworkEntry]:
    """Draw networks of the shipped data set to measure on a new platform, always the same.

    Candidates run in at most 0.1 s on the platforms of the data set, which holds their graphs and files. Of as many as
    three minutes allow, a random sample teaches as much as the most informative networks do, and these are predicted
    worse than others, so that intervals would be too wide.

    Parameters
    ----------
    count : int
        Maximum number of networks.
    takes_onnx : bool, default=True
        Whether the runtime takes ONNX files; if not, only families of modules are chosen.

    Returns
    -------
    list of NetworkEntry
        One latency of each network. The anchors of `nni_latency.datasets.measure_networks`, which are measured in any
        case, come first.
    """
    candidates = _candidates(takes_onnx=takes_onnx)
    published = {item.family: number for number, item in enumerate(candidates) if item.seed == 0}
    order = np.random.default_rng(_SEED).permutation(len(candidates)).tolist()
    anchors = (published[name] for name in datasets.ANCHORS)
    return [candidates[number] for number in dict.fromkeys((*anchors, *order))][:count]


def _candidates(*, takes_onnx: bool) -> list[datasets.NetworkEntry]:
    """Return one entry per candidate, a limited number of each family."""
    known: dict[str, list[datasets.NetworkEntry]] = {}
    for entry in datasets.load_networks():
        has_module = entry.seed is not None and entry.family in graphs.families()
        if entry.batch_size == 1 and (takes_onnx or has_module):
            known.setdefault(entry.name, []).append(entry)
    found: dict[str, list[datasets.NetworkEntry]] = {}
    for name in sorted(known):
        entries = known[name]
        family = entries[0].family
        most = _MIXED_CANDIDATES if family in graphs.MIXED else _CANDIDATES
        taken = found.setdefault(family, [])
        if len(taken) < most and statistics.median(item.latency for item in entries) <= _LARGEST:
            taken.append(entries[0])
    return [item for entries in found.values() for item in entries]


def measure_machine(
    runtime: Runtime,
    budget: float = 180.0,
    *,
    device: str | None = "cpu",
    facts: Callable[[], Mapping[str, float]] = dict,
    watch: Watch = lambda _what, _share: None,
    clock: Callable[[], float] = time.perf_counter,
    **how: Unpack[MeasuringOptions],
) -> MachineMeasurements:
    """Measure as many of the chosen networks as a budget allows, on this machine.

    Every visit is stored before the next begins: the same call resumes.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes the networks.
    budget : float
        Maximum time [s]; `LEARNING_SHARE` of it is left for learning. Choosing, writing and loading of networks count.
    device : str or None
        Device of the runtime, whose speed is measured by the reference operator in torch; None for one without torch.
    facts : callable, optional
        Returns further facts of the device, such as those of `nni_latency.platforms.measure_speeds`.
    watch : callable, optional
        Called with the current step, and the spent share of the budget.
    clock : callable
        Clock [s].
    **how
        As for `nni_latency.tables.build_table`, without ``on_progress``.

    Returns
    -------
    MachineMeasurements
        The platform of its networks has the facts ``predictor``, the digest of the shipped predictor, and, unless
        earlier calls measured everything, ``reference``, the time of the reference operator [s].

    Raises
    ------
    InvalidValueError
        If the budget is too small for five networks.
    MeasurementError
        If fewer than five networks could be measured.
    LatencyError
        As for `nni_latency.datasets.measure_networks`.
    """
    if budget < _LEAST_BUDGET:
        raise InvalidValueError(
            f"The 'budget' must be at least {format_seconds(_LEAST_BUDGET)}, to measure {FEWEST} networks and learn "
            f"from them. Got {format_seconds(budget)}."
        )
    campaign = _Campaign(runtime, budget, device, watch, clock, how)
    campaign.choose(facts)
    while campaign.has_time():
        campaign.measure_more()
    return campaign.result()


class _Campaign:
    """Batches of chosen networks, written and measured until the budget is spent."""

    def __init__(
        self,
        runtime: Runtime,
        budget: float,
        device: str | None,
        watch: Watch,
        clock: Callable[[], float],
        how: MeasuringOptions,
    ) -> None:
        self._runtime, self._device, self._clock, self._watch = runtime, device, clock, watch
        self._budget, self._whole = budget * (1 - LEARNING_SHARE), budget
        # What is measured again is fresh in the first batch only.
        self._how: dict[str, Any] = dict(how)
        #: Time spent on anything but measuring, which the campaign does not count [s].
        self._aside = 0.0
        self._chosen: Iterator[datasets.NetworkFile] = iter(())
        self._is_last = self._replays = self._has_measured = False
        self._files: list[datasets.NetworkFile] = []
        self._facts: Mapping[str, float] = {}
        self._references: list[float] = []
        self._found: datasets.PlatformLatencies | None = None

    def choose(self, facts: Callable[[], Mapping[str, float]]) -> None:
        """Choose the networks, and measure the speed of the device."""
        self._tell("choosing networks")
        begin = self._clock()
        chosen = choose_networks(takes_onnx=self._runtime.takes_onnx)
        self._chosen = datasets.measured_files(datasets.load_networks(), chosen)
        self._facts = facts()
        self._measure_reference()
        self._aside += self._clock() - begin

    def _measure_reference(self) -> None:
        if self._device is not None:
            self._references.append(measure_reference(self._device, self._runtime.platform.threads))

    @property
    def _spent(self) -> float:
        return self._found.duration if self._found is not None else 0.0

    @property
    def _left(self) -> float:
        return self._budget - self._aside - self._spent

    def has_time(self) -> bool:
        """Whether another batch can be measured, or was measured by an earlier call."""
        return not self._is_last and (self._replays or (self._left > 0 and self._next_count() >= 1))

    def _next_count(self) -> int:
        """Return the number of networks for which the rest of the budget suffices, by those so far."""
        if self._replays:
            return _AT_ONCE
        if not self._files:
            return max(FEWEST, min(_AT_ONCE, math.floor(self._left / _FIRST_GUESS)))
        taken = (self._aside + self._spent) / len(self._files)
        return min(_AT_ONCE, math.floor(self._left / taken))

    def measure_more(self) -> None:
        """Write and measure the next batch."""
        begin = self._clock()
        new = list(islice(self._chosen, self._next_count()))
        self._is_last = not new
        if self._is_last:
            return
        self._files += new
        self._aside += self._clock() - begin
        threads = self._runtime.platform.threads
        # Another version ships with other networks: its campaign begins anew.
        seed = int(graphs.shipped_digest()[:6], 16)
        left = max(1.0, self._budget - self._aside)
        protocol = replace(MACHINE_PROTOCOL, threads=threads, time_budget=left, seed=seed)
        what = f"measuring {number_of(len(self._files), 'network')}"
        has_measured = False

        def report(state: Progress) -> None:
            nonlocal has_measured
            has_measured = True
            self._tell(what, state.spent - self._spent)

        how = {**self._how, "on_progress": report}
        found = datasets.measure_networks(self._files, self._runtime, protocol=protocol, facts=self._facts, **how)
        self._found, self._how["fresh"] = found, False
        # An earlier call may have measured the next batches, too.
        self._has_measured = self._has_measured or has_measured
        self._replays = not has_measured and all(item.key in (*found.latencies, *found.failures) for item in new)
        begin = self._clock()
        self._measure_reference()
        self._aside += self._clock() - begin

    def _tell(self, what: str, since: float = 0.0) -> None:
        self._watch(what, min(1 - LEARNING_SHARE, (self._aside + self._spent + since) / self._whole))

    def result(self) -> MachineMeasurements:
        """Return the measured networks as training data."""
        found = self._found
        if found is None:
            raise MeasurementError("The budget was spent before the first network was measured. Give a larger one.")
        facts = {**found.platform.facts, "predictor": graphs.shipped_digest()}
        if self._has_measured and self._references:
            facts["reference"] = float(f"{statistics.median(self._references):.4g}")
        platform = replace(found.platform, facts=facts)
        networks = tuple(
            MeasuredNetwork(
                item.batched_name,
                item.graph,
                found.latencies[item.key].value,
                platform,
                item.family,
                found.kernels_of(item, item.graph),
            )
            for item in self._files
            if item.key in found.latencies and found.latencies[item.key].n_visits >= _FEWEST_VISITS
        )
        failures = {item.name: found.failures[item.key] for item in self._files if item.key in found.failures}
        if len(networks) < FEWEST:
            reason = next((f" {name} failed: {reason.rstrip('.')}." for name, reason in failures.items()), "")
            raise MeasurementError(
                f"{number_of(len(networks), 'network')} could be measured within the budget, and a platform is learned "
                f"from {FEWEST} or more.{reason} What was measured is kept: run the same command with a larger budget."
            )
        return MachineMeasurements(networks, failures, found.duration)
