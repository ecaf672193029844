"""What executes a model: one thin adapter each."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes._base import Runtime
    from nni_latency.measurement.runtimes._settling import Unpacking
    from nni_latency.measurement.runtimes._torch_compile import TorchCompile
    from nni_latency.measurement.runtimes._torch_eager import TorchEager
    from nni_latency.measurement.runtimes._torchscript import TorchScript

__all__ = [
    "Runtime",
    "TorchCompile",
    "TorchEager",
    "TorchScript",
    "Unpacking",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Runtime": "nni_latency.measurement.runtimes._base",
        "TorchCompile": "nni_latency.measurement.runtimes._torch_compile",
        "TorchEager": "nni_latency.measurement.runtimes._torch_eager",
        "TorchScript": "nni_latency.measurement.runtimes._torchscript",
        "Unpacking": "nni_latency.measurement.runtimes._settling",
    },
)
