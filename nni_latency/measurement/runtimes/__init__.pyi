from ._base import Arrays, CompiledNetwork, ProfileCost, ProfiledNetwork, ProfiledNode, ProfiledRun, Runtime
from ._exported import ExportedRuntime
from ._profiled import ProfiledRuntime
from ._session import choose_processors, pinned
from ._torch import CudaClock, TorchEager, TorchScript, Unpacking, settle
from ._torch_compile import TorchCompile

__all__ = [
    "Arrays",
    "CompiledNetwork",
    "CudaClock",
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
    "choose_processors",
    "pinned",
    "settle",
]
