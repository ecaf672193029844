# SPDX-License-Identifier: Apache-2.0
from ._document import acts_schema
from ._estimator import ActsEstimator, Variant
from ._line import ActsLine, BlockScores, convolving, fit_line, score_blocks
from ._workloads import WorkloadSource

__all__ = [
    "ActsEstimator",
    "ActsLine",
    "BlockScores",
    "Variant",
    "WorkloadSource",
    "acts_schema",
    "convolving",
    "fit_line",
    "score_blocks",
]
