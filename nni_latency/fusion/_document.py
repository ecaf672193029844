# SPDX-License-Identifier: Apache-2.0
"""File of fusion rules: versioned JSON, validated by pydantic, one line per rule."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatform, StrictDocument, line
from nni_latency.operators import FusionRule, FusionRules
from nni_latency.platforms import Platform


class FusionDocument(StrictDocument):
    """What one runtime runs as one kernel."""

    platform: NamedPlatform
    constant: NonNegativeFloat = Field(description="what the runtime adds to every run of a network [s]")
    failures: dict[str, str] = Field(description="kinds that could not be tried, and why")
    campaign: str | None = Field(description="the measuring campaign in the database")
    plain: tuple[str, ...] = Field(
        default=(), description="kinds that do not work in the memory layout of convolutions"
    )
    blocks: dict[str, PositiveInt] = Field(
        default_factory=dict, description="kinds that work in it only with whole blocks of so many channels"
    )
    rules: tuple[FusionRule, ...]


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
    """Write fusion rules to a JSON file atomically; an existing file is replaced.

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
    return FUSION.save(path, fields, {"rules": map(line, rules.rules)})


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


def _rules(document: FusionDocument) -> FusionRules:
    return FusionRules(**{name: getattr(document, name) for name in FusionDocument.model_fields})
