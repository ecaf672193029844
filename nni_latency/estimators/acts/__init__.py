"""The ACTS/INP/FLOPs predictor: a model of a device, learned from 56 blocks."""

from nni_latency.estimators.acts._conformal import conformal_factor
from nni_latency.estimators.acts._document import acts_schema
from nni_latency.estimators.acts._estimator import ActsEstimator, Variant
from nni_latency.estimators.acts._line import ActsLine, convolving, fit_line
from nni_latency.estimators.acts._scores import BlockScores, score_blocks
from nni_latency.estimators.acts._workloads import WorkloadSource

__all__ = [
    "ActsEstimator",
    "ActsLine",
    "BlockScores",
    "Variant",
    "WorkloadSource",
    "acts_schema",
    "conformal_factor",
    "convolving",
    "fit_line",
    "score_blocks",
]
