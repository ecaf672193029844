"""What a table of FBNet's space needs measured. It is built without NNI, so that processes that measure start fast."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from nni_latency.operators import OpSpec
from nni_latency.spaces._architecture import published_selections
from nni_latency.spaces._fbnet_blocks import ClassificationHead, ConvBlock, InvertedResidual, Skip
from nni_latency.spaces._fbnet_geometry import (
    CANDIDATES,
    PRESETS,
    FBNetGeometry,
    SearchedLayer,
    head_variants,
    parse_candidate,
)
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference


def fbnet_reference(geometry: FBNetGeometry) -> SpaceReference:
    """Name the space and all its arguments, as a table keeps them."""
    return SpaceReference("fbnet", vars(geometry))


def fbnet_plan(geometry: FBNetGeometry, batch_size: int) -> MeasurePlan:
    """List everything that a table of this configuration needs measured."""
    heads = head_variants(geometry.head_channels, geometry.layers)
    stem = PlanCandidate(_stem_op(geometry, batch_size), partial(build_stem, geometry))
    head = {
        str(channels): PlanCandidate(_head_op(geometry, channels, batch_size), partial(build_head, geometry, channels))
        for channels in heads
    }
    searched = (
        PlanLayer(
            layer.name,
            {
                choice: PlanCandidate(_candidate_op(layer, choice, batch_size), partial(build_candidate, layer, choice))
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


def build_stem(geometry: FBNetGeometry) -> nn.Module:
    """Make the first layer."""
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


def build_head(geometry: FBNetGeometry, channels: int) -> nn.Module:
    """Make what follows the searched layers."""
    return ClassificationHead(geometry.final[0], channels, geometry.num_classes)


def _head_op(geometry: FBNetGeometry, channels: int, batch_size: int) -> OpSpec:
    final_channels, size = geometry.final
    return OpSpec.of(
        "classification_head",
        [(batch_size, final_channels, size, size)],
        channels=channels,
        num_classes=geometry.num_classes,
    )


def build_candidate(layer: SearchedLayer, choice: str) -> nn.Module:
    """Make a candidate of a layer."""
    shape = parse_candidate(choice)
    if shape is not None:
        return InvertedResidual(
            layer.in_channels, layer.out_channels, shape.kernel_size, layer.stride, shape.expansion, shape.groups
        )
    if layer.stride == 1 and layer.in_channels == layer.out_channels:
        return Skip()
    return ConvBlock(layer.in_channels, layer.out_channels, 1, layer.stride)


def _candidate_op(layer: SearchedLayer, choice: str, batch_size: int) -> OpSpec:
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
