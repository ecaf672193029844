from ._device import DeviceFacts
from ._features import kernel_features
from ._measured import MeasuredNetworkEnergy, MeasuredOperator, read_networks, read_operators
from ._portable import EnergyScores, PortableModel, cross_validate, leave_one_device_out
from ._sum import NetworkSum, OperatorSum

__all__ = [
    "DeviceFacts",
    "EnergyScores",
    "MeasuredNetworkEnergy",
    "MeasuredOperator",
    "NetworkSum",
    "OperatorSum",
    "PortableModel",
    "cross_validate",
    "kernel_features",
    "leave_one_device_out",
    "read_networks",
    "read_operators",
]
