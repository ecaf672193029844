# SPDX-License-Identifier: Apache-2.0
"""Parts of files: what trees and processes have learned, checked by pydantic."""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from nni_latency.documents import StrictDocument


class TreeDocument(StrictDocument):
    """A regression tree, node by node."""

    feature: list[int] = Field(min_length=1, description="the feature that divides a node; -1 for a leaf")
    threshold: list[float] = Field(description="largest value that goes to the left; of a leaf, its value")
    left: list[int]
    right: list[int]


class TreesDocument(StrictDocument):
    """Trees whose answers are added up: offset + scale * sum."""

    offset: float
    scale: float
    trees: list[TreeDocument] = Field(min_length=1)


class ProcessDocument(StrictDocument):
    """A Gaussian process: points that it has seen, as features, and what each adds to an answer."""

    centre: list[float]
    width: list[PositiveFloat]
    weights: list[float] = Field(min_length=1)
    points: list[list[float]]
