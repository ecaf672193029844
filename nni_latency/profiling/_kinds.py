"""Which kinds of operators count: as few as attribute the share of every model that is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

#: Shares add up to the target within this.
_ROUNDING = 1e-9


def select_kinds(shares: Sequence[Mapping[str, float]], target: float, chosen: Collection[str] = ()) -> tuple[str, ...]:
    """Choose kinds of operators until they have at least the target share of everything.

    One after another, the kind is added that has most of those models that are below the target.

    Parameters
    ----------
    shares : sequence of mapping of str to float
        For every model and metric, the share of each kind; those of one are 1 at most together.
    target : float
        Share of each that is to be reached, in (0, 1].
    chosen : collection of str, default=()
        Kinds that are chosen already.

    Returns
    -------
    tuple of str
        All kinds that are chosen, in this order. Where even all kinds do not reach the target, all that have a share
        of a model that is below.

    Examples
    --------
    >>> select_kinds([{"conv2d": 0.7, "linear": 0.2, "relu": 0.1}, {"conv2d": 0.1, "linear": 0.9}], 0.8)
    ('linear', 'conv2d')
    """
    found = list(chosen)
    while True:
        below = [row for row in shares if _total(row, found) < target - _ROUNDING]
        gains = {kind: sum(row.get(kind, 0.0) for row in below) for row in below for kind in row if kind not in found}
        best = max(sorted(gains), key=gains.__getitem__, default=None)
        if best is None or gains[best] <= 0:
            return tuple(found)
        found.append(best)


def shortfalls(shares: Mapping[str, Mapping[str, float]], target: float, chosen: Collection[str]) -> dict[str, float]:
    """Return what is attributed of every model that stays below the target, by its name.

    Examples
    --------
    >>> shortfalls({"a": {"conv2d": 0.95}, "b": {"conv2d": 0.5}}, 0.9, ["conv2d"])
    {'b': 0.5}
    """
    totals = {name: _total(row, chosen) for name, row in shares.items()}
    return {name: total for name, total in totals.items() if total < target - _ROUNDING}


def _total(row: Mapping[str, float], kinds: Collection[str]) -> float:
    return sum(row.get(kind, 0.0) for kind in kinds)
