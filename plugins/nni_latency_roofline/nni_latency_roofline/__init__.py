# SPDX-License-Identifier: Apache-2.0
"""The roofline model as an estimator for nni_latency."""

from nni_latency_roofline._roofline import RooflineEstimator, parse_roofline

__all__ = [
    "RooflineEstimator",
    "parse_roofline",
]
