# SPDX-License-Identifier: Apache-2.0
"""Networks of torch for the tests of runtimes that convert them."""

from __future__ import annotations

import torch
from torch import nn


class TwoInputs(nn.Module):
    """Tokens and a mask, and two results."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)

    def forward(self, words, mask):
        found = self.embed(words) * mask.unsqueeze(-1)
        return found.mean(1), found.softmax(-1)


class Singular(nn.Module):
    """An operator without a counterpart in ONNX or TFLite."""

    def forward(self, inputs):
        return torch.linalg.svdvals(inputs)


class Chance(nn.Module):
    """Other results every time."""

    def forward(self, inputs):
        return inputs * torch.rand(inputs.shape)
