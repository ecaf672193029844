# SPDX-License-Identifier: Apache-2.0
"""Platforms that nobody measured: which known ones count, and by how much what they take is scaled."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.graphs._encoding import TERMS
from nni_latency.graphs._unmeasured import Unmeasured, left_out_errors
from nni_latency.platforms import Platform

DEVICES, RUNTIMES = ("laptop", "server", "board"), ("torch", "onnxruntime", "ncnn", "openvino")
EVERY = [Platform(device, runtime) for device in DEVICES for runtime in RUNTIMES]


def _terms(platforms, device_speeds=(1.0, 2.5, 0.4), runtime_speeds=(1.0, 0.5, 0.7, 0.4)):
    """Return parts of times, (3, n_platforms, n_terms), each the product of what a device and a runtime take."""
    networks = np.random.default_rng(0).uniform(1e-4, 1e-2, (3, 1, len(TERMS)))
    speeds = [
        device_speeds[DEVICES.index(item.device)] * runtime_speeds[RUNTIMES.index(item.runtime)] for item in platforms
    ]
    return networks * np.array(speeds)[None, :, None]


@pytest.mark.parametrize("new", EVERY, ids=lambda item: item.id)
def test_a_known_runtime_on_a_known_device_is_what_both_add(new):
    known = [item for item in EVERY if item != new]
    guess = Unmeasured.of(new, known)
    assert guess.weights.sum() == pytest.approx(1.0)
    assert guess.latencies(_terms(known)) == pytest.approx(_terms([new]).sum(2)[:, 0], rel=0.1)


def test_errors_of_platforms_that_are_left_out_are_small_where_speeds_are_products():
    terms = _terms(EVERY)
    assert np.abs(left_out_errors(terms, terms.sum(2), EVERY)).max() < 0.1


@given(st.lists(st.sampled_from(EVERY), min_size=3, unique_by=lambda item: item.id), st.sampled_from(EVERY))
def test_weights_add_up_to_one(known, new):
    assert Unmeasured.of(new, known).weights.sum() == pytest.approx(1.0)


def test_facts_scale_a_device_that_is_known_by_them_alone():
    facts = {"peak_flops": 1e11, "memory_bandwidth": 1e10}
    known = [Platform("laptop", name, facts=facts) for name in RUNTIMES] + [Platform("server", "torch")]
    new = Platform("phone", "ncnn", facts={name: value / 4 for name, value in facts.items()})
    guess = Unmeasured.of(new, known)
    assert guess.weights[-1] == 0.0
    assert known[guess.nearest].id == "laptop.ncnn.fp32.t1"
    computed = TERMS.index("flops")
    assert guess.factors[:4, computed] == pytest.approx(4.0)
    assert Unmeasured.of(new, [*known, Platform("phone", "torch")]).factors[:, computed] == pytest.approx(1.0)


def test_days_on_which_a_device_was_measured_do_not_make_its_platforms_differ():
    def facts(speed, cache=1e7):
        return {"peak_flops": speed * 1e11, "memory_bandwidth": speed * 2e10, "cache": cache}

    days = zip(itertools.product(RUNTIMES, ("fp32", "int8")), (1.0, 0.9, 1.1, 0.85, 1.0, 1.05, 0.95, 1.0), strict=True)
    known = [Platform("server", *how, facts=facts(speed)) for how, speed in days]
    known += [Platform("laptop", name, facts=facts(1.2, 4e7)) for name in RUNTIMES]
    guess = Unmeasured.of(Platform("board", "ncnn", facts=facts(1.15)), known)
    assert known[guess.nearest].id == "server.ncnn.fp32.t1"
    assert np.abs(guess.weights).sum() < 2
    steady = [replace(item, facts=facts(1.0) if item.device == "server" else item.facts) for item in known]
    assert guess.weights == pytest.approx(Unmeasured.of(Platform("board", "ncnn", facts=facts(1.15)), steady).weights)


def test_precision_and_threads_scale_what_facts_do_not():
    known = [Platform("laptop", name) for name in RUNTIMES]
    guess = Unmeasured.of(Platform("laptop", "torch", "int8", 4), known)
    assert guess.factors[:, TERMS.index("flops")] == pytest.approx(0.25 / 4**0.8)
    assert guess.idle == ()
    assert Unmeasured.of(Platform("x", facts={"cache": 1e6}), known).idle == ("cache",)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), "fast"])
def test_a_fact_that_is_no_positive_number_is_named(value):
    strange = Platform("board", "torch", facts={"peak_flops": value})
    with pytest.raises(InvalidValueError, match=r"'peak_flops' of the platform board\.torch\.fp32\.t1 must be"):
        Unmeasured.of(strange, EVERY[:3])
    with pytest.raises(InvalidValueError, match=r"'peak_flops' of the platform board\.torch\.fp32\.t1"):
        Unmeasured.of(Platform("phone"), [*EVERY[:3], strange])
