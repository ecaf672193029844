# SPDX-License-Identifier: Apache-2.0
"""`RandomOneShot`: training paths and the export keep to the range."""

from __future__ import annotations

import pytest
import torch
from toys import Toy, latency_of, profiler_of, search, seeded

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyFilter, RandomOneShot

with quiet_nni():
    from nni.nas.oneshot.pytorch.profiler import RangeProfilerFilter
    from nni.nas.strategy import RandomOneShot as NniRandomOneShot

# The toys' pictures are shuffled, to judge by too.
pytestmark = pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling enabled")


class Noting(LatencyFilter):
    """A filter that remembers what it let through."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = []

    def __call__(self, candidate):
        passes = super().__call__(candidate)
        if passes:
            self.passed.append(dict(candidate))
        return passes


@pytest.mark.parametrize("bounds", [{"max": 4e-3}, {"min": 8e-3}, {"min": 5.9e-3, "max": 6.1e-3}], ids=str)
def test_paths_and_export_lie_in_the_range(bounds):
    space = seeded(Toy)
    keep = Noting(profiler_of(space), **bounds)
    found = search(space, RandomOneShot(filter=keep), epochs=2)
    low, high = bounds.get("min", 0.0) - 1e-9, bounds.get("max", 1.0) + 1e-9
    assert len(keep.passed) > 8
    assert all(low <= latency_of(sample) <= high for sample in [*keep.passed, found])
    assert found == keep.passed[-1]


@pytest.mark.filterwarnings("ignore:Direct export from RandomOneShot returns an arbitrary architecture:UserWarning")
def test_nnis_own_export_does_not_ask_the_filter():
    """What `RandomOneShot` is for; when this fails, NNI has mended it."""
    space = seeded(Toy)
    strategy = NniRandomOneShot(filter=RangeProfilerFilter(profiler_of(space), max=5e-3))
    search(space, strategy, epochs=1)
    exported = [latency_of(strategy.oneshot_module.export()) for _ in range(20)]
    assert max(exported) > 5e-3


def test_weights_of_refused_candidates_do_not_learn():
    space = seeded(Toy)
    before = {name: value.clone() for name, value in space.state_dict().items()}
    search(space, RandomOneShot(filter=LatencyFilter(profiler_of(space), max=3.5e-3)), epochs=2)
    changed = {
        name.rsplit(".", 2)[0] for name, value in space.state_dict().items() if not torch.equal(value, before[name])
    }
    assert any(name.endswith("z") for name in changed if name.startswith("layers.0"))
    assert not any(name.startswith("layers.0") and not name.endswith("z") for name in changed)


def test_a_filter_that_nothing_passes_ends_the_search():
    with pytest.raises(UnreachableTargetError, match=r"None of 50 random paths passes the filter\. Widen its range"):
        search(Toy(), RandomOneShot(filter=lambda sample: False, attempts=50), epochs=1)


@pytest.mark.parametrize("attempts", [0, 1.5, "many"])
def test_attempts_are_a_positive_int(attempts):
    with pytest.raises(InvalidValueError, match=r"'attempts' of RandomOneShot must be an int >= 1\. Got"):
        RandomOneShot(attempts=attempts)
