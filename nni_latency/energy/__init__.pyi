from ._device import DeviceFacts
from ._estimator import PortableEstimator
from ._features import kernel_features
from ._measured import MeasuredNetworkEnergy, MeasuredOperator, read_networks, read_operators
from ._portable import EnergyScores, PortableModel, cross_validate, leave_one_device_out, portable_schema
from ._sum import NetworkSum, OperatorSum

__all__ = [
    "DeviceFacts",
    "EnergyScores",
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
