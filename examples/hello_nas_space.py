# SPDX-License-Identifier: Apache-2.0
"""The space of NNI's tutorial "Hello, NAS!", and pictures for it that need no download.

NNI makes no supernet of a dropout rate that is searched, so trials of networks search it (`evolution`, `random`).

From a table of operators of this machine to a measured network:

    nni-latency build-lut --space examples/hello_nas_space.py:HelloSpace --out hello.json
    nni-latency search --space examples/hello_nas_space.py:HelloSpace --latency-estimator hello.json --target 2ms \
        --dataset examples/hello_nas_space.py:pictures
"""

from __future__ import annotations

import nni
import numpy as np
import torch
from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableDropout, MutableLinear
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


class DepthwiseSeparableConv(nn.Module):
    """A convolution of every channel by itself, and one across them."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, kernel_size=3, groups=in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, kernel_size=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (n, out_channels, height - 2, width - 2)."""
        outputs: torch.Tensor = self.pointwise(self.depthwise(inputs))
        return outputs


class HelloSpace(ModelSpace):
    """A convolution, a dropout rate and a number of features to choose, for pictures of 1x28x28."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = LayerChoice([nn.Conv2d(32, 64, 3, 1), DepthwiseSeparableConv(32, 64)], label="conv2")
        self.dropout1 = MutableDropout(nni.choice("dropout", [0.25, 0.5, 0.75]))
        self.dropout2 = nn.Dropout(0.5)
        feature = nni.choice("feature", [64, 128, 256])
        self.fc1 = MutableLinear(9216, feature)
        self.fc2 = MutableLinear(feature, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return a number for each class, (n, 10)."""
        features = functional.max_pool2d(self.conv2(functional.relu(self.conv1(inputs))), 2)
        hidden = self.fc1(torch.flatten(self.dropout1(features), 1))
        outputs: torch.Tensor = self.fc2(self.dropout2(functional.relu(hidden)))
        return outputs

    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        """Return pictures of the size that the space takes."""
        return torch.zeros(batch_size, 1, 28, 28)


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's handwritten digits, enlarged to 28x28, and their classes."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1)
    enlarged = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    return (enlarged / 16).numpy(), digits.target
