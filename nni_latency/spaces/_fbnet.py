"""`FBNetSpace`: the space of FBNet (arXiv:1812.03443) as an NNI model space."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from nni_latency.operators import OpSpec
from nni_latency.spaces._architecture import published_selections
from nni_latency.spaces._fbnet_blocks import ClassificationHead, ConvBlock, InvertedResidual, Skip
from nni_latency.spaces._fbnet_geometry import (
    CANDIDATES,
    HEAD_CHANNELS,
    PRESETS,
    FBNetGeometry,
    SearchedLayer,
    head_variants,
    parse_candidate,
)
from nni_latency.spaces._nni import LayerChoice, ModelSpace
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference


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
    preset : {"imagenet", "cifar"}, optional
        Strides of the stages. Without it, inputs of up to 64 pixels take those of CIFAR.
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
        preset = preset or ("cifar" if input_size is not None and input_size <= 64 else "imagenet")
        usual = PRESETS.get(preset, PRESETS["imagenet"])
        self.geometry = FBNetGeometry(
            preset,
            usual.input_size if input_size is None else input_size,
            usual.num_classes if num_classes is None else num_classes,
            float(width),
            float(depth),
            head_channels,
        )
        self.stem = _build_stem(self.geometry)
        self.blocks = nn.Sequential(
            *(
                LayerChoice({choice: _build(layer, choice) for choice in CANDIDATES}, label=layer.name)
                for layer in self.geometry.layers
            )
        )
        self.head = _build_head(self.geometry, head_channels)

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


def fbnet_reference(geometry: FBNetGeometry) -> SpaceReference:
    """Name the space and all its arguments, as a table keeps them."""
    return SpaceReference("fbnet", vars(geometry))


def fbnet_plan(geometry: FBNetGeometry, batch_size: int) -> MeasurePlan:
    """List everything that a table of this configuration needs measured."""
    heads = head_variants(geometry.head_channels, geometry.layers)
    stem = PlanCandidate(_stem_op(geometry, batch_size), partial(_build_stem, geometry))
    head = {
        str(channels): PlanCandidate(_head_op(geometry, channels, batch_size), partial(_build_head, geometry, channels))
        for channels in heads
    }
    searched = (
        PlanLayer(
            layer.name,
            {
                choice: PlanCandidate(_op(layer, choice, batch_size), partial(_build, layer, choice))
                for choice in CANDIDATES
            },
        )
        for layer in geometry.layers
    )
    plan = MeasurePlan(
        fbnet_reference(geometry),
        (batch_size, 3, geometry.input_size, geometry.input_size),
        (
            PlanLayer("stem", {"conv": stem}, searched=False, default="conv"),
            *searched,
            PlanLayer("head", head, searched=False, default=str(geometry.head_channels)),
        ),
    )
    return replace(plan, published=published_selections(plan))


def _build_stem(geometry: FBNetGeometry) -> nn.Module:
    return ConvBlock(3, geometry.stem_channels, 3, PRESETS[geometry.preset].stem_stride)


def _stem_op(geometry: FBNetGeometry, batch_size: int) -> OpSpec:
    return OpSpec.of(
        "conv_block",
        [(batch_size, 3, geometry.input_size, geometry.input_size)],
        out_channels=geometry.stem_channels,
        kernel_size=3,
        stride=PRESETS[geometry.preset].stem_stride,
        relu=True,
    )


def _build_head(geometry: FBNetGeometry, channels: int) -> nn.Module:
    return ClassificationHead(geometry.final[0], channels, geometry.num_classes)


def _head_op(geometry: FBNetGeometry, channels: int, batch_size: int) -> OpSpec:
    final_channels, size = geometry.final
    return OpSpec.of(
        "classification_head",
        [(batch_size, final_channels, size, size)],
        channels=channels,
        num_classes=geometry.num_classes,
    )


def _build(layer: SearchedLayer, choice: str) -> nn.Module:
    shape = parse_candidate(choice)
    if shape is not None:
        return InvertedResidual(
            layer.in_channels, layer.out_channels, shape.kernel_size, layer.stride, shape.expansion, shape.groups
        )
    if layer.stride == 1 and layer.in_channels == layer.out_channels:
        return Skip()
    return ConvBlock(layer.in_channels, layer.out_channels, 1, layer.stride)


def _op(layer: SearchedLayer, choice: str, batch_size: int) -> OpSpec:
    shapes = [(batch_size, layer.in_channels, layer.input_size, layer.input_size)]
    shape = parse_candidate(choice)
    if shape is not None:
        attributes: dict[str, Any] = {**vars(shape), "out_channels": layer.out_channels, "stride": layer.stride}
        return OpSpec.of("inverted_residual", shapes, **attributes)
    if layer.stride == 1 and layer.in_channels == layer.out_channels:
        return OpSpec.of("identity", shapes)
    return OpSpec.of(
        "conv_block", shapes, out_channels=layer.out_channels, kernel_size=1, stride=layer.stride, relu=True
    )
