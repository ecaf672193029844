# SPDX-License-Identifier: Apache-2.0
from ._roofline import RooflineEstimator, parse_roofline

__all__ = ["RooflineEstimator", "parse_roofline"]
