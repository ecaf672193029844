# SPDX-License-Identifier: Apache-2.0
"""`Kernel`: keys, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Kernel

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


@given(kind=st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True), sizes=st.dictionaries(NAMES, st.integers(0, 10**6)))
def test_a_key_is_read_back(kind, sizes):
    kernel = Kernel.of(kind, **sizes)
    assert Kernel.parse(kernel.key) == kernel
    assert kernel.sizes == sizes


def test_order_does_not_matter():
    assert Kernel.of("add_block", HW=7, CIN=3).key == Kernel.of("add_block", CIN=3, HW=7).key == "add_block(CIN=3,HW=7)"


def test_sizes_are_replaced():
    assert Kernel.of("add_block", HW=7, CIN=3).replace(CIN=5) == Kernel.of("add_block", HW=7, CIN=5)


@pytest.mark.parametrize("size", [-1, 1.5, True, "3"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidValueError, match="'HW' of a Kernel must be an int >= 0"):
        Kernel.of("add_block", HW=size)


@pytest.mark.parametrize(
    "key",
    ["", "relu", "relu(", "relu(HW)", "relu(HW=1,)", "relu(HW=-1)", "relu(HW=1)x", "(HW=1)", f"relu(HW={'9' * 5000})"],
)
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InvalidValueError, match="key of a kernel must look like"):
        Kernel.parse(key)


def test_names_are_sorted_and_differ():
    with pytest.raises(InvalidValueError, match="names sorted"):
        Kernel("add_block", (("HW", 1), ("CIN", 2)))
