# SPDX-License-Identifier: Apache-2.0
"""A runtime of torch that folds batch normalisation into convolutions, as a plugin for nni_latency."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from importlib import metadata
from typing import Any

import nni_latency.measurement.runtimes as runtimes
import nni_latency.operators as operators
from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Clock, Stage, Subject
from nni_latency.platforms import Conditions, Platform


class TorchFx(runtimes.Runtime):
    """Eager torch after `torch.fx` has folded batch normalisation into convolutions.

    Parameters
    ----------
    device : str, default="cpu"
        As for `nni_latency.measurement.runtimes.TorchEager`.
    threads, precision
        As there.
    fold : bool, default=True
        Whether to fold at all; without it the module is only traced.
    """

    name = "torch-fx"

    def __init__(
        self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32", fold: bool | str = True
    ) -> None:
        if str(fold).lower() not in ("true", "false"):
            raise InvalidValueError(f"The option 'fold' of torch-fx must be true or false. Got {fold!r}.")
        self._eager = runtimes.TorchEager(device, threads=threads, precision=precision)
        self._fold = str(fold).lower() == "true"

    @cached_property
    def platform(self) -> Platform:
        """Where its numbers are taken: eager torch's platform, and what this runtime is."""
        found = self._eager.platform
        facts = {**found.facts, "runtime.version": metadata.version("torch"), "runtime.fold": self._fold}
        return dataclasses.replace(found, runtime=self.name, facts=facts)

    @property
    def clock(self) -> Clock:
        """The clock of the device."""
        return self._eager.clock

    def session(self) -> AbstractContextManager[None]:
        """Set threads and processors as eager torch does."""
        return self._eager.session()

    def inputs(self, like: Sequence[int] | operators.Inputs) -> Any:
        """Make inputs as eager torch does."""
        return self._eager.inputs(like)

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Fold a module, and prepare it as eager torch does."""
        # Folding is exact in fp32 alone, so it comes before the precision.
        build = _folded if self._fold else _traced
        return self._eager.prepare(dataclasses.replace(subject, build=lambda: build(subject.build().eval())), inputs)

    def conditions(self) -> Conditions:
        """Say what the device is like."""
        return self._eager.conditions()


def _folded(module: Any) -> Any:
    # Here, not above: every command imports this module.
    from torch.fx.experimental.optimization import fuse

    return fuse(module)


def _traced(module: Any) -> Any:
    from torch.fx import symbolic_trace

    return symbolic_trace(module)


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("torch-fx", TorchFx)
