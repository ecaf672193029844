# SPDX-License-Identifier: Apache-2.0
"""A runtime of torch that folds batch normalisation into convolutions, as a plugin for nni_latency."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from torch.fx.experimental.optimization import fuse

from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Clock, Stage, Subject
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import Inputs
from nni_latency.platforms import Conditions, Platform


class TorchFx(Runtime):
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
        self._eager = TorchEager(device, threads=threads, precision=precision)
        self._fold = str(fold).lower() == "true"

    @cached_property
    def platform(self) -> Platform:
        """Where its numbers are taken: eager torch's platform, and what this runtime is."""
        found = self._eager.platform
        facts = {**found.facts, "runtime.version": str(torch.__version__), "runtime.fold": self._fold}
        return dataclasses.replace(found, runtime=self.name, facts=facts)

    @property
    def clock(self) -> Clock:
        """The clock of the device."""
        return self._eager.clock

    def session(self) -> AbstractContextManager[None]:
        """Set threads and processors as eager torch does."""
        return self._eager.session()

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make inputs as eager torch does."""
        return self._eager.inputs(like)

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Fold a module, and prepare it as eager torch does."""
        # Folding is exact in fp32 alone, so it comes before the precision.
        build = self._folded if self._fold else torch.fx.symbolic_trace
        return self._eager.prepare(dataclasses.replace(subject, build=lambda: build(subject.build().eval())), inputs)

    def conditions(self) -> Conditions:
        """Say what the device is like."""
        return self._eager.conditions()

    @staticmethod
    def _folded(module: Any) -> Any:
        return fuse(module)


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("torch-fx", TorchFx)
