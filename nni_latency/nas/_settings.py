# SPDX-License-Identifier: Apache-2.0
"""How long and how fast a search learns, and the names of the strategies: what can be asked without NNI."""

from __future__ import annotations

from dataclasses import dataclass

from nni_latency.errors import InvalidValueError, check_ints

#: Strategies with the expected cost in their loss.
DIFFERENTIABLE = ("fbnet", "darts", "gumbel-darts", "proxyless")

#: Strategies that train one supernet.
ONE_SHOT = (*DIFFERENTIABLE, "enas")

#: Names of strategies, those first that learn most from every image; the last ones train one network after the other.
STRATEGIES = (*ONE_SHOT, "evolution", "random")


@dataclass(frozen=True)
class SearchSettings:
    """How long and how fast a search learns.

    Parameters
    ----------
    epochs : int, default=5
        Epochs of the search.
    final_epochs : int, default=10
        Epochs in which the network found learns on, with the weights that it inherits from the supernet.
    batch_size : int, default=64
        Images per step.
    learning_rate : float, default=0.003
        Of the weights (Adam).
    seed : int, default=0
        Seed of everything random.
    threads : int, default=1
        Threads of torch while it learns on the CPU. Small images gain little from more, and threads that wait for one
        another make a step tens of times slower where other processes want the cores.
    """

    epochs: int = 5
    final_epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        check_ints("a search", vars(self), epochs=1, final_epochs=0, batch_size=2, seed=0, threads=1)
        if not self.learning_rate > 0:
            raise InvalidValueError(f"The 'learning_rate' of a search must be > 0. Got {self.learning_rate!r}.")


def is_one_shot(name: str) -> bool:
    """Whether a strategy trains one supernet, and not a network after the other."""
    return name in ONE_SHOT
