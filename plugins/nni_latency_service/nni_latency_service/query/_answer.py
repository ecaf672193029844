# SPDX-License-Identifier: Apache-2.0
"""`Answer`: a latency and its source."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate
from nni_latency.measurement import KnownLatency
from nni_latency.platforms import Platform

#: An earlier record, a new measurement or a prediction.
Source = Literal["record", "measurement", "prediction"]

#: When to measure a latency without a record.
Measure = Literal["always", "if-unsure", "never"]

#: Facts of a platform that hold versions.
_VERSIONS = ("torch", "driver", "cuda", "runtime.version")


def check_measure(value: str) -> Measure:
    """Return when to measure.

    Raises
    ------
    InvalidValueError
        If the value is not one of the options.
    """
    for known in get_args(Measure):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise InvalidValueError(f"'measure' must be one of {', '.join(get_args(Measure))}. Got {value!r}.")


@dataclass(frozen=True)
class Answer(Cost):
    """A latency and its source. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    key : str
        Key of the network, operator or kernel.
    platform : str
        Id of the platform.
    source : {"record", "measurement", "prediction"}
        An earlier record, a measurement taken for this answer, or a prediction.
    at : float, optional
        Time of the measurement [s since 1970, UTC].
    repeatability : float, optional
        Standard deviation of the visits divided by their mean, for measurements.
    n_samples, n_visits : int
        Number of runs and visits.
    campaign : str
        Identifier of the campaign in the database.
    predictor : str
        Name of the predictor.
    versions : mapping of str to str
        Versions of nni_latency and, if the platform records it, of the runtime.
    missing : tuple of str
        Inputs that the prediction lacks.
    remarks : tuple of str
        Further remarks, such as why nothing was measured.

    Examples
    --------
    >>> answer = Answer(0.002, 0.0019, 0.0021, key="0" * 32, platform="board.torch.fp32.t1", source="prediction")
    >>> Answer.of_content(answer.content()) == answer
    True
    """

    key: str = field(kw_only=True)
    platform: str = field(kw_only=True)
    source: Source = field(kw_only=True)
    at: float | None = field(default=None, kw_only=True)
    repeatability: float | None = field(default=None, kw_only=True)
    n_samples: int = field(default=0, kw_only=True)
    n_visits: int = field(default=0, kw_only=True)
    campaign: str = field(default="", kw_only=True)
    predictor: str = field(default="", kw_only=True)
    versions: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    missing: tuple[str, ...] = field(default=(), kw_only=True)
    remarks: tuple[str, ...] = field(default=(), kw_only=True)

    @classmethod
    def of_known(cls, known: KnownLatency, source: Source = "record") -> Answer:
        """Create an answer from a known latency of a store."""
        return cls(
            known.value,
            known.low,
            known.high,
            key=known.digest,
            platform=known.platform.id,
            source=source,
            at=known.at,
            repeatability=known.repeatability,
            n_samples=known.n_samples,
            n_visits=known.n_visits,
            campaign=known.campaign,
            versions=_versions(known.platform, known.package_version),
        )

    @classmethod
    def of_estimate(cls, estimate: Estimate, *, key: str, platform: str, predictor: str, version: str) -> Answer:
        """Create an answer from an estimate."""
        return cls(
            estimate.value,
            estimate.low,
            estimate.high,
            key=key,
            platform=platform,
            source="prediction",
            predictor=predictor,
            versions={"nni_latency": version},
            missing=tuple(dict.fromkeys(estimate.missing)),
        )

    @property
    def age(self) -> float | None:
        """Age of the measurement [s]; None for a prediction."""
        return None if self.at is None else max(0.0, time.time() - self.at)

    def content(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            **found,
            "versions": dict(self.versions),
            "missing": list(self.missing),
            "remarks": list(self.remarks),
        }

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Answer:
        """Create an answer from the result of `content`; fields of newer versions are ignored.

        Raises
        ------
        InvalidValueError
            If the content is invalid.
        """
        known = {item.name for item in fields(cls)}
        try:
            found = {name: value for name, value in content.items() if name in known}
            lists = {name: tuple(map(str, found.get(name, ()))) for name in ("missing", "remarks")}
            return cls(**{**found, **lists})
        except (TypeError, AttributeError) as error:
            raise InvalidValueError(f"An answer must be an object with 'value', 'key' and others: {error}.") from error


def _versions(platform: Platform, package: str) -> dict[str, str]:
    facts = {name: str(platform.facts[name]) for name in _VERSIONS if platform.facts.get(name) is not None}
    found = {platform.runtime if name == "runtime.version" else name: value for name, value in facts.items()}
    return {**({"nni_latency": package} if package else {}), **found}
