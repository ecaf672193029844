# SPDX-License-Identifier: Apache-2.0
"""Freed memory is kept while measuring."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Buffers of so many MiB, freed and allocated again: how many pages come anew once the first ones are there.
_FAULTS = """
import resource, sys, torch
from nni_latency.measurement.runtimes import TorchEager

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(int(sys.argv[1]) * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with TorchEager().session():
    faults()
    print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize("size", [16, 48])
def test_session_keeps_freed_memory(size):
    outcome = subprocess.run([sys.executable, "-c", _FAULTS, str(size)], check=True, capture_output=True, text=True)
    # Ten buffers of 256 pages a MiB each would all come anew; one that the heap has no place for may.
    assert int(outcome.stdout) <= 3 * 256 * size
