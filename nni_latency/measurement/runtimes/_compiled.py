"""What the runtimes share that compile a network as one piece."""

from __future__ import annotations

from nni_latency.measurement.runtimes._torch_eager import TorchEager
from nni_latency.measurement.runtimes._torch_runtime import _TorchRuntime


class _CompiledRuntime(_TorchRuntime):
    """Base of the runtimes of torch that cannot be timed inside; see `TorchEager` for the parameters."""

    supports_layer_timing = False

    def stand_in(self) -> TorchEager:
        """Return torch without compiling, of the same device, threads, precision and layout."""
        return TorchEager(
            self.device,
            threads=self.threads,
            precision=self.precision,
            channels_last=self.channels_last,
            allocator=self.allocator,
        )
