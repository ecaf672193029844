# SPDX-License-Identifier: Apache-2.0
"""Farms of real processes: one that the tests of a module share, and certificates."""

from __future__ import annotations

import secrets
import shutil
import subprocess

import pytest
from nni_latency_farm.testing import FarmOfProcesses


@pytest.fixture(autouse=True)
def _dask(forgotten_sockets):
    """Dask leaves sockets open."""


@pytest.fixture
def processes(tmp_path):
    """Start a farm of the test's own, without workers."""
    with FarmOfProcesses(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory):
    """Make a certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        cert, key = folder / "farm.crt", folder / "farm.key"
        options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        subprocess.run(["openssl", "req", *options, "-keyout", key, "-out", cert], check=True, capture_output=True)
        return cert, key

    return make


@pytest.fixture
def make_token(tmp_path):
    """Make a token file that nobody else can read."""

    def make(name="farm.token", text=None):
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(text or secrets.token_hex(32))
        return path

    return make
