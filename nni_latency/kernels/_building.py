# SPDX-License-Identifier: Apache-2.0
"""Building of kernel predictors: from kernel types, by measuring and fitting, or from stored campaigns."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from joblib import Parallel, delayed

from nni_latency.errors import InvalidValueError, LatencyError, listed
from nni_latency.kernels._catalogue import find_types, kernel_types
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_schedule import KernelSchedule, Standing, is_kernel
from nni_latency.kernels._kernel_type import KernelType, is_sound
from nni_latency.kernels._model import CANDIDATES
from nni_latency.kernels._predictor import FEWEST_KERNELS, KernelPredictor, KernelScores
from nni_latency.kernels._predictors import KernelPredictors, MeasuredKernel
from nni_latency.kernels._sampling import Prior, Sampling, shipped_prior
from nni_latency.kernels._visits import execution_mode_of, execution_mode_of_records
from nni_latency.measurement import Protocol, StoredCampaign
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables import Measuring, MeasuringOptions, new_file
from nni_latency.units import number_of

#: Default protocol for kernels: within half an hour, three runs per visit.
KERNEL_PROTOCOL = Protocol(
    n_warmup=1, n_run=3, max_measure_execution_time=0.5, time_budget=1800.0, half_width=0.05, processes=1, timeout=60.0
)

#: Fewest kernels for which boosted trees are among the candidates.
_ENOUGH_FOR_BOOSTING = 40

#: Called with the number of finished groups and their total.
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Aim:
    """Stopping criterion and progress callback of building predictors. Immutable.

    Parameters
    ----------
    is_enough : callable, optional
        Takes `KernelScores` after every iteration; returns whether they are good enough to stop before the budget ends.
    on_standing : callable, optional
        Called with a `Standing` after every iteration.
    """

    is_enough: Callable[[KernelScores], bool] = lambda _scores: False
    on_standing: Callable[[Standing], None] = lambda _standing: None


def build_predictors(
    kinds: Sequence[KernelType],
    runtime: Runtime,
    out: str | Path,
    *,
    protocol: Protocol | None = None,
    sampling: Sampling | None = None,
    prior: Prior | None = None,
    aim: Aim | None = None,
    overwrite: bool = False,
    **how: Unpack[MeasuringOptions],
) -> KernelPredictors:
    """Measure kernels, fit predictors, and write them to a file.

    Every visit of a kernel is stored before the next begins: the same call resumes.

    Parameters
    ----------
    kinds : sequence of KernelType
        Kernel types to measure; see `find_types`.
    runtime : Runtime
        Runtime that executes the kernels; its platform is written to the file.
    out : str or Path
        File of the predictors.
    protocol : Protocol, optional
        How kernels are measured, and the time budget; by default `KERNEL_PROTOCOL`.
    sampling : Sampling, optional
        Number and choice of configurations.
    prior : Prior, optional
        Configurations that occur in networks; by default the shipped ones.
    aim : Aim, optional
        When to stop early, and the progress callback.
    overwrite : bool, default=False
        Replace a finished file.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    KernelPredictors
        The predictors of the file.

    Raises
    ------
    OutputError
        If the file or a record cannot be written.
    InvalidValueError
        If the file exists and `overwrite` is false, `kinds` is empty, or the budget was too small for any predictor.
    BusyError
        If another process is measuring for this file.
    MismatchError
        If runtime and protocol differ in the number of threads.
    MeasurementError
        If no kernel can be executed.
    """
    if not kinds:
        raise InvalidValueError("The 'kinds' must be kernel types, at least one. Got none.")
    with new_file(out, overwrite=overwrite) as target:
        schedule, mark = _measure(kinds, runtime, protocol, sampling or Sampling(), prior, aim or Aim(), how)
        predictors = mark(_learn(schedule, runtime))
        predictors.save(target)
    return predictors


def build_predictor_for_kernel(
    kernel_type: KernelType | str,
    runtime: Runtime,
    *,
    init_sample_num: int = 1000,
    finegrained_sample_num: int = 10,
    iteration: int = 5,
    error_threshold: float = 0.1,
    protocol: Protocol | None = None,
    **how: Unpack[MeasuringOptions],
) -> KernelPredictor:
    """Build the predictor of one kernel type, with the parameter names of nn-Meter's builder.

    Parameters
    ----------
    kernel_type : str or KernelType
        Such as ``conv_bn_relu``.
    runtime : Runtime
        Runtime that executes the kernels.
    init_sample_num : int, default=1000
        Initial configurations.
    finegrained_sample_num : int, default=10
        Configurations added for each one with a large error.
    iteration : int, default=5
        Number of iterations that add configurations.
    error_threshold : float, default=0.1
        Relative error above which an error is large.
    protocol : Protocol, optional
        As for `build_predictors`.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    KernelPredictor
        The fitted predictor.

    Raises
    ------
    UnknownNameError
        If the kernel type does not exist.
    LatencyError
        As for `build_predictors`.
    """
    kinds = find_types([kernel_type]) if isinstance(kernel_type, str) else (kernel_type,)
    sampling = Sampling(init_sample_num, finegrained_sample_num, iteration, error_threshold)
    schedule, _ = _measure(kinds, runtime, protocol, sampling, None, Aim(), how)
    return next(iter(_learn(schedule, runtime).predictors.values()))


def measure_kernels(
    kernels: Sequence[Kernel],
    runtime: Runtime,
    *,
    types: Mapping[str, KernelType] | None = None,
    protocol: Protocol | None = None,
    **how: Unpack[MeasuringOptions],
) -> tuple[MeasuredKernel, ...]:
    """Measure kernels in the same way as for `build_predictors`, to validate predictors.

    Parameters
    ----------
    kernels : sequence of Kernel
        Kernels to measure.
    runtime, protocol, how
        As for `build_predictors`.
    types : mapping of str to KernelType, optional
        Kernel types by name; by default the catalogue.

    Returns
    -------
    tuple of MeasuredKernel
        In the order of the kernels, without those that cannot be executed or were not reached.

    Raises
    ------
    LatencyError
        As for `build_predictors`; `InvalidValueError` for a configuration out of range.
    """
    kinds = {kind.name: kind for kind in find_types(dict.fromkeys(kernel.kind for kernel in kernels), types)}
    for kernel in kernels:
        kinds[kernel.kind].check(kernel)
    how_long = protocol or replace(KERNEL_PROTOCOL, threads=runtime.platform.threads)
    schedule = KernelSchedule(
        tuple(kinds.values()),
        how_long,
        Sampling(),
        Prior(),
        mode=execution_mode_of(runtime),
        kernels=kernels,
    )
    content = {"kernels": [kernel.key for kernel in kernels], **_grouping(runtime)}
    Measuring(runtime, how_long, **how).run(schedule, content)
    found = {item.kernel: item for item in measured_in(schedule, kernels)}
    return tuple(found[kernel] for kernel in dict.fromkeys(kernels) if kernel in found)


def _measure(
    kinds: Sequence[KernelType],
    runtime: Runtime,
    protocol: Protocol | None,
    sampling: Sampling,
    prior: Prior | None,
    aim: Aim,
    how: MeasuringOptions,
) -> tuple[KernelSchedule, Callable[[KernelPredictors], KernelPredictors]]:
    how_long = protocol or replace(KERNEL_PROTOCOL, threads=runtime.platform.threads)
    known = shipped_prior() if prior is None else prior
    schedule = KernelSchedule(
        kinds,
        how_long,
        sampling,
        known,
        mode=execution_mode_of(runtime),
        is_enough=aim.is_enough,
        on_standing=aim.on_standing,
    )
    content = {"kernels": [kind.name for kind in kinds], "sampling": _content(sampling), "prior": known.digest}
    content |= _grouping(runtime)
    measured = Measuring(runtime, how_long, **how).run(schedule, content)
    return schedule, measured.mark


def _grouping(runtime: Runtime) -> dict[str, str]:
    """Describe how kernels are grouped, where they run together: their times depend on it."""
    return {"company": "alike"} if execution_mode_of(runtime) == "parallel" else {}


def _content(sampling: Sampling) -> dict[str, Any]:
    """Return what determines the sampled kernels; without the number of iterations, so that more of them resume."""
    return {name: value for name, value in sampling.as_dict().items() if name != "iteration"}


def _learn(schedule: KernelSchedule, runtime: Runtime) -> KernelPredictors:
    types = {**kernel_types(), **schedule.kinds}
    predictors, few = fit_groups(schedule.by_group(), types, schedule.sampling.seed)
    if not predictors:
        raise InvalidValueError(
            f"The budget was spent before {FEWEST_KERNELS} kernels of any group were measured, so nothing can be "
            "learned. Give a larger one, or name fewer kernels."
        )
    remarks = (f"Fewer than {FEWEST_KERNELS} kernels were measured of: {listed(few)}. Give a larger budget.",)
    return KernelPredictors(
        predictors=predictors,
        kernels=measured_in(schedule, schedule.learned_from),
        tested=measured_in(schedule, schedule.held_out),
        constant=schedule.constant,
        sampling=schedule.sampling.as_dict(),
        failures=dict(sorted(schedule.failures.items())),
        platform=runtime.platform,
        protocol=schedule.protocol,
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        drift=tuple(schedule.drift),
        remarks=remarks if few else (),
    )


@dataclass(frozen=True)
class KernelRecords:
    """Measurements of kernels in the campaigns of one platform. Immutable.

    Parameters
    ----------
    platform : Platform
        Platform of the measurements.
    protocol : Protocol
        Protocol of the latest campaign.
    kernels : tuple of MeasuredKernel
        Each kernel once, with the values of the latest campaign, sorted by key.
    constant : float
        Overhead of a run of the runtime, outside of its kernels [s].
    types : mapping of str to KernelType
        The kinds of the kernels, and all other known ones.
    rounds : int, default=0
        Total rounds of the campaigns.
    duration : float, default=0.0
        Total time spent measuring in them [s].
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
    """Collect the kernel measurements of campaigns of one platform; None if there are none. The latest value counts.

    Parameters
    ----------
    campaigns : iterable of StoredCampaign
        Campaigns of `build_predictors` or `measure_kernels` on one platform, the oldest first.
    types : mapping of str to KernelType, optional
        Types of plugins, in addition to the catalogue. Kernels of other kinds are skipped.
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
    """Fit predictors to the kernel measurements of campaigns.

    Parameters
    ----------
    records : KernelRecords
        Kernel measurements.
    kernels : sequence of MeasuredKernel, optional
        Subset to fit to; by default all.
    watch : callable, optional
        Called with the number of finished groups of kernels and their total; first with 0 finished.

    Raises
    ------
    InvalidValueError
        If every group has too few kernels.
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
    """Fit a predictor for every group of kernels; also return the groups with too few kernels."""
    few = [group for group, known in by_group.items() if len(known) < FEWEST_KERNELS]
    enough = {group: known for group, known in by_group.items() if group not in few}
    # Sequential, unless the caller configures joblib to run in parallel.
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
    """Return the measurements of the given kernels, sorted by key."""
    found = sorted(
        ((kernel, item) for kernel, item in schedule.summaries().items() if kernel in which),
        key=lambda item: item[0].key,
    )
    return tuple(MeasuredKernel(item.value, item.low, item.high, kernel, item.n_samples) for kernel, item in found)


def _replayed(campaign: StoredCampaign, types: Mapping[str, KernelType]) -> KernelSchedule | None:
    """Return a schedule that has replayed a campaign; None if nothing can be learned from it."""
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
        # Records that were edited by hand are skipped.
        return None
    for kernel in set(schedule.samples) - set(kernels):
        del schedule.samples[kernel]
    return schedule
