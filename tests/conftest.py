# SPDX-License-Identifier: Apache-2.0
"""What all tests share: no test depends on time, on a home directory, or on plugins that happen to be installed."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is loaded: threads that wait without spinning, or a busy machine makes training tens of times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Inductor imports setuptools, which fails if it has to replace a distutils that something else has loaded before.
if sys.version_info < (3, 12):
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "stdlib")

# Before any library of linear algebra is loaded: two processes of tests keep two processors busy, and threads that wait
# for each other there make a fit of a hundred numbers take seconds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from nni_latency.devices import Connection

# Examples are drawn from a fixed seed and never judged by how long they take.
settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background with Ctrl-C ignored, and the processes of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what was imported out of all collections of garbage: some tests collect it after each of them."""
    gc.collect()
    gc.freeze()


def _isolate(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Give tests an empty home directory, and the plugins that add commands, where they are installed, alone."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("NNI_LATENCY_PLUGINS", "farm,service")
    for variable in ("NNI_LATENCY_CACHE", "NNI_LATENCY_DATABASE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    if "nni.tools.nnictl.config_utils" in sys.modules:
        # NNI asks for the home once, and reads the list of all experiments of a user ten times for every new one.
        experiments = sys.modules["nni.tools.nnictl.config_utils"].Experiments
        monkeypatch.setattr(experiments.__init__, "__defaults__", (str(home / "nni-experiments"),))


@pytest.fixture(autouse=True, scope="session")
def _isolated_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate what several tests share."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _isolate(monkeypatch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let this machine be another device for every process of tests: they need not wait for each other."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Connection, "lock_folders", (str(tmp_path_factory.mktemp("lock")),))
        yield


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Isolate every test from all others."""
    _isolate(monkeypatch, tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep tests from waiting for each other's threads where processors are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """Collect the sockets that Dask leaves open when nobody answers, before a test is blamed for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
