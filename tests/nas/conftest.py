# SPDX-License-Identifier: Apache-2.0
"""Learning in tests, as quietly as can be."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet_loggers():
    """Leave out what NNI and Lightning log of every experiment."""
    loggers = [logging.getLogger(name) for name in ("nni", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
