# SPDX-License-Identifier: Apache-2.0
"""`LatencyFilter`: what may be tried."""

from __future__ import annotations

from functools import partial

import pytest
from toys import Toy, profiler_of

from nni_latency.errors import InvalidValueError, TargetWarning, UnreachableTargetError
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyFilter, LatencyPenalty, TargetPenalty

with quiet_nni():
    from nni.nas.evaluator import FunctionalEvaluator
    from nni.nas.oneshot.pytorch.profiler import RangeProfilerFilter
    from nni.nas.profiler import Profiler
    from nni.nas.space import RawFormatModelSpace, SimplifiedModelSpace

SLOW = {"a": "y", "b": "y", "c": "x"}
FAST = {"a": "z", "b": "x", "c": "y"}


def _model(kind, sample):
    return kind.from_model(Toy(), FunctionalEvaluator(print)).freeze(sample)


@pytest.mark.parametrize(
    ("bounds", "passing"), [({"max": 5e-3}, [FAST]), ({"min": 5e-3}, [SLOW]), ({"min": 2e-3}, [SLOW, FAST])]
)
def test_filter_passes_what_lies_in_the_range(bounds, passing):
    keep = LatencyFilter(profiler_of(Toy()), **bounds)
    assert [sample for sample in (SLOW, FAST) if keep(sample)] == passing


@pytest.mark.parametrize("kind", [RawFormatModelSpace, SimplifiedModelSpace])
def test_filter_takes_models_as_a_middleware_hands_them_over(kind):
    keep = LatencyFilter(profiler_of(Toy()), max=5e-3)
    assert [keep(_model(kind, sample)) for sample in (SLOW, FAST)] == [False, True]


@pytest.mark.parametrize(
    "make",
    [
        partial(LatencyFilter, max=9.1e-3),
        partial(LatencyFilter, min=1e-3, max=9.1e-3),
        partial(TargetPenalty, target=2.0),
        partial(LatencyPenalty, baseline=9.1e-3, nonlinear="positive"),
    ],
)
def test_what_excludes_no_network_warns_once_with_the_range(make):
    with pytest.warns(
        TargetWarning, match=r"excludes no network: a latency in this space is 3\.00 ms to 9\.00 ms"
    ) as warned:
        make(profiler_of(Toy()))
    assert len(warned) == 1


def test_nnis_own_filter_takes_models_too():
    assert RangeProfilerFilter(profiler_of(Toy()), max=5e-3)(_model(RawFormatModelSpace, FAST))


def test_filter_takes_any_profiler_of_nni():
    class Layers(Profiler):
        def profile(self, sample):
            return float(len(sample))

    assert LatencyFilter(Layers(Toy()), max=3.0)(FAST)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({}, r"needs a highest cost 'max', a lowest 'min', or both\. Got neither"),
        ({"max": float("nan")}, r"'max' of LatencyFilter must be a finite number\. Got nan"),
        ({"max": "5 ms"}, r"'max' of LatencyFilter must be a finite number\. Got '5 ms'"),
        ({"min": True}, r"'min' of LatencyFilter must be a finite number\. Got True"),
        ({"min": 5e-3, "max": 4e-3}, r"'min' of LatencyFilter must be at most 'max'\. Got 0\.005 and 0\.004"),
    ],
)
def test_filter_refuses_bounds_that_say_nothing(bounds, message):
    with pytest.raises(InvalidValueError, match=message):
        LatencyFilter(profiler_of(Toy()), **bounds)


@pytest.mark.parametrize(
    ("bounds", "words"), [({"max": 2e-3}, "at most 2.00 ms"), ({"min": 10e-3}, "at least 10.0 ms")]
)
def test_filter_refuses_a_range_that_no_network_reaches(bounds, words):
    with pytest.raises(UnreachableTargetError, match=rf"latency of {words}\. Reachable is 3\.00 ms to 9\.00 ms"):
        LatencyFilter(profiler_of(Toy()), **bounds)


@pytest.mark.parametrize("candidate", [None, 3, Toy()], ids=["None", "int", "space"])
def test_filter_refuses_what_has_no_sample(candidate):
    with pytest.raises(InvalidValueError, match=r"A candidate must be a sample, or a model"):
        LatencyFilter(profiler_of(Toy()), max=5e-3)(candidate)
