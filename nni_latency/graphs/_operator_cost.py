"""What one operator of a network costs, as a predictor says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorCost:
    """What one operator of a network is predicted to cost.

    Parameters
    ----------
    name : str
        Where it is called.
    op_key : str
        What it computes.
    seconds : float
        Its part of a run [s].
    share : float
        Its part of a run, as a ratio.
    is_known : bool
        Whether operators of its kind were among those that were learned from.
    """

    name: str
    op_key: str
    seconds: float
    share: float
    is_known: bool
