"""The shuffle of channels, which torch has and not every exporter knows."""

from __future__ import annotations

import torch
from torch import nn


def shuffle_channels(inputs: torch.Tensor, groups: int = 2) -> torch.Tensor:
    """Interleave the channels of groups, by functions that every exporter knows.

    Parameters
    ----------
    inputs : Tensor of shape (batch, channels, height, width)
        Feature maps.
    groups : int, default=2
        Into how many groups the channels are divided.

    References
    ----------
    .. [1] X. Zhang et al., "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices",
       CVPR 2018. https://arxiv.org/abs/1707.01083
    """
    batch, channels, height, width = inputs.shape
    grouped = inputs.view(batch, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).reshape(batch, channels, height, width)


class ChannelShuffle(nn.Module):
    """`shuffle_channels` as a layer, so that the next grouped convolution sees all groups.

    Parameters
    ----------
    groups : int, default=2
        Into how many groups the channels are divided.
    """

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the channels in their new order."""
        return shuffle_channels(inputs, self.groups)
