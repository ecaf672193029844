"""Learning in tests: on one thread, and as quietly as can be."""

from __future__ import annotations

import logging

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Keep tests from waiting for each other's threads where processors are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _quiet_loggers():
    """Leave out what NNI and Lightning tell of every experiment."""
    loggers = [logging.getLogger(name) for name in ("nni", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
