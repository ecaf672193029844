"""`MeasuredNetwork`: a network that was measured whole, beside the operators in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat

from nni_latency.costs import Cost
from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork(Cost):
    """One network that was measured for a table of operators. Immutable.

    Parameters
    ----------
    value, low, high : float
        Cost of unmarked runs of the whole network and its interval, in the unit of the table's metric.
    sample : mapping
        Its choices, ``{label: choice}``.
    entries : float
        Sum of its operators' entries, before calibration.
    n_samples : int
        Timed runs.
    """

    sample: Annotated[Mapping[str, JsonValue], Field(description="its choices by label, as NNI writes them")]
    entries: Annotated[PositiveFloat, Field(description="sum of its operators' entries, before calibration")]
    n_samples: NonNegativeInt = 0

    _finite = True
    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.low > 0 and 0 < self.entries < math.inf):
            raise InvalidValueError(f"The costs of a network must be positive and finite. Got {self}.")

    def scaled(self, factor: float) -> MeasuredNetwork:
        """Return the same network at costs that are `factor` times as large."""
        return replace(super().scaled(factor), entries=factor * self.entries)
