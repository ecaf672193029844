# SPDX-License-Identifier: Apache-2.0
"""`FBNetSpace`: the space of FBNet (arXiv:1812.03443) as an NNI model space."""

from __future__ import annotations

import torch
from torch import nn

from nni_latency.spaces._fbnet_geometry import CANDIDATES, HEAD_CHANNELS, PRESETS, FBNetGeometry
from nni_latency.spaces._fbnet_plan import (
    build_block,
    candidate_op,
    fbnet_plan,
    fbnet_reference,
    head_op,
    stem_op,
)
from nni_latency.spaces._nni import LayerChoice, ModelSpace
from nni_latency.tables import MeasurePlan, SpaceReference


class FBNetSpace(ModelSpace):
    """The space of FBNet: 22 searched layers with 9 candidates each, between a fixed stem and head.

    The labels are ``layer0`` to ``layer21``; the candidates ``k3_e1, k3_e1_g2, k3_e3, k3_e6, k5_e1, k5_e1_g2, k5_e3,
    k5_e6, skip`` in that order. ``skip`` is the identity, or a 1x1 convolution where shapes change.

    Parameters
    ----------
    num_classes : int, optional
        Classes; 1000 for ImageNet, 100 for CIFAR.
    input_size : int, optional
        Input image size [pixel]; 224 for ImageNet, 32 for CIFAR.
    preset : {"imagenet", "cifar", "cifar10"}, optional
        Strides of the stages. Without it, inputs of up to 64 pixels take those of ``cifar``: 1, 1, 2, 2, 1, 2, 1, as
        HW-NAS-Bench has them for CIFAR-100. ``cifar10`` shrinks images earlier: 1, 2, 2, 1, 1, 1, 1, as
        https://github.com/jh88/fbnet.
    width : float, default=1.0
        Factor on all channels, rounded to multiples of 8.
    depth : float, default=1.0
        Factor on the blocks of every stage, rounded, at least one.
    head_channels : int, default=1504
        Channels before the classifier.

    Raises
    ------
    InvalidValueError
        If an argument is outside its range.
    UnknownNameError
        If there is no such preset.

    References
    ----------
    .. [1] B. Wu et al., "FBNet: Hardware-Aware Efficient ConvNet Design via Differentiable Neural Architecture
       Search", CVPR 2019. arXiv:1812.03443

    Examples
    --------
    >>> space = FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25)
    >>> list(space.simplify())
    ['layer0', 'layer1', 'layer2', 'layer3', 'layer4', 'layer5', 'layer6']
    """

    def __init__(
        self,
        num_classes: int | None = None,
        input_size: int | None = None,
        preset: str | None = None,
        width: float = 1.0,
        depth: float = 1.0,
        head_channels: int = HEAD_CHANNELS,
    ) -> None:
        super().__init__()
        preset = preset or ("cifar" if isinstance(input_size, int) and input_size <= 64 else "imagenet")
        usual = PRESETS.get(preset, PRESETS["imagenet"])
        self.geometry = FBNetGeometry(
            preset,
            usual.input_size if input_size is None else input_size,
            usual.num_classes if num_classes is None else num_classes,
            width,
            depth,
            head_channels,
        )
        self.stem = build_block(stem_op(self.geometry))
        self.blocks = nn.Sequential(
            *(
                LayerChoice({c: build_block(candidate_op(layer, c)) for c in CANDIDATES}, label=layer.name)
                for layer in self.geometry.layers
            )
        )
        self.head = build_block(head_op(self.geometry, head_channels))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits, (batch, num_classes), of images, (batch, 3, size, size)."""
        logits: torch.Tensor = self.head(self.blocks(self.stem(inputs)))
        return logits

    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        """Return an input of the right shape."""
        return torch.zeros(batch_size, 3, self.geometry.input_size, self.geometry.input_size)

    @property
    def reference(self) -> SpaceReference:
        """The space's name and all its arguments, as a table keeps them."""
        return fbnet_reference(self.geometry)

    def measure_plan(self, batch_size: int = 1) -> MeasurePlan:
        """List everything that a table of this space needs measured."""
        return fbnet_plan(self.geometry, batch_size)
