"""`Controller`: a small recurrent network that draws architectures and learns from their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Controller(nn.Module):
    """Draw one choice after the other, each in the light of those before, with a recurrent network [1]_.

    Parameters
    ----------
    sizes : sequence of int
        Number of choices of every label.
    hidden : int, default=64
        Width of the recurrent layer.

    References
    ----------
    .. [1] H. Pham et al., "Efficient Neural Architecture Search via Parameter Sharing", ICML 2018. arXiv:1802.03268

    Examples
    --------
    >>> controller = Controller([3, 2])
    >>> controller.draw(5).shape, controller.likeliest().shape
    (torch.Size([5, 2]), torch.Size([2]))
    """

    def __init__(self, sizes: Sequence[int], hidden: int = 64) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(hidden, hidden)
        self.start = nn.Parameter(torch.zeros(hidden))
        self.embeddings = nn.ModuleList(nn.Embedding(size, hidden) for size in sizes)
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in sizes)

    @torch.no_grad()
    def draw(self, count: int) -> torch.Tensor:
        """Draw architectures, (count, n_labels), as indices."""
        return self._walk(count, None, greedy=False)[0]

    @torch.no_grad()
    def likeliest(self) -> torch.Tensor:
        """Return the architecture, (n_labels,), that takes the most probable choice at every label."""
        return self._walk(1, None, greedy=True)[0][0]

    def judge(self, architectures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probability and entropy, both (n,), of architectures, (n, n_labels), with a gradient."""
        _, scores, entropies = self._walk(len(architectures), architectures, greedy=False)
        return scores, entropies

    @torch.no_grad()
    def probabilities(self) -> list[list[float]]:
        """Return by label the probabilities of its choices, after the most probable choices before it."""
        chosen = self.likeliest()[None]
        return [logits.softmax(-1)[0].tolist() for logits in self._logits(chosen)]

    def _walk(
        self, count: int, given: torch.Tensor | None, *, greedy: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Go through the labels; take the choices that are given, the most probable, or draw them."""
        state, word = None, self.start.expand(count, -1)
        chosen, scores, entropies = [], self.start.new_zeros(count), self.start.new_zeros(count)
        for place, (embedding, head) in enumerate(zip(self.embeddings, self.heads, strict=True)):
            state = self.cell(word, state)
            logs = head(state[0]).log_softmax(-1)
            if given is not None:
                index = given[:, place]
            else:
                index = logs.argmax(-1) if greedy else torch.multinomial(logs.exp(), 1)[:, 0]
            chosen.append(index)
            scores = scores + logs.gather(1, index[:, None])[:, 0]
            entropies = entropies - (logs.exp() * logs).sum(-1)
            word = embedding(index)
        return torch.stack(chosen, 1), scores, entropies

    def _logits(self, given: torch.Tensor) -> list[torch.Tensor]:
        state, word, found = None, self.start.expand(len(given), -1), []
        for place, (embedding, head) in enumerate(zip(self.embeddings, self.heads, strict=True)):
            state = self.cell(word, state)
            found.append(head(state[0]))
            word = embedding(given[:, place])
        return found
