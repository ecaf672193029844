"""What executes a model: one thin adapter each."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes._base import Runtime
    from nni_latency.measurement.runtimes._torch_eager import TorchEager

__all__ = [
    "Runtime",
    "TorchEager",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Runtime": "nni_latency.measurement.runtimes._base",
        "TorchEager": "nni_latency.measurement.runtimes._torch_eager",
    },
)
