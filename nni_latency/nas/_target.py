"""`TargetPenalty`: multipliers that bring the expected cost to a target, and do not press once it is met."""

from __future__ import annotations

from typing import Any

import torch

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.estimators import AdditiveCost, GroupedCost
from nni_latency.nas._penalty import LatencyPenalty
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.nas._space_cost import warn_of_loose_limit
from nni_latency.units import format_metric, format_percent, with_article

#: How much a violation presses at once, and how much of it the multipliers remember after every step.
_AT_ONCE, _RATE = 2.0, 0.05


class TargetPenalty(LatencyPenalty):
    r"""Bring the expected cost of a supernet into a range, in `FBNet`, DARTS, GumbelDARTS and Proxyless.

    With :math:`r` the expected cost over the target, the constraint is :math:`\text{fill} \le r \le 1`. Outside of it
    the loss grows by

    .. math:: w \, (\lambda + \rho v) \, |r - r^*|

    with :math:`v` the distance to the end :math:`r^*` of the range, and :math:`\lambda \ge 0` a multiplier of that end,
    which grows by a share of the distance in every step and shrinks inside of the range, as in an augmented Lagrangian
    [1]_. Inside of the range the loss is the cross entropy alone: a supernet that meets the target is not pressed
    further. The expected cost is that of the probabilities, without the noise of a mask, because the network found is
    taken from them.

    Parameters
    ----------
    profiler : LatencyProfiler
        Made with the very space object that is searched.
    target : float
        Highest cost of the network to be found, in the SI unit of the metric.
    fill : float, optional
        Least share of the target that the network is to use, in (0, 1]. Without it, only the target counts.
    weight : float, default=1.0
        The `w` above; 0 leaves the loss alone.

    Raises
    ------
    InvalidValueError
        If the profiler is no LatencyProfiler, the fill is outside (0, 1], or the weight is negative.
    UnreachableTargetError
        If no network meets the target, or none uses that share of it.

    References
    ----------
    .. [1] D. P. Bertsekas, "Constrained Optimization and Lagrange Multiplier Methods", Academic Press 1982.

    Examples
    --------
    >>> from nni.nas.strategy import DARTS                                                     # doctest: +SKIP
    >>> strategy = DARTS(penalty=TargetPenalty(profiler, target=0.012))                        # doctest: +SKIP
    """

    multipliers: torch.Tensor

    def __init__(
        self, profiler: LatencyProfiler, target: float, *, fill: float | None = None, weight: float = 1.0
    ) -> None:
        if not weight >= 0:
            raise InvalidValueError(f"The 'weight' of {type(self).__name__} must be a number >= 0. Got {weight!r}.")
        super().__init__(profiler, target, weight)
        profiler.cost.check_target(target)
        check_fill(fill, profiler.cost, target)
        warn_of_loose_limit(profiler.cost, target)
        self.fill = fill
        self.register_buffer("multipliers", torch.zeros(2))

    def aggregate_fn(self, loss: torch.Tensor, normalized_penalty: torch.Tensor) -> torch.Tensor:
        """Return the loss with what the expected cost is above the target, or below the fill, priced."""
        if self.scale == 0:
            return loss
        share = normalized_penalty + 1
        violations = torch.stack([share - 1, (self.fill or 0.0) - share])
        joined: torch.Tensor = loss + self.scale * (self._prices(violations.detach()) * violations).sum()
        return joined

    def _prices(self, violations: torch.Tensor) -> torch.Tensor:
        """Return what the violation of each end costs, and let the multipliers follow."""
        # Nothing inside of the range: a multiplier that grew far outside would go on pressing for long.
        prices = torch.where(violations > 0, self.multipliers + _AT_ONCE * violations, 0.0)
        self.multipliers.copy_((self.multipliers + _RATE * violations).clamp_min(0.0))
        return prices


def check_fill(fill: float | None, cost: Any, target: float) -> None:
    """Raise unless some network of a space uses a share of the target.

    Parameters
    ----------
    fill : float or None
        The share.
    cost : AdditiveCost, GroupedCost or FrozenCost
        Cost of the space.
    target : float
        Highest cost allowed.

    Raises
    ------
    InvalidValueError
        If the share is outside (0, 1].
    UnreachableTargetError
        If the costliest network uses less.
    """
    if fill is None:
        return
    if not 0 < fill <= 1:
        raise InvalidValueError(f"The 'fill' of a search must be a share of the target in (0, 1]. Got {fill!r}.")
    # Of networks that are known one by one, nobody knows the costliest.
    if isinstance(cost, AdditiveCost | GroupedCost) and cost.range[1] < fill * target:
        raise UnreachableTargetError(
            f"No network of the space uses {format_percent(fill)} of {with_article(cost.metric)} of "
            f"{format_metric(target, cost.metric)}: the costliest has {format_metric(cost.range[1], cost.metric)}. "
            "Lower the target or the fill."
        )
