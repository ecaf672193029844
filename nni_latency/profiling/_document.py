# SPDX-License-Identifier: Apache-2.0
"""File of a profile: versioned JSON, with one line per model and operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from nni_latency.costs import Cost
from nni_latency.documents import RECORD, DocumentFormat, Operator
from nni_latency.operators import family_of
from nni_latency.tables import HeaderDocument

#: Modes of running an operator alone: repeatedly on one input, or on inputs and weights from memory.
_Way = Annotated[str, Field(pattern="^(reused|memory)$")]

_Watts = Annotated[PositiveFloat | None, Field(description="mean power [W]; null where no meter was read")]


@dataclass(frozen=True)
class AloneCost(Cost):
    """What an operator takes alone. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency of one run and its interval [s].
    watts : float or None
        Mean power [W]; None where no meter was read.
    n_samples : int
        Loops behind it.
    """

    watts: _Watts = None
    n_samples: NonNegativeInt = 0

    __pydantic_config__ = RECORD


@dataclass(frozen=True)
class ProfiledOperator:
    """An operator of one or several models. Immutable.

    Parameters
    ----------
    op : OpSpec
        What it computes.
    alone : mapping of str to AloneCost
        What it takes alone, by whether it reuses one input, ``reused``, or takes them from memory, ``memory``; empty
        where that was not measured.
    """

    op: Operator
    alone: Mapping[_Way, AloneCost] = field(default_factory=dict)

    __pydantic_config__ = RECORD

    @property
    def kind(self) -> str:
        """Kind of the operator; for a convolution with its form."""
        return family_of(self.op)

    @property
    def watts(self) -> float | None:
        """Mean power alone [W], from memory if measured; None without a meter."""
        for way in ("memory", "reused"):
            if way in self.alone and self.alone[way].watts is not None:
                return self.alone[way].watts
        return None


@dataclass(frozen=True)
class Part:
    """How often an operator runs in a model, and what all of its runs take there together [s]. Immutable."""

    count: PositiveInt
    seconds: PositiveFloat

    __pydantic_config__ = RECORD


@dataclass(frozen=True)
class ModelProfile(Cost):
    """A whole model, and its operators as they run in it. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    name : str
        What it is called.
    inputs : tuple of tuple of int
        Shapes of its inputs.
    marked : float
        What its operators took with a mark after each of them, added up [s].
    parts : mapping of str to Part
        By the key of an operator; their times add up to the latency.
    watts : float or None
        Mean power [W]; None where no meter was read.
    n_samples : int
        Runs behind it.
    """

    name: str
    inputs: tuple[tuple[NonNegativeInt, ...], ...]
    marked: Annotated[PositiveFloat, Field(description="sum of its operators with a mark after each [s]")]
    parts: Annotated[Mapping[str, Part], Field(min_length=1, description="by the key of an operator")]
    watts: _Watts = None
    n_samples: NonNegativeInt = 0

    __pydantic_config__ = RECORD

    @property
    def joules(self) -> float | None:
        """Energy of a run [J], gross."""
        return None if self.watts is None else self.value * self.watts


class ProfileDocument(HeaderDocument):
    """Operators of several models on one platform."""

    batch_size: PositiveInt
    target: float = Field(gt=0, le=1, description="share of every model that was to be attributed")
    significant: tuple[str, ...] = Field(default=(), description="kinds of operators that were chosen for that")
    failures: dict[str, str] = Field(
        default_factory=dict, description="models, and operators alone, that could not be measured, and why"
    )
    meter: str | None = Field(None, description="what read the energy")
    assumption: str | None = Field(None, description="what that assumes instead of measuring it")
    models: tuple[ModelProfile, ...] = Field(min_length=1)
    operators: tuple[ProfiledOperator, ...] = Field(min_length=1)


PROFILE = DocumentFormat(
    "nni_latency.operator_profile",
    1,
    "profile",
    "an operator profile",
    "measure one with: nni-latency profile --measure",
    model=ProfileDocument,
)

#: Returns the JSON schema of the file format.
profile_schema = PROFILE.schema
