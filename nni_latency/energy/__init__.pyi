# SPDX-License-Identifier: Apache-2.0
from ._features import DeviceFacts, kernel_features
from ._measured import MeasuredNetworkEnergy, MeasuredOperator, read_networks, read_operators
from ._portable import EnergyEstimate, PortableEstimator, PortableModel
from ._portable_document import HeldOutOperator, portable_schema
from ._scoring import EnergyScores, cross_validate, leave_one_device_out
from ._sum import NetworkSum, OperatorSum

__all__ = [
    "DeviceFacts",
    "EnergyEstimate",
    "EnergyScores",
    "HeldOutOperator",
    "MeasuredNetworkEnergy",
    "MeasuredOperator",
    "NetworkSum",
    "OperatorSum",
    "PortableEstimator",
    "PortableModel",
    "cross_validate",
    "kernel_features",
    "leave_one_device_out",
    "portable_schema",
    "read_networks",
    "read_operators",
]
