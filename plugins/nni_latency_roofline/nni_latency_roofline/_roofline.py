# SPDX-License-Identifier: Apache-2.0
"""`RooflineEstimator`: the time of an operator from the device's two peaks."""

from __future__ import annotations

import math

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.operators import OpSpec, work_of
from nni_latency.platforms import Platform

#: No operator takes less, not even one that does nothing: costs must be positive to be compared by their ratios [s].
SHORTEST = 1e-9


class RooflineEstimator(LayerEstimator):
    """The roofline model: an operator is bound by arithmetic or by memory. Immutable.

    Its time is ``max(flops / peak, bytes / bandwidth) + overhead``; a network's is the sum over its operators [1]_.
    That is a lower bound which ranks networks. A block counts as one kernel.

    Parameters
    ----------
    peak : float
        Highest rate of floating-point operations [1/s].
    bandwidth : float
        Highest rate of reading and writing memory [byte/s].
    overhead : float, default=0.0
        Time to call one operator [s].

    Raises
    ------
    InvalidValueError
        If a peak is not a positive, finite number, or the overhead is negative.

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52(4), 2009. https://doi.org/10.1145/1498765.1498785

    Examples
    --------
    >>> estimator = RooflineEstimator(peak=100e9, bandwidth=20e9)
    >>> estimator.estimate_op(OpSpec.of("relu", [(1, 64, 100, 100)])).value
    0.000256
    """

    metric = "latency"

    def __init__(self, *, peak: float, bandwidth: float, overhead: float = 0.0) -> None:
        for name, value in {"peak": peak, "bandwidth": bandwidth}.items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidValueError(f"The {name!r} of a roofline must be a positive, finite number. Got {value!r}.")
        if not (math.isfinite(overhead) and overhead >= 0):
            raise InvalidValueError(f"The 'overhead' of a roofline must be a number >= 0. Got {overhead!r}.")
        self.peak = peak
        self.bandwidth = bandwidth
        self.overhead = overhead
        name = f"roofline of {peak / 1e9:g} GFLOP/s, {bandwidth / 1e9:g} GB/s, {overhead * 1e6:g} us"
        self.platform = Platform("roofline", "analytic", facts={"device_name": name})

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate the time of one operator or block.

        Parameters
        ----------
        op : OpSpec
            Any operator. One whose work cannot be counted is costed by the bytes that it reads and writes, and named in
            `missing`.
        """
        features, counted = work_of(op)
        work = max(features.flops / self.peak, features.memory / self.bandwidth)
        seconds = max(work + self.overhead, SHORTEST)
        return Estimate(seconds, seconds, seconds, () if counted else (op.op_key,))


def parse_roofline(argument: str) -> RooflineEstimator:
    """Make the estimator of ``PEAK_GFLOPS,BANDWIDTH_GB_S[,OVERHEAD_US]``.

    Raises
    ------
    InvalidValueError
        If the argument is not two or three such numbers.

    Examples
    --------
    >>> parse_roofline("100,20").peak
    100000000000.0
    """
    try:
        numbers = [float(part) for part in argument.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InvalidValueError(
            "The estimator 'roofline' takes the peak [GFLOP/s], the bandwidth [GB/s] and, if wanted, the time to "
            f"call an operator [us], as in 'roofline:100,20,5'. Got {argument!r}."
        )
    peak, bandwidth, overhead = [*numbers, 0.0][:3]
    return RooflineEstimator(peak=peak * 1e9, bandwidth=bandwidth * 1e9, overhead=overhead / 1e6)
