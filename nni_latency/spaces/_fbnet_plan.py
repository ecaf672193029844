# SPDX-License-Identifier: Apache-2.0
"""What a table of FBNet's space needs measured, and its blocks. Without NNI, so that worker processes start fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from nni_latency.operators import ChannelShuffle, OpSpec
from nni_latency.spaces._fbnet_geometry import (
    CANDIDATES,
    PRESETS,
    FBNetGeometry,
    SearchedLayer,
    head_variants,
    parse_candidate,
    published_selections,
)
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference


def fbnet_reference(geometry: FBNetGeometry) -> SpaceReference:
    """Name the space and all its arguments, as a table keeps them."""
    return SpaceReference("fbnet", vars(geometry))


def fbnet_plan(geometry: FBNetGeometry, batch_size: int) -> MeasurePlan:
    """List everything that a table of this configuration needs measured."""
    heads = head_variants(geometry.head_channels, geometry.layers)
    stem = _candidate(stem_op(geometry, batch_size))
    head = {str(channels): _candidate(head_op(geometry, channels, batch_size)) for channels in heads}
    searched = (
        PlanLayer(layer.name, {choice: _candidate(candidate_op(layer, choice, batch_size)) for choice in CANDIDATES})
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


def _candidate(op: OpSpec) -> PlanCandidate:
    return PlanCandidate(op, partial(build_block, op))


def stem_op(geometry: FBNetGeometry, batch_size: int = 1) -> OpSpec:
    """Describe the first layer."""
    return OpSpec.of(
        "conv_block",
        [(batch_size, 3, geometry.input_size, geometry.input_size)],
        out_channels=geometry.stem_channels,
        kernel_size=3,
        stride=PRESETS[geometry.preset].stem_stride,
        relu=True,
    )


def head_op(geometry: FBNetGeometry, channels: int, batch_size: int = 1) -> OpSpec:
    """Describe what follows the searched layers."""
    final_channels, size = geometry.final
    shapes = [(batch_size, final_channels, size, size)]
    return OpSpec.of("classification_head", shapes, channels=channels, num_classes=geometry.num_classes)


def candidate_op(layer: SearchedLayer, choice: str, batch_size: int = 1) -> OpSpec:
    """Describe a candidate of a layer."""
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


def build_block(op: OpSpec) -> nn.Module:
    """Make the block that an operator of the space describes."""
    blocks: dict[str, Callable[..., nn.Module]] = {
        "conv_block": ConvBlock,
        "inverted_residual": FBNetBlock,
        "classification_head": ClassificationHead,
        "identity": Skip,
    }
    return blocks[op.kind](op.input_shapes[0][1], **dict(op.attributes))


class ConvBlock(nn.Sequential):
    """Convolution, batch normalisation and, if asked for, ReLU; 'same' padding."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        convolution = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups, bias=False
        )
        # Keeps the activations of an untrained network at one size, through depthwise convolutions too.
        nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(out_channels)]
        super().__init__(*layers, *([nn.ReLU(inplace=True)] if relu else []))
        self.relu = relu

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Describe the block for those input shapes."""
        convolution = cast(nn.Conv2d, self[0])
        return OpSpec.of(
            "conv_block",
            input_shapes,
            out_channels=convolution.out_channels,
            kernel_size=convolution.kernel_size[0],
            stride=convolution.stride[0],
            relu=self.relu,
        )


class Skip(nn.Identity):
    """The candidate that does nothing."""

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Describe the block for those input shapes."""
        return OpSpec.of("identity", input_shapes)


class FBNetBlock(nn.Module):
    """1x1 convolution, depthwise convolution, 1x1 convolution, with a residual where the shapes allow.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels.
    kernel_size : int
        Window of the depthwise convolution.
    stride : int
        Stride of the depthwise convolution.
    expansion : int
        Channels inside over channels of the input.
    groups : int, default=1
        Groups of both 1x1 convolutions; with more than one their outputs are shuffled.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int, expansion: int, groups: int = 1
    ) -> None:
        super().__init__()
        middle = in_channels * expansion
        shuffle = [ChannelShuffle(groups)] if groups > 1 else []
        self.layers = nn.Sequential(
            ConvBlock(in_channels, middle, groups=groups),
            *shuffle,
            ConvBlock(middle, middle, kernel_size, stride, groups=middle),
            ConvBlock(middle, out_channels, groups=groups, relu=False),
            *shuffle,
        )
        self.residual = stride == 1 and in_channels == out_channels
        self._attributes: dict[str, Any] = {
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "expansion": expansion,
            "groups": groups,
        }

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Describe the block for those input shapes."""
        return OpSpec.of("inverted_residual", input_shapes, **self._attributes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output, plus its input where it is a residual block."""
        outputs: torch.Tensor = self.layers(inputs)
        return inputs + outputs if self.residual else outputs


class ClassificationHead(nn.Module):
    """1x1 convolution, average over the image, linear classifier."""

    def __init__(self, in_channels: int, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = ConvBlock(in_channels, channels)
        self.classifier = nn.Linear(channels, num_classes)

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Describe the block for those input shapes."""
        return OpSpec.of(
            "classification_head",
            input_shapes,
            channels=self.classifier.in_features,
            num_classes=self.classifier.out_features,
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.classifier(self.features(inputs).mean((2, 3)))
        return logits
