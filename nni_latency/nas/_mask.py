"""`SharedGumbelSoftmax`: one draw of Gumbel noise a step, for the forward pass and the penalty alike."""

from __future__ import annotations

import torch

from nni_latency.nas._nni import GumbelSoftmax


class SharedGumbelSoftmax(GumbelSoftmax):
    """Gumbel softmax whose noise stays the same until the next `resample`.

    NNI's draws anew at every call: each layer, the penalty and the logging then speak of different masks. Here one
    instance serves the whole supernet, and keeps the noise by architecture parameter, so layers that share a label
    share the mask too. In evaluation mode there is no noise: the mask is the softmax of the parameters.

    Parameters
    ----------
    temperature : float, default=5.0
        Temperature of the softmax; the field `tau` changes it.

    Examples
    --------
    >>> mask, alpha = SharedGumbelSoftmax(), torch.zeros(3)
    >>> torch.equal(mask(alpha), mask(alpha))
    True
    """

    def __init__(self, temperature: float = 5.0) -> None:
        super().__init__(-1)
        self.tau = temperature
        self._noise: dict[torch.Tensor, torch.Tensor] = {}

    def resample(self) -> None:
        """Forget the noise; the next call draws anew."""
        self._noise.clear()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mask of one vector of architecture parameters, (n_choices,)."""
        if not self.training:
            return torch.softmax(inputs, -1)
        return torch.softmax((inputs + self.noise(inputs)) / self.tau, -1)

    def noise(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the noise of one vector of architecture parameters, drawn at its first use in a step."""
        drawn = self._noise.get(inputs)
        if drawn is None:
            # If E is exponentially distributed, -log(E) has the standard Gumbel distribution.
            drawn = -torch.empty_like(inputs, requires_grad=False).exponential_().log()
            self._noise[inputs] = drawn
        return drawn
