# SPDX-License-Identifier: Apache-2.0
"""Kernels inside measured networks as training data of kernel predictors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nni_latency.datasets._measuring import DATASET_PROTOCOL
from nni_latency.datasets._network_set import NetworkEntry
from nni_latency.errors import InvalidValueError, listed
from nni_latency.kernels import (
    Kernel,
    KernelPredictors,
    KernelRecords,
    KernelType,
    MeasuredKernel,
    is_sound,
    kernel_of,
    kernel_types,
    learn_kernels,
)
from nni_latency.platforms import Platform

#: One in this many networks is held out to evaluate predictors.
HELD_OUT = 10

#: Quantiles of the interval of the times of one kernel at several places.
_LOW, _HIGH = 0.1, 0.9


@dataclass(frozen=True)
class _Inside:
    """Times of each kernel at all its occurrences in networks, and the time outside kernels [s]."""

    times: Mapping[Kernel, Sequence[float]]
    outside: Sequence[float]

    @classmethod
    def of(cls, networks: Sequence[NetworkEntry], types: Mapping[str, KernelType]) -> _Inside:
        times: dict[Kernel, list[float]] = defaultdict(list)
        outside = []
        for item in networks:
            operators = item.graph.operators
            for numbers, seconds in item.parts:
                kernel = kernel_of([operators[number].op for number in numbers])
                if kernel is not None and seconds > 0 and is_sound(kernel, types, to_measure=False):
                    times[kernel].append(seconds)
            outside.append(max(0.0, item.latency - sum(seconds for _, seconds in item.parts)))
        return cls(times, outside)

    def measured(self) -> tuple[MeasuredKernel, ...]:
        """Return each kernel with the median of its times."""
        found = []
        for kernel, times in sorted(self.times.items(), key=lambda item: item[0].key):
            low, value, high = np.quantile(times, [_LOW, 0.5, _HIGH]).tolist()
            found.append(MeasuredKernel(value, low, high, kernel, len(times)))
        return tuple(found)


def learn_network_kernels(
    networks: Sequence[NetworkEntry],
    types: Mapping[str, KernelType] | None = None,
    held_out: int = HELD_OUT,
    watch: Callable[[int, int], None] = lambda _done, _total: None,
) -> KernelPredictors:
    """Fit kernel predictors to the kernels inside measured networks.

    A kernel inside a network runs under realistic conditions: its input was just computed, its weights were last used a
    run ago, and similar kernels surround it. `nni_latency.kernels.build_predictors` measures chosen configurations of
    every kind in isolation; networks yield more kernels per minute, but of arbitrary kinds and sizes.

    Parameters
    ----------
    networks : sequence of NetworkEntry
        Networks of one platform, for example a `NetworkSet`. Networks without kernel times are skipped.
    types : mapping of str to KernelType, optional
        Types of plugins in addition to the catalogue.
    held_out : int, default=10
        One in this many networks is held out: kernels that occur in no other network are `tested`. 0 for none.
    watch : callable, optional
        Called with the number of finished groups of kernels and their total, first with 0.

    Returns
    -------
    KernelPredictors
        The constant is the median time of networks outside their kernels.

    Raises
    ------
    InvalidValueError
        If the networks are of several platforms, no kernel times are known, or there are too few kernels.

    Examples
    --------
    >>> from nni_latency.datasets import load_networks
    >>> networks = load_networks().only(platform="epyc-25-1-1.openvino.fp32.t1", families=["mixed"])
    >>> learn_network_kernels(networks).save("openvino.kernels.json")               # doctest: +SKIP
    """
    known = {**kernel_types(), **(types or {})}
    platform = _platform_of(networks)
    timed = [item for item in networks if item.parts]
    if not timed:
        raise InvalidValueError(
            f"The networks of {platform.id} have no times of kernels. Measure them with a runtime that reports the "
            "times of its nodes, such as onnxruntime or openvino."
        )
    tested = timed[held_out - 1 :: held_out] if held_out else []
    names = {item.name for item in tested}
    inside = _Inside.of([item for item in timed if item.name not in names], known)
    records = KernelRecords(
        platform, DATASET_PROTOCOL, inside.measured(), float(np.median(inside.outside)), known, rounds=len(timed)
    )
    unknown = [item for item in _Inside.of(tested, known).measured() if item.kernel not in inside.times]
    found = learn_kernels(records, watch=watch)
    return replace(found, tested=tuple(unknown), sampling={"networks": len(timed), "held_out": len(tested)})


def _platform_of(networks: Sequence[NetworkEntry]) -> Platform:
    platforms = {item.platform.id: item.platform for item in networks}
    if len(platforms) != 1:
        raise InvalidValueError(
            f"Kernels are learned from networks of one platform. Got {listed(platforms) or 'no network'}."
        )
    return next(iter(platforms.values()))
