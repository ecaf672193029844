# SPDX-License-Identifier: Apache-2.0
"""The record of a search: versioned JSON, checked by pydantic."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nni_latency.documents import DocumentFormat
from nni_latency.units import METRIC_UNITS


def _check_metric(metric: str) -> str:
    if metric not in METRIC_UNITS:
        raise ValueError(f"it must be one of {', '.join(METRIC_UNITS)}")
    return metric


_Metric = Annotated[str, AfterValidator(_check_metric)]


class AddendDocument(BaseModel):
    """One of the costs that a weighted sum adds up, in its own SI unit."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    metric: _Metric
    unit: str
    weight: float = Field(description="by what it is multiplied in the sum")
    predicted: float
    measured: float | None = None
    measured_at_speed: float | None = None


class SearchDocument(BaseModel):
    """What was asked, found and measured. Costs are in the SI unit of the metric."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    space: str
    space_arguments: dict[str, Any] = Field(default_factory=dict)
    input_shape: list[int] = Field(default_factory=list, description="what networks take on the device, batch first")
    strategy: str
    seed: int | None = None
    estimator: str = Field(description="as it was named")
    platform: str
    metric: _Metric
    unit: str = Field(description="SI unit of the metric")
    dataset: str
    target: float = Field(description="maximum cost of the network")
    aim: float | None = Field(None, description="the target less its margin")
    fill: float | None = Field(None, description="minimum share of the aim that was to be used")
    predicted: float = Field(description="estimated cost of the network found")
    at_constant_power: float | None = Field(
        None, description="by a portable model: the predicted time, times a constant power [J]"
    )
    addends: list[AddendDocument] = Field(default_factory=list, description="what a weighted sum adds up")
    used: float | None = Field(None, description="predicted over aim")
    missing: list[str] = Field(default_factory=list, description="what the estimate does not rest on as it should")
    measured: float | None = Field(description="cost of the network found as it was measured")
    measured_at_speed: float | None = Field(
        description="the same at the speed that the machine had when the estimator was made"
    )
    meets_target: bool | None = Field(description="whether that is at most the target")
    validation: dict[str, Any] | None = Field(None, description="the measurement as the validation of one network")
    not_measured: str | None = Field(description="why it was not measured")
    accuracy: float = Field(description="on images that were held out")
    sample: dict[str, Any] = Field(default_factory=dict, description="the network found as NNI's sample")
    choices: dict[str, str] = Field(description="the same in words")
    history: list[dict[str, Any]] = Field(default_factory=list, description="epochs or trials, each with its cost")


SEARCH = DocumentFormat(
    "nni_latency.search",
    1,
    "search",
    "the record of a search",
    "search again with: nni-latency search",
    model=SearchDocument,
)

#: Returns the JSON schema of the file format.
search_schema = SEARCH.schema


def read_search(path: str | os.PathLike[str]) -> SearchDocument:
    """Read the record of a search."""
    found: SearchDocument = SEARCH.load(path, SearchDocument.model_copy)
    return found
