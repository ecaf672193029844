"""From kernel types to predictors: measuring, learning, and the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from nni_latency.errors import InvalidValueError, listed
from nni_latency.kernels._catalogue import find_types, kernel_types
from nni_latency.kernels._execution_mode import execution_mode_of
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_schedule import KernelSchedule, Standing
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._predictor import FEWEST_KERNELS, KernelPredictor, KernelScores
from nni_latency.kernels._predictors import KernelPredictors, MeasuredKernel
from nni_latency.kernels._prior import Prior, shipped_prior
from nni_latency.kernels._records import fit_groups, measured_in
from nni_latency.kernels._sampling import Sampling
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.tables import Measuring, MeasuringOptions, new_file

#: How kernels are measured unless a protocol is given: within half an hour, three runs a visit.
KERNEL_PROTOCOL = Protocol(
    n_warmup=1, n_run=3, max_measure_execution_time=0.5, time_budget=1800.0, half_width=0.05, processes=1, timeout=60.0
)


@dataclass(frozen=True)
class Aim:
    """When building of predictors ends before the budget, and who is told how far it is. Immutable.

    Parameters
    ----------
    is_enough : callable, optional
        Takes `KernelScores` after every iteration, and says whether they are good enough.
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
    """Measure kernels, learn to predict them, and write the predictors.

    Every visit of a kernel is in the store before the next begins: the same call resumes.

    Parameters
    ----------
    kinds : sequence of KernelType
        What is measured; see `find_types`.
    runtime : Runtime
        What executes kernels; its platform goes into the file.
    out : str or Path
        Where the predictors go.
    protocol : Protocol, optional
        How kernels are measured, and for how long; by default `KERNEL_PROTOCOL`.
    sampling : Sampling, optional
        How many configurations, and which.
    prior : Prior, optional
        Configurations that occur in networks; by default the one that ships.
    aim : Aim, optional
        When to end earlier.
    overwrite : bool, default=False
        Replace a finished file.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    KernelPredictors
        What was written.

    Raises
    ------
    OutputError
        If the file or a record cannot be written.
    InvalidValueError
        If there is a file already and `overwrite` is false, no kernel is named, or the budget was too small to
        learn anything.
    BusyError
        If another process measures for this file.
    MismatchError
        If runtime and protocol differ in threads.
    MeasurementError
        If no kernel can be run.
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
    sampling: Sampling | None = None,
    **how: Unpack[MeasuringOptions],
) -> KernelPredictor:
    """Build the predictor of one kind of kernel, by the names that nn-Meter's builder has for everything.

    Parameters
    ----------
    kernel_type : str or KernelType
        Such as ``conv_bn_relu``.
    runtime : Runtime
        What executes kernels.
    init_sample_num : int, default=1000
        Configurations in the beginning.
    finegrained_sample_num : int, default=10
        Configurations added for each whose error is large.
    iteration : int, default=5
        How often they are added.
    error_threshold : float, default=0.1
        An error is large from here on, as a ratio.
    protocol : Protocol, optional
        As for `build_predictors`.
    sampling : Sampling, optional
        In place of the four numbers: what else can be chosen.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    KernelPredictor
        Fitted.

    Raises
    ------
    UnknownNameError
        If there is no such kernel.
    LatencyError
        As `build_predictors` does.
    """
    kinds = find_types([kernel_type]) if isinstance(kernel_type, str) else (kernel_type,)
    chosen = sampling or Sampling(init_sample_num, finegrained_sample_num, iteration, error_threshold)
    schedule, _ = _measure(kinds, runtime, protocol, chosen, None, Aim(), how)
    return next(iter(_learn(schedule, runtime).predictors.values()))


def measure_kernels(
    kernels: Sequence[Kernel],
    runtime: Runtime,
    *,
    types: Mapping[str, KernelType] | None = None,
    protocol: Protocol | None = None,
    **how: Unpack[MeasuringOptions],
) -> tuple[MeasuredKernel, ...]:
    """Measure kernels as those are from which predictors are learned, to hold predictors to them.

    Parameters
    ----------
    kernels : sequence of Kernel
        What is measured.
    runtime, protocol, how
        As for `build_predictors`.
    types : mapping of str to KernelType, optional
        Where their kinds are looked up; by default the catalogue.

    Returns
    -------
    tuple of MeasuredKernel
        In the order of the kernels, those left out that cannot be run or were not reached.

    Raises
    ------
    LatencyError
        As `build_predictors` does; `InvalidValueError` for a configuration out of range.
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
    content = {"kernels": [kernel.key for kernel in kernels], **_company(runtime)}
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
    content |= _company(runtime)
    measured = Measuring(runtime, how_long, **how).run(schedule, content)
    return schedule, measured.mark


def _company(runtime: Runtime) -> dict[str, str]:
    """Say which kernels run together, where any do: what a kernel takes depends on it."""
    return {"company": "alike"} if execution_mode_of(runtime) == "parallel" else {}


def _content(sampling: Sampling) -> dict[str, Any]:
    """Say what decides which kernels are drawn; how often is not part of it, so that more iterations go on."""
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
