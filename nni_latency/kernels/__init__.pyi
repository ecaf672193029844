# SPDX-License-Identifier: Apache-2.0
from ._building import (
    KERNEL_PROTOCOL,
    Aim,
    KernelRecords,
    build_predictor_for_kernel,
    build_predictors,
    learn_kernels,
    measure_kernels,
    read_kernels,
)
from ._catalogue import find_types, kernel_types
from ._document import kernels_schema
from ._kernel import NN_METER_KERNELS, USUAL_KERNELS, Kernel
from ._kernel_schedule import KernelSchedule, Standing
from ._kernel_type import Domain, KernelType, is_sound
from ._naming import kernel_of
from ._predictor import KernelPredictor, KernelScores
from ._predictors import KernelPredictors, MeasuredKernel, PredictedKernels
from ._sampling import Prior, Sampler, Sampling, divide, shipped_prior

__all__ = [
    "KERNEL_PROTOCOL",
    "NN_METER_KERNELS",
    "USUAL_KERNELS",
    "Aim",
    "Domain",
    "Kernel",
    "KernelPredictor",
    "KernelPredictors",
    "KernelRecords",
    "KernelSchedule",
    "KernelScores",
    "KernelType",
    "MeasuredKernel",
    "PredictedKernels",
    "Prior",
    "Sampler",
    "Sampling",
    "Standing",
    "build_predictor_for_kernel",
    "build_predictors",
    "divide",
    "find_types",
    "is_sound",
    "kernel_of",
    "kernel_types",
    "kernels_schema",
    "learn_kernels",
    "measure_kernels",
    "read_kernels",
    "shipped_prior",
]
