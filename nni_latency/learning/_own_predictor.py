# SPDX-License-Identifier: Apache-2.0
"""The user's own graph predictor: the shipped one, with the platforms that were learned on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nni_latency.graphs as graphs
from nni_latency.errors import FileFormatError
from nni_latency.files import is_file
from nni_latency.graphs import GraphPredictor
from nni_latency.platforms import Platform


@dataclass(frozen=True)
class BasePredictor:
    """The predictor to which a platform is added. Immutable.

    Parameters
    ----------
    predictor : GraphPredictor
        The user's own, or the shipped one if there is none or it is older.
    dropped : tuple of Platform
        Platforms of an older predictor of the user, which have to be learned again.
    reason : str, default=""
        Why the user's own predictor is not used although it exists, as a sentence.
    """

    predictor: GraphPredictor
    dropped: tuple[Platform, ...] = ()
    reason: str = ""


def base_predictor() -> BasePredictor:
    """Return the predictor to which platforms of this machine are added.

    A predictor of the user that was made from another version of the shipped one is not extended: the platforms that
    ship would stay those of the older version.

    Raises
    ------
    UnknownNameError
        If no predictor ships with this installation.
    FileFormatError
        If the shipped predictor cannot be read.
    """
    own, shipped = graphs.own_predictor(), GraphPredictor.load(graphs.shipped_predictor())
    if not is_file(own):
        return BasePredictor(shipped)
    try:
        found = GraphPredictor.load(own)
    except FileFormatError as error:
        return BasePredictor(shipped, reason=str(error))
    if not older_platforms(found):
        return BasePredictor(found)
    reason = f"{str(own)!r} was made from another version of the predictor that ships."
    return BasePredictor(shipped, tuple(learned_platforms(found)), reason)


def learned_platforms(predictor: GraphPredictor) -> list[Platform]:
    """Return the platforms that were added to a shipped predictor by measuring the user's machine."""
    return [item for item in predictor.platforms_ if is_learned(item)]


def is_learned(platform: Platform) -> bool:
    """Whether a platform was added to a shipped predictor by measuring the user's machine."""
    return "predictor" in platform.facts


def older_platforms(predictor: GraphPredictor) -> Sequence[Platform]:
    """Return the platforms that were added to another version of the shipped predictor."""
    digest = graphs.shipped_digest()
    return [item for item in learned_platforms(predictor) if item.facts["predictor"] != digest]
