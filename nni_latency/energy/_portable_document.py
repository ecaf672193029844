# SPDX-License-Identifier: Apache-2.0
"""File of a portable model of time and power: versioned JSON, validated by pydantic; and held-out operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD, DocumentFormat, StrictDocument
from nni_latency.energy._features import DeviceFacts
from nni_latency.regression import Trees


@dataclass(frozen=True)
class HeldOutOperator:
    """A measured operator with its held-out prediction. Immutable.

    Parameters
    ----------
    device : str
        Device of the measurement.
    group : str
        Group of the operator.
    seconds, watts : float
        Measured time [s] and power [W].
    predicted_seconds, predicted_watts : float
        Predicted time [s] and power [W].
    constant_power : float
        Typical power of the training operators [W].
    whole_device : bool, default=False
        Whether the whole device was held out.

    Examples
    --------
    >>> item = HeldOutOperator("a30", "activation", 0.002, 100.0, 0.001, 110.0, 150.0)
    >>> round(item.joules, 6), round(item.predicted_joules, 6), round(item.constant_joules, 6)
    (0.2, 0.11, 0.15)
    """

    device: str
    group: Annotated[str, Field(description="group of operators that it belongs to")]
    seconds: Annotated[PositiveFloat, Field(description="measured [s]")]
    watts: Annotated[PositiveFloat, Field(description="measured [W]")]
    predicted_seconds: Annotated[PositiveFloat, Field(description="predicted [s]")]
    predicted_watts: Annotated[PositiveFloat, Field(description="predicted [W]")]
    constant_power: Annotated[PositiveFloat, Field(description="the most common power of what the model had seen [W]")]
    whole_device: Annotated[bool, Field(description="whether the model had seen nothing of the device")] = False

    __pydantic_config__ = RECORD

    @property
    def joules(self) -> float:
        """Measured energy [J]."""
        return self.seconds * self.watts

    @property
    def predicted_joules(self) -> float:
        """Predicted energy [J]: power times time."""
        return self.predicted_seconds * self.predicted_watts

    @property
    def constant_joules(self) -> float:
        """Predicted time multiplied by the constant power [J]."""
        return self.predicted_seconds * self.constant_power


class PortableDocument(StrictDocument):
    """A portable model of time and power."""

    format: Literal["nni_latency.energy"]
    version: Literal[1]
    n_trees: int = Field(ge=1)
    max_features: float = Field(gt=0, le=1)
    random_state: int = Field(ge=0)
    groups: list[str] = Field(description="groups of operators of which something was measured")
    devices: dict[str, DeviceFacts] = Field(default_factory=dict, description="those that were learned from")
    share: PositiveFloat = Field(description="median power of all operators as a share of their device's most")
    powers: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="median power of the operators of each device [W]"
    )
    bounds: dict[Literal["latency", "energy"], PositiveFloat] = Field(
        default_factory=dict, description="relative error that nine of ten operators that were held out stay within"
    )
    time: Trees = Field(description="logarithm of the time over launch and roofline")
    power: Trees = Field(description="logarithm of the power over the device's most")
    held_out: list[HeldOutOperator] = Field(
        default_factory=list, description="operators that were held out, with what was said of them"
    )


PORTABLE = DocumentFormat(
    "nni_latency.energy",
    1,
    "portable model",
    "a portable model of time and power",
    "fit one with: nni-latency learn energy",
    model=PortableDocument,
)


#: Returns the JSON schema of the file format.
portable_schema = PORTABLE.schema
