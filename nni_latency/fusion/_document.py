"""File of fusion rules: versioned JSON, validated by pydantic, one line per rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, StrictDocument
from nni_latency.operators import FusionRule, FusionRules, FusionTimes
from nni_latency.platforms import Platform


class TimesDocument(StrictDocument):
    """What operators took apart and together, less what the runtime adds to every run."""

    before: float = Field(description="T1: the operators before the last one [s]")
    last: float = Field(description="T2: the last one [s]")
    together: float = Field(description="T12: all of them in one network [s]")
    share: float = Field(description="(T1 + T2 - T12) / min(T1, T2)")
    margin: NonNegativeFloat = Field(description="how far the share may be off")


class RuleDocument(StrictDocument):
    """Whether an operator runs in one kernel with those before it."""

    kinds: list[str] = Field(min_length=2, description="kinds or families of operators that follow each other")
    fused: bool = Field(description="whether the last one runs in the kernel of those before it")
    shared: bool = Field(description="whether it does although the result before it is read elsewhere, too")
    folds: bool = Field(description="whether the last one becomes part of the weights of those before it")
    times: TimesDocument | None = Field(description="what was measured")
    source: str = Field(description="how else it is known")


class FusionDocument(StrictDocument):
    """What one runtime runs as one kernel."""

    platform: NamedPlatformDocument
    constant: NonNegativeFloat = Field(description="what the runtime adds to every run of a network [s]")
    failures: dict[str, str] = Field(description="kinds that could not be tried, and why")
    campaign: str | None = Field(description="the measuring campaign in the database")
    plain: list[str] = Field(
        default_factory=list, description="kinds that do not work in the memory layout of convolutions"
    )
    blocks: dict[str, PositiveInt] = Field(
        default_factory=dict, description="kinds that work in it only with whole blocks of so many channels"
    )
    rules: list[RuleDocument]


FUSION = DocumentFormat(
    "nni_latency.fusion",
    1,
    "file of fusion rules",
    "a file of fusion rules",
    "find them out with: nni-latency learn kernels --fusion all",
    model=FusionDocument,
)

#: Returns the JSON schema of the file format.
fusion_schema = FUSION.schema


def save_rules(rules: FusionRules, path: str | Path) -> Path:
    """Write fusion rules to a JSON file atomically.

    Parameters
    ----------
    rules : FusionRules
        The rules.
    path : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    fields = {
        "platform": {"id": rules.platform.id, **rules.platform.as_dict()},
        "constant": rules.constant,
        "failures": dict(rules.failures),
        "campaign": rules.campaign,
        "plain": list(rules.plain),
        "blocks": dict(rules.blocks),
    }
    return FUSION.save(path, fields, {"rules": (json.dumps(rule_content(rule)) for rule in rules.rules)})


def read_rules(path: str | Path, platform: Platform | None = None) -> FusionRules:
    """Read fusion rules from their file.

    Parameters
    ----------
    path : str or Path
        The file.
    platform : Platform, optional
        Platform for which networks are divided into kernels.

    Returns
    -------
    FusionRules

    Raises
    ------
    FileFormatError
        If the file is missing, truncated, modified, or of another type or version.
    MismatchError
        If the rules are of another runtime, precision or version than the platform.
    """
    rules = FUSION.load(path, _rules)
    if platform is not None:
        rules.check_runtime(platform)
    return rules


def rule_content(rule: FusionRule) -> dict[str, Any]:
    """Return a rule as the plain values in the file."""
    times = rule.times and {**vars(rule.times), "share": rule.times.share}
    return {**vars(rule), "kinds": list(rule.kinds), "times": times}


def _rules(document: FusionDocument) -> FusionRules:
    return FusionRules(
        document.platform.to_platform(),
        tuple(map(_rule, document.rules)),
        document.constant,
        document.failures,
        document.campaign,
        tuple(document.plain),
        document.blocks,
    )


def _rule(document: RuleDocument) -> FusionRule:
    times = document.times
    return FusionRule(
        tuple(document.kinds),
        document.fused,
        document.shared,
        document.folds,
        None if times is None else FusionTimes(times.before, times.last, times.together, times.margin),
        document.source,
    )
