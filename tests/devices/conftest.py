"""Agents of the tests have a temporary folder, and with it a device lock, of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_device(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("device")))
        yield
