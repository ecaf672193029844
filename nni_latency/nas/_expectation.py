"""The expected cost of a supernet as one dense product, with a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from nni_latency.errors import MismatchError, listed
from nni_latency.estimators import AdditiveCost


class ExpectedCost(nn.Module):
    """Constant plus the sum over labels and choices of probability times cost, less what a small network saves.

    The saving is that of a network of the expected sum, which is close to the expected saving: the curve is smooth.

    Parameters
    ----------
    cost : AdditiveCost
        Costs, in the order of the space.

    Raises
    ------
    InvalidValueError
        If the metric is no sum over layers.
    """

    costs: torch.Tensor

    def __init__(self, cost: AdditiveCost) -> None:
        cost.check_additive()
        super().__init__()
        self.labels = tuple(cost.costs)
        self.sizes = tuple(len(column) for column in cost.columns)
        self.constant = cost.constant
        self.residency = cost.residency
        flat = torch.cat([torch.from_numpy(column) for column in cost.columns])
        self.register_buffer("costs", flat.to(torch.float32), persistent=False)

    def check_labels(self, alphas: Mapping[str, torch.Tensor]) -> None:
        """Raise `MismatchError` if the parameters are not those of the space's labels."""
        check_labels(self.labels, self.sizes, alphas)

    def softmax(
        self, alphas: list[torch.Tensor], noise: list[torch.Tensor] | None = None, temperature: float = 1.0
    ) -> torch.Tensor:
        """Return the flat probabilities, (n_labels * n_choices,), of architecture parameters by label.

        With noise they are those of a Gumbel softmax. Where all labels have as many choices it is one kernel for all.
        """
        return flat_softmax(self.sizes, alphas, noise, temperature)

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Return the expected cost, a scalar, of flat probabilities."""
        # A product and a sum, because a dot product may wake up the threads of the BLAS for these few numbers.
        total = (probabilities * self.costs.to(probabilities.device)).sum() + self.constant
        if self.residency is None:
            return total
        return total * (1 - self.residency.saving * torch.exp(-total / self.residency.scale))


def check_labels(labels: Sequence[str], sizes: Sequence[int], alphas: Mapping[str, torch.Tensor]) -> None:
    """Raise `MismatchError` if the parameters are not those of labels with that many choices."""
    wrong = [
        label for label, size in zip(labels, sizes, strict=True) if label not in alphas or len(alphas[label]) != size
    ]
    if wrong:
        raise MismatchError(f"The supernet has no fitting architecture parameters for {listed(wrong)}.")


def flat_softmax(
    sizes: Sequence[int], alphas: list[torch.Tensor], noise: list[torch.Tensor] | None, temperature: float
) -> torch.Tensor:
    """Return the probabilities of all labels' choices, one label after the other."""
    if len(set(sizes)) > 1:
        rows = alphas if noise is None else [alpha + drawn for alpha, drawn in zip(alphas, noise, strict=True)]
        return torch.cat([torch.softmax(row / temperature, -1) for row in rows])
    logits = torch.stack(alphas) if noise is None else torch.stack(alphas) + torch.stack(noise)
    return _serial_softmax(logits if temperature == 1 else logits / temperature).flatten()


def _serial_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the softmax over the last axis; torch's own wakes up threads for it, which costs more than the work."""
    powers = torch.exp(logits - logits.detach().amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)
