# SPDX-License-Identifier: Apache-2.0
"""The names of NNI that the glue is built on."""

from __future__ import annotations

from nni_latency.imports import quiet_nni

with quiet_nni():
    import nni
    from nni import NoMoreTrialError
    from nni.common.serializer import SerializableObject
    from nni.mutable import Categorical, CategoricalMultiple, MutableExpression
    from nni.nas.evaluator import Evaluator, FunctionalEvaluator
    from nni.nas.evaluator.pytorch import Classification, DataLoader
    from nni.nas.experiment import NasExperiment
    from nni.nas.experiment.config import ModelFormatConfig, SequentialEngineConfig
    from nni.nas.nn.pytorch import Cell, ModelSpace
    from nni.nas.oneshot.pytorch.base_lightning import BaseOneShotLightningModule
    from nni.nas.oneshot.pytorch.differentiable import DartsLightningModule
    from nni.nas.oneshot.pytorch.profiler import (
        ExpectationProfilerPenalty,
        ProfilerPenalty,
        RangeProfilerFilter,
        SampleProfilerPenalty,
    )
    from nni.nas.oneshot.pytorch.sampling import RandomSamplingLightningModule
    from nni.nas.oneshot.pytorch.supermodule.base import BaseSuperNetModule
    from nni.nas.oneshot.pytorch.supermodule.differentiable import GumbelSoftmax
    from nni.nas.oneshot.pytorch.supermodule.operation import MixedOperation
    from nni.nas.oneshot.pytorch.supermodule.proxyless import ProxylessMixedRepeat
    from nni.nas.profiler import ExpressionProfiler, Profiler
    from nni.nas.strategy import (
        DARTS,
        TPE,
        GridSearch,
        GumbelDARTS,
        Proxyless,
        Random,
        RandomOneShot,
        RegularizedEvolution,
    )
    from nni.nas.strategy.middleware import Chain, Filter
    from nni.runtime.trial_command_channel import (
        TrialCommandChannel,
        get_default_trial_command_channel,
        set_default_trial_command_channel,
    )
