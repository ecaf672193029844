# SPDX-License-Identifier: Apache-2.0
"""A device whose blocks take an invented time each, and small blocks for it."""

from __future__ import annotations

from nni_latency.errors import UnknownNameError
from nni_latency.measurement import CandidateError
from nni_latency.micro_benchmarks import Block
from nni_latency.operators import features_of
from nni_latency.testing import FakeRuntime

SMALL = (
    Block.of("conv", 8, channels=4, out=8, kernel=3),
    Block.of("inverted-residual", 8, channels=4, out=4, expansion=2),
    Block.of("transformer", 6, channels=8, heads=2),
)

SERIES = tuple((block, (1, 2, 4)) for block in SMALL)


def seconds_of(op):
    """Return what an operator takes: by the elements that it reads."""
    try:
        return 1e-8 * features_of(op).inputs + 1e-6
    except UnknownNameError:
        return 1e-6


def invented(**options):
    """Make the device; its feeders take time too, which must not count."""
    return FakeRuntime(seconds_of, **options)


class Forgetful(FakeRuntime):
    """A device whose memory ends when a block's input has more elements than it holds."""

    def __init__(self, room, **options):
        super().__init__(seconds_of, **options)
        self.room = room

    def prepare(self, subject, inputs):
        """Refuse to run what is too large."""
        run = super().prepare(subject, inputs)

        def checked(inputs):
            result = run(inputs)
            if result.numel() > self.room:
                raise CandidateError("OutOfMemoryError: out of memory")
            return result

        return checked
