"""What campaigns say of kernels, and predictors that learn from it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed

from nni_latency.errors import InvalidValueError, LatencyError, listed
from nni_latency.kernels._catalogue import kernel_types
from nni_latency.kernels._execution_mode import execution_mode_of_records
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_schedule import KernelSchedule, is_kernel
from nni_latency.kernels._kernel_type import KernelType, is_sound
from nni_latency.kernels._model import CANDIDATES
from nni_latency.kernels._predictor import FEWEST_KERNELS, KernelPredictor
from nni_latency.kernels._predictors import KernelPredictors, MeasuredKernel
from nni_latency.kernels._prior import Prior
from nni_latency.kernels._sampling import Sampling
from nni_latency.measurement import Protocol, StoredCampaign
from nni_latency.platforms import Platform
from nni_latency.units import number_of

#: Kernels from which boosted trees learn anything worth their time.
_ENOUGH_FOR_BOOSTING = 40

#: Told how many groups are done, and how many there are.
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class KernelRecords:
    """What the campaigns of one platform say of kernels. Immutable.

    Parameters
    ----------
    platform : Platform
        Where they were measured.
    protocol : Protocol
        How the latest campaign measured.
    kernels : tuple of MeasuredKernel
        Each kernel once, as the latest campaign has it, sorted by key.
    constant : float
        What a run of the runtime takes outside of its kernels [s].
    types : mapping of str to KernelType
        The kinds of the kernels, and all others that are known.
    rounds : int, default=0
        Rounds of all campaigns.
    duration : float, default=0.0
        Time spent measuring in them [s].
    """

    platform: Platform
    protocol: Protocol
    kernels: tuple[MeasuredKernel, ...]
    constant: float
    types: Mapping[str, KernelType]
    rounds: int = 0
    duration: float = 0.0


def read_kernels(
    campaigns: Iterable[StoredCampaign], types: Mapping[str, KernelType] | None = None
) -> KernelRecords | None:
    """Return what campaigns of one platform say of kernels, of which the later ones count; None if they say nothing.

    Parameters
    ----------
    campaigns : iterable of StoredCampaign
        The oldest first, of `build_predictors` or `measure_kernels`, on one platform.
    types : mapping of str to KernelType, optional
        Types of plugins, besides those of the catalogue. Kernels of other kinds are left out.
    """
    known = {**kernel_types(), **(types or {})}
    found: dict[Kernel, MeasuredKernel] = {}
    constant, latest = 0.0, None
    rounds, duration = 0, 0.0
    for campaign in campaigns:
        schedule = _replayed(campaign, known)
        if schedule is None:
            continue
        found |= {item.kernel: item for item in measured_in(schedule, schedule.learned_from)}
        constant, latest = schedule.constant or constant, campaign.header
        rounds, duration = rounds + schedule.rounds, duration + schedule.spent
    if latest is None:
        return None
    kernels = tuple(sorted(found.values(), key=lambda item: item.kernel.key))
    return KernelRecords(latest.platform, latest.protocol, kernels, constant, known, rounds, round(duration, 3))


def learn_kernels(
    records: KernelRecords, kernels: Sequence[MeasuredKernel] | None = None, watch: Watch = lambda _done, _total: None
) -> KernelPredictors:
    """Learn predictors of what campaigns say of kernels.

    Parameters
    ----------
    records : KernelRecords
        What they say.
    kernels : sequence of MeasuredKernel, optional
        Those of them that are learned from; by default all.
    watch : callable, optional
        Told how many groups of kernels are done, and how many there are; first when none is done.

    Raises
    ------
    InvalidValueError
        If there are too few kernels of every group.
    """
    chosen = records.kernels if kernels is None else tuple(kernels)
    by_group: dict[str, dict[Kernel, float]] = {}
    for item in chosen:
        by_group.setdefault(records.types[item.kernel.kind].group, {})[item.kernel] = item.value
    predictors, few = fit_groups(by_group, records.types, watch=watch)
    if not predictors:
        raise InvalidValueError(
            f"A predictor needs {FEWEST_KERNELS} kernels of a group. {records.platform.id} has {len(chosen)} in "
            f"{number_of(len(by_group), 'group')}."
        )
    return KernelPredictors(
        predictors=predictors,
        kernels=chosen,
        constant=records.constant,
        platform=records.platform,
        protocol=records.protocol,
        rounds=records.rounds,
        duration=records.duration,
        remarks=(f"Fewer than {FEWEST_KERNELS} kernels were measured of: {listed(few)}.",) if few else (),
    )


def fit_groups(
    by_group: Mapping[str, Mapping[Kernel, float]],
    types: Mapping[str, KernelType],
    seed: int = 0,
    watch: Watch = lambda _done, _total: None,
) -> tuple[dict[str, KernelPredictor], list[str]]:
    """Fit a predictor for every group of kernels; also return the groups that have too few for one."""
    few = [group for group, known in by_group.items() if len(known) < FEWEST_KERNELS]
    enough = {group: known for group, known in by_group.items() if group not in few}
    # One after another, unless whoever calls has joblib do several side by side.
    found = Parallel(return_as="generator")(delayed(_fit_group)(known, types, seed) for known in enough.values())
    predictors: dict[str, KernelPredictor] = {}
    if enough:
        watch(0, len(enough))
    for group, predictor in zip(enough, found, strict=True):
        predictors[group] = predictor
        watch(len(predictors), len(enough))
    return predictors, few


def _fit_group(known: Mapping[Kernel, float], types: Mapping[str, KernelType], seed: int) -> KernelPredictor:
    candidates = CANDIDATES if len(known) >= _ENOUGH_FOR_BOOSTING else ("forest", "process")
    predictor = KernelPredictor(candidates=candidates, types=types, random_state=seed)
    return predictor.fit(list(known), np.array(list(known.values())))


def measured_in(schedule: KernelSchedule, which: Container[Kernel]) -> tuple[MeasuredKernel, ...]:
    """Return what was measured of some kernels, sorted by key."""
    found = sorted(
        ((kernel, item) for kernel, item in schedule.summaries().items() if kernel in which),
        key=lambda item: item[0].key,
    )
    return tuple(MeasuredKernel(item.value, item.low, item.high, kernel, item.n_samples) for kernel, item in found)


def _replayed(campaign: StoredCampaign, types: Mapping[str, KernelType]) -> KernelSchedule | None:
    """Return a schedule that has seen a campaign; None if nothing can be learned from it."""
    failed = {failure.subject for failure in campaign.failures}
    try:
        keys = [key for key, subject in campaign.subjects.items() if subject["kind"] == "kernel" and is_kernel(key)]
        kernels = [kernel for kernel in map(Kernel.parse, keys) if is_sound(kernel, types) and kernel.key not in failed]
        if not kernels or not campaign.records:
            return None
        schedule = KernelSchedule(
            [types[name] for name in sorted({kernel.kind for kernel in kernels})],
            campaign.header.protocol,
            Sampling(),
            Prior(),
            mode=execution_mode_of_records(campaign.records),
            kernels=kernels,
        )
        schedule.replay(campaign.records, campaign.failures)
    except (LatencyError, ValueError, LookupError):
        # What was edited by hand is nothing to learn from.
        return None
    for kernel in set(schedule.samples) - set(kernels):
        del schedule.samples[kernel]
    return schedule
