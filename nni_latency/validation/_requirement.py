# SPDX-License-Identifier: Apache-2.0
"""What a validation must reach, as it is written on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import nni_latency.estimators as estimators
from nni_latency.errors import InvalidValueError, UnknownNameError

#: Scores with a lower limit, and scores with an upper limit.
_AT_LEAST = ("within5", "within10", "spearman")
_AT_MOST = ("mape", "rmspe", "worst", "bias")

#: Ranges of scores other than 0 to infinity.
_REACHABLE = {"within5": (0.0, 1.0), "within10": (0.0, 1.0), "spearman": (-1.0, 1.0)}


@dataclass(frozen=True)
class Requirement:
    """A score and its limit, such as ``within10=0.95``.

    Parameters
    ----------
    name : str
        ``within5``, ``within10`` or ``spearman``, with a lower limit; ``mape``, ``rmspe``, ``worst`` or ``bias``
        (absolute value), with an upper limit.
    limit : float
        Limit as a ratio.

    Examples
    --------
    >>> str(Requirement.parse("mape=0.05"))
    'mape <= 0.05'
    """

    name: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Parse ``name=limit``, the limit as a ratio.

        Raises
        ------
        InvalidValueError
            If the text has another format, or the limit is unreachable.
        UnknownNameError
            If the score is unknown.
        """
        name, equals, limit = text.partition("=")
        name = name.strip()
        if name not in (*_AT_LEAST, *_AT_MOST) and equals:
            raise UnknownNameError.of("score", name, [*_AT_LEAST, *_AT_MOST])
        try:
            number = float(limit)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidValueError(
                f"A requirement must be a score and its limit, such as within10=0.95. Got {text!r}."
            )
        least, most = _REACHABLE.get(name, (0.0, math.inf))
        if not least <= number <= most:
            raise InvalidValueError(
                f"The limit of {name} must be from {least:g} to {most:g}, as a ratio: 95 % is written 0.95. "
                f"Got {text!r}."
            )
        return cls(name, number)

    def __str__(self) -> str:
        return f"{self.name} {'>=' if self.name in _AT_LEAST else '<='} {self.limit:g}"

    def is_met(self, scores: estimators.Scores) -> bool:
        """Return whether scores meet the requirement; undefined scores do not."""
        value = getattr(scores, self.name)
        return bool(value >= self.limit if self.name in _AT_LEAST else abs(value) <= self.limit)
