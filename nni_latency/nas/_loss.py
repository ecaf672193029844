"""`FBNetLoss`: the loss of the FBNet paper, and a multiplier that drives the search to a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.nas._mask import SharedGumbelSoftmax
from nni_latency.nas._penalty import LatencyPenalty
from nni_latency.nas._profiler import LatencyProfiler

#: The paper's logarithm needs a number well above one; latencies are counted in microseconds there.
LOG_UNIT = 1e-6

# Exponent of e above which the paper's factor only points the way: its square must stay a number in 32 bits.
_LARGEST_EXPONENT = 30.0


class FBNetLoss(LatencyPenalty):
    r"""The loss of FBNet's architecture step.

    Without a target it is that of the paper [1]_,

    .. math:: \text{CE} \cdot \alpha \log(\text{LAT})^{w \beta}

    with LAT the cost under the very mask of the forward pass, in millionths of its SI unit. With a target, a Lagrange
    multiplier is added,

    .. math:: + \, w \mu \max(0, \text{LAT} / \text{target} - 1)

    where :math:`\mu \ge 0` grows while the mask costs more than the target and shrinks while it costs less; and the LAT
    of the paper's term is never taken below the target. So a mask that meets the target is not pushed further.

    Parameters
    ----------
    profiler : LatencyProfiler
        Costs of the space.
    mask : SharedGumbelSoftmax
        The mask of the supernet.
    target : float, optional
        Cost to be met, in the SI unit of the metric.
    alpha, beta : float, default=0.2, 0.6
        The paper's.
    weight : float, default=1.0
        The `w` above; 0 leaves CE alone.
    multiplier_rate : float, default=0.05
        How fast the multiplier follows.

    Raises
    ------
    InvalidValueError
        If alpha is not positive, or beta or weight is negative.
    UnreachableTargetError
        If no network meets the target.

    References
    ----------
    .. [1] B. Wu et al., "FBNet: Hardware-Aware Efficient ConvNet Design via Differentiable Neural Architecture
       Search", CVPR 2019, equation 2. arXiv:1812.03443
    """

    multiplier: torch.Tensor

    def __init__(
        self,
        profiler: LatencyProfiler,
        mask: SharedGumbelSoftmax,
        target: float | None = None,
        *,
        alpha: float = 0.2,
        beta: float = 0.6,
        weight: float = 1.0,
        multiplier_rate: float = 0.05,
    ) -> None:
        for name, value, least in (("beta", beta, 0), ("weight", weight, 0), ("multiplier_rate", multiplier_rate, 0)):
            if not value >= least:
                raise InvalidValueError(f"The {name!r} of FBNet must be a number >= {least}. Got {value!r}.")
        if not alpha > 0:
            raise InvalidValueError(f"The 'alpha' of FBNet must be a number > 0. Got {alpha!r}.")
        super().__init__(profiler, profiler.cost.range[1] if target is None else target, weight)
        if target is not None:
            profiler.cost.check_target(target)
        if profiler.cost.range[0] <= 2 * LOG_UNIT:
            raise InvalidValueError(
                f"FBNet's loss needs costs well above {LOG_UNIT:g} (its logarithm counts in that unit). "
                f"The cheapest network costs {profiler.cost.range[0]:g}."
            )
        self.mask = mask
        self.target = target
        self.alpha = alpha
        self.beta = beta
        self.multiplier_rate = multiplier_rate
        self.register_buffer("multiplier", torch.tensor(1.0), persistent=True)

    def profile(self, sample: Mapping[str, Any]) -> torch.Tensor:
        """Return the cost under the mask of the forward pass, a scalar with a gradient."""
        if self._alphas is None:
            self._alphas = self._find_alphas()
        if not self.mask.training:
            return self.expected.forward(self.expected.softmax(self._alphas))
        noise = [self.mask.noise(alpha) for alpha in self._alphas]
        return self.expected.forward(self.expected.softmax(self._alphas, noise, self.mask.tau))

    def forward(self, loss: torch.Tensor, sample: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Join the cost with the loss; also return what NNI logs."""
        cost = self.profile(sample)
        joined = loss
        if self.scale > 0:
            pressing = cost if self.target is None else cost.clamp_min(self.target)
            joined = loss * self.alpha * self._factor(pressing)
            if self.target is not None:
                excess = cost / self.target - 1
                # A copy, because the multiplier changes in place before the backward pass needs it.
                joined = joined + self.scale * self.multiplier.clone() * excess.clamp_min(0.0)
                self._follow(excess.detach())
        return joined, {
            "loss_original": loss.detach(),
            "penalty": cost.detach(),
            "normalized_penalty": (cost / self.baseline - 1).detach(),
            "loss_final": joined.detach(),
        }

    def _factor(self, cost: torch.Tensor) -> torch.Tensor:
        """Return ``log(cost)`` to the power of the weight times beta; too large a one keeps its relative gradient."""
        exponent = self.scale * self.beta * torch.log(torch.log(cost / LOG_UNIT))
        return torch.exp(exponent - (exponent.detach() - _LARGEST_EXPONENT).clamp_min(0.0))

    def _follow(self, excess: torch.Tensor) -> None:
        self.multiplier.copy_((self.multiplier + self.multiplier_rate * excess).clamp_min(0.0))
