"""`FBNetLoss`: the loss of the FBNet paper."""

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
    r"""The loss of FBNet's architecture step [1]_.

    .. math:: \text{CE} \cdot \alpha \log(\text{LAT})^{w \beta}

    with LAT the cost under the very mask of the forward pass, in millionths of its SI unit. It makes networks cheaper
    without end; `TargetPenalty` stops at a target.

    Parameters
    ----------
    profiler : LatencyProfiler
        Costs of the space.
    mask : SharedGumbelSoftmax
        The mask of the supernet.
    alpha, beta : float, default=0.2, 0.6
        The paper's.
    weight : float, default=1.0
        The `w` above; 0 leaves CE alone.

    Raises
    ------
    InvalidValueError
        If alpha is not positive, or beta or weight is negative.

    References
    ----------
    .. [1] B. Wu et al., "FBNet: Hardware-Aware Efficient ConvNet Design via Differentiable Neural Architecture
       Search", CVPR 2019, equation 2. arXiv:1812.03443
    """

    def __init__(
        self,
        profiler: LatencyProfiler,
        mask: SharedGumbelSoftmax,
        *,
        alpha: float = 0.2,
        beta: float = 0.6,
        weight: float = 1.0,
    ) -> None:
        for name, value in (("beta", beta), ("weight", weight)):
            if not value >= 0:
                raise InvalidValueError(f"The {name!r} of FBNet must be a number >= 0. Got {value!r}.")
        if not alpha > 0:
            raise InvalidValueError(f"The 'alpha' of FBNet must be a number > 0. Got {alpha!r}.")
        super().__init__(profiler, profiler.cost.range[1], weight)
        if profiler.cost.range[0] <= 2 * LOG_UNIT:
            raise InvalidValueError(
                f"FBNet's loss needs costs well above {LOG_UNIT:g} (its logarithm counts in that unit). "
                f"The cheapest network costs {profiler.cost.range[0]:g}."
            )
        self.mask = mask
        self.alpha = alpha
        self.beta = beta

    def profile(self, sample: Mapping[str, Any]) -> torch.Tensor:
        """Return the cost under the mask of the forward pass, a scalar with a gradient."""
        if self._alphas is None:
            self._alphas = self._find_alphas()
        if not self.mask.training:
            return self.expected.forward(self.expected.softmax(self._alphas))
        noise = [self.mask.noise(alpha) for alpha in self._alphas]
        return self.expected.forward(self.expected.softmax(self._alphas, noise, self.mask.tau))

    def aggregate_fn(self, loss: torch.Tensor, normalized_penalty: torch.Tensor) -> torch.Tensor:
        """Return the loss times the paper's factor."""
        if self.scale == 0:
            return loss
        cost = (normalized_penalty + 1) * self.baseline
        exponent = self.scale * self.beta * torch.log(torch.log(cost / LOG_UNIT))
        # Too large a factor keeps its relative gradient.
        return loss * self.alpha * torch.exp(exponent - (exponent.detach() - _LARGEST_EXPONENT).clamp_min(0.0))
