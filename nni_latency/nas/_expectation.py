"""The expected cost of a supernet as one dense product, with a gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from nni_latency.errors import MismatchError
from nni_latency.estimators import AdditiveCost


class ExpectedCost(nn.Module):
    """Constant plus the sum over labels and choices of probability times cost.

    Parameters
    ----------
    cost : AdditiveCost
        Costs, in the order of the space.
    """

    costs: torch.Tensor

    def __init__(self, cost: AdditiveCost) -> None:
        super().__init__()
        self.labels = tuple(cost.costs)
        self.sizes = tuple(len(column) for column in cost.columns)
        self.constant = cost.constant
        flat = torch.cat([torch.from_numpy(column) for column in cost.columns])
        self.register_buffer("costs", flat.to(torch.float32), persistent=False)

    def check_labels(self, alphas: Mapping[str, torch.Tensor]) -> None:
        """Raise `MismatchError` if the parameters are not those of the space's labels."""
        wrong = [
            label
            for label, size in zip(self.labels, self.sizes, strict=True)
            if label not in alphas or len(alphas[label]) != size
        ]
        if wrong:
            raise MismatchError(f"The supernet has no fitting architecture parameters for {', '.join(wrong)}.")

    def softmax(self, logits: list[torch.Tensor]) -> torch.Tensor:
        """Return the flat probabilities, (n_labels * n_choices,), of logits by label; one kernel where sizes agree."""
        if len(set(self.sizes)) == 1:
            return torch.softmax(torch.stack(logits), -1).flatten()
        return torch.cat([torch.softmax(row, -1) for row in logits])

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Return the expected cost, a scalar, of flat probabilities."""
        return torch.dot(probabilities.to(self.costs.dtype), self.costs.to(probabilities.device)) + self.constant
