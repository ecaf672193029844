"""The names of NNI that the glue is built on."""

from __future__ import annotations

from nni_latency.imports import quiet_nni

with quiet_nni():
    from nni.mutable import MutableExpression
    from nni.nas.evaluator.pytorch import Classification, DataLoader
    from nni.nas.experiment import NasExperiment
    from nni.nas.nn.pytorch import ModelSpace
    from nni.nas.oneshot.pytorch.differentiable import DartsLightningModule
    from nni.nas.oneshot.pytorch.profiler import ExpectationProfilerPenalty
    from nni.nas.oneshot.pytorch.supermodule.base import BaseSuperNetModule
    from nni.nas.oneshot.pytorch.supermodule.differentiable import GumbelSoftmax
    from nni.nas.profiler import ExpressionProfiler
    from nni.nas.strategy import DARTS

__all__ = [
    "DARTS",
    "BaseSuperNetModule",
    "Classification",
    "DartsLightningModule",
    "DataLoader",
    "ExpectationProfilerPenalty",
    "ExpressionProfiler",
    "GumbelSoftmax",
    "ModelSpace",
    "MutableExpression",
    "NasExperiment",
]
