# SPDX-License-Identifier: Apache-2.0
"""Agents of the tests have a temporary folder of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("device")))
        yield
