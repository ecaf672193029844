from ._base import Runtime
from ._exported import ExportedRuntime
from ._networks import Arrays, CompiledNetwork, ProfileCost, ProfiledNetwork, ProfiledNode, ProfiledRun
from ._profiled import ProfiledRuntime
from ._settling import Unpacking
from ._torch_compile import TorchCompile
from ._torch_eager import TorchEager
from ._torchscript import TorchScript

__all__ = [
    "Arrays",
    "CompiledNetwork",
    "ExportedRuntime",
    "ProfileCost",
    "ProfiledNetwork",
    "ProfiledNode",
    "ProfiledRun",
    "ProfiledRuntime",
    "Runtime",
    "TorchCompile",
    "TorchEager",
    "TorchScript",
    "Unpacking",
]
