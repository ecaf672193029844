"""Freed memory is kept while measuring."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Buffers of 16 MiB, freed and allocated again: how many pages come anew once the first ones are there.
_FAULTS = """
import resource, torch
from nni_latency.measurement.runtimes import TorchEager

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(4 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with TorchEager().session():
    faults()
    print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_session_keeps_freed_memory():
    outcome = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True)
    # Ten buffers of 4,096 pages each would be 40,960; one that the heap has no place for may come anew.
    assert int(outcome.stdout) <= 3 * 4096
