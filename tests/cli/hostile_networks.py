# SPDX-License-Identifier: Apache-2.0
"""Networks that do what a command must survive."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn


class _Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        self.act()
        return self.convolution(x)


class Exits(_Network):
    """Ends its process by sys.exit."""

    def act(self):
        sys.exit(0)


class Quits(_Network):
    """Ends its process at once."""

    def act(self):
        os._exit(0)


class Crashes(_Network):
    """Writes where it must not."""

    def act(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(_Network):
    """Never returns."""

    def act(self):
        while True:
            time.sleep(1)


class Swallows(_Network):
    """Takes more memory than there is."""

    def act(self):
        torch.zeros(120 * 2**30, dtype=torch.uint8, device="cpu")


class Interrupts(_Network):
    """Has the user press Ctrl-C."""

    def act(self):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
