# SPDX-License-Identifier: Apache-2.0
"""`ENAS`: a controller learns which networks of a supernet are good and cheap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, UnreachableTargetError, check_ints
from nni_latency.nas import _nni
from nni_latency.spaces import labels_of
from nni_latency.units import number_of

#: Networks that are drawn at a time where a filter refuses some.
_BATCH = 64


class ENAS(_nni.RandomOneShot):
    """Reinforcement learning on a supernet, within a range of costs or drawn towards cheap networks.

    Every epoch has two halves. For each batch to learn from, the controller draws a network and its weights learn; for
    each batch to judge by, it draws a network and gets its metric as the reward, less the penalty. The controller
    learns by policy gradient with the mean of the last rewards as the baseline.

    It replaces NNI's `ENAS`, which needs two packages that are no longer maintained (tianshou 0.4 and gym), fails with
    Lightning 2.6, whose loops hand over their batches in another form, refuses a filter, and exports a network drawn at
    random.

    Parameters
    ----------
    penalty : SampleProfilerPenalty or dict, optional
        NNI's penalty with our profiler: ``SampleProfilerPenalty(profiler, baseline=0.002, scale=-1.0)``. It joins the
        reward, so its scale must be negative.
    filter : callable, optional
        Takes a sample and returns whether it may be trained and exported: a `LatencyFilter`.
    reward_metric_name : str, optional
        Which metric that the evaluator logs in its validation step is the reward; more is better. Without it,
        ``default``, or the only one that is not a loss.
    batches_per_update : int, default=20
        Rewards between two steps of the controller.
    controller_learning_rate : float, default=0.0035
        Learning rate of the controller (Adam).
    entropy_weight : float, default=0.0001
        How much the controller is rewarded for not being certain.
    warmup_epochs : int, default=0
        First epochs, in which only weights learn.
    attempts : int, default=10000
        How often a network is drawn for one that passes the filter.
    **kwargs
        Further parameters of NNI's one-shot strategies: `mutation_hooks`.

    Raises
    ------
    InvalidValueError
        If the penalty is none that judges samples, its scale is positive, or a number is outside its range.
    UnreachableTargetError
        During the search, if no network drawn passes the filter.

    Examples
    --------
    >>> from nni.nas.oneshot.pytorch.profiler import SampleProfilerPenalty                     # doctest: +SKIP
    >>> strategy = ENAS(penalty=SampleProfilerPenalty(profiler, 0.002, scale=-1.0))            # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        penalty: Any = None,
        filter: Callable[[Mapping[str, Any]], bool] | None = None,  # noqa: A002
        reward_metric_name: str | None = None,
        batches_per_update: int = 20,
        controller_learning_rate: float = 3.5e-3,
        entropy_weight: float = 1e-4,
        warmup_epochs: int = 0,
        attempts: int = 10_000,
        **kwargs: Any,
    ) -> None:
        counts = {"batches_per_update": batches_per_update, "warmup_epochs": warmup_epochs, "attempts": attempts}
        check_ints("ENAS", counts, batches_per_update=2, warmup_epochs=0, attempts=1)
        if not controller_learning_rate > 0:
            raise InvalidValueError(
                f"The 'controller_learning_rate' of ENAS must be > 0. Got {controller_learning_rate!r}."
            )
        super().__init__(filter, **kwargs)
        self.penalty = _checked_penalty(penalty)
        self.reward_metric_name = reward_metric_name
        self.batches_per_update = batches_per_update
        self.controller_learning_rate = controller_learning_rate
        self.entropy_weight = entropy_weight
        self.warmup_epochs = warmup_epochs
        self.attempts = attempts
        self._options: dict[str, list[Any]] = {}

    def mutate_model(self, model: Any) -> Any:
        """Note what there is to choose, then turn the space into a supernet in place."""
        self._options = _options_of(model)
        return super().mutate_model(model)

    def configure_oneshot_module(self, training_module: Any) -> ControllerModule:
        """Make the module that searches."""
        return ControllerModule(training_module, self, self._options)

    def train_dataloader(self, train_dataloader_fn: Any, val_dataloader_fn: Any) -> InTurn:
        """Return the batches to learn from, then those to judge by."""
        return InTurn(train_dataloader_fn(), val_dataloader_fn())

    def val_dataloader(self, train_dataloader_fn: Any, val_dataloader_fn: Any) -> None:
        """Return nothing: the batches to judge by are part of the epoch."""


class InTurn:
    """Batches of one loader, then of another, each with whether it is of the second."""

    def __init__(self, first: Any, second: Any) -> None:
        self._loaders = (first, second)

    def __len__(self) -> int:
        return sum(len(loader) for loader in self._loaders)

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        for second, loader in enumerate(self._loaders):
            for batch in loader:
                yield batch, bool(second)


class ControllerModule(_nni.BaseOneShotLightningModule):
    """The search of `ENAS`, step by step."""

    def __init__(self, training_module: Any, strategy: ENAS, options: Mapping[str, list[Any]]) -> None:
        super().__init__(training_module)
        self.options = dict(options)
        self.controller = Controller([len(values) for values in self.options.values()])
        self.penalty = strategy.penalty
        self._strategy = strategy
        self._logged: dict[str, float] = {}
        self._drawn: list[torch.Tensor] = []
        self._rewards: list[float] = []

    def setup(self, stage: str = "fit") -> None:
        """Listen to what the evaluator logs: the reward is among it."""
        super().setup(stage)
        self.training_module.log = self._note

    def training_step(self, packed: tuple[Any, bool], batch_idx: int) -> Any:
        """Let weights learn from a batch, or the controller from the reward of a network on it."""
        batch, is_judged = packed
        output = None
        if not is_judged:
            self.resample()
            output = self.training_module.training_step(batch, batch_idx)
            self.advance_optimization(output["loss"] if isinstance(output, dict) else output, batch_idx)
        elif self.trainer.current_epoch >= self._strategy.warmup_epochs:
            self._collect(batch, batch_idx)
        self.advance_lr_schedulers(batch_idx)
        return output

    def get_extra_state(self) -> torch.Tensor:
        """Return what the controller has not learned from yet: by row the architecture and its reward."""
        rows = [[*drawn.tolist(), reward] for drawn, reward in zip(self._drawn, self._rewards, strict=True)]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(self.options) + 1)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take over what `get_extra_state` returned."""
        device = self.controller.start.device
        self._drawn = [row.long().to(device) for row in state[:, :-1]]
        self._rewards = state[:, -1].tolist()

    def resample(self) -> dict[str, Any]:
        """Draw a network that passes the filter, and set the supernet to it."""
        return self._take(self._draw())

    def export(self) -> dict[str, Any]:
        """Return the most probable network; if the filter refuses it, the most probable of those drawn that pass."""
        likeliest = self.controller.likeliest()
        if self._passes(likeliest):
            return self._named(likeliest)
        for _ in range(0, self._strategy.attempts, _BATCH):
            drawn = self.controller.draw(_BATCH)
            passing = [architecture for architecture in drawn.unbind() if self._passes(architecture)]
            if passing:
                with torch.no_grad():
                    scores, _ = self.controller.judge(torch.stack(passing))
                return self._named(passing[int(scores.argmax())])
        raise self._give_up()

    def export_probs(self) -> dict[str, Any]:
        """Return the probabilities, ``{label: {choice: probability}}``, along the most probable network."""
        rows = self.controller.probabilities()
        return {
            label: {str(value): share for value, share in zip(values, row, strict=True)}
            for (label, values), row in zip(self.options.items(), rows, strict=True)
        }

    def configure_architecture_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the controller."""
        return torch.optim.Adam(self.controller.parameters(), self._strategy.controller_learning_rate)

    def _collect(self, batch: Any, batch_idx: int) -> None:
        """Judge a network by a batch, and let the controller learn when it has seen enough rewards."""
        architecture = self._draw()
        sample = self._take(architecture)
        self._logged.clear()
        with torch.no_grad():
            self.training_module.validation_step(batch, batch_idx)
        reward = self._reward()
        if self.penalty is not None:
            penalised, details = self.penalty(reward, sample)
            reward = float(penalised)
            self.log_dict({f"penalty/{name}": float(value) for name, value in details.items()})
        self._drawn.append(architecture)
        self._rewards.append(reward)
        if len(self._rewards) == self._strategy.batches_per_update:
            self._learn()

    def _learn(self) -> None:
        optimizer = self.architecture_optimizers()
        rewards = torch.tensor(self._rewards, device=self._drawn[0].device)
        # In units of their spread, so that neither the metric's scale nor the penalty's asks for another rate.
        advantages = (rewards - rewards.mean()) / rewards.std().clamp(min=1e-12)
        scores, entropies = self.controller.judge(torch.stack(self._drawn))
        optimizer.zero_grad()
        self.manual_backward(-(advantages * scores).mean() - self._strategy.entropy_weight * entropies.mean())
        optimizer.step()
        self._drawn.clear()
        self._rewards.clear()

    def _draw(self) -> torch.Tensor:
        if self._strategy.filter is None:
            return self.controller.draw(1)[0]
        for first in range(0, self._strategy.attempts, _BATCH):
            drawn = self.controller.draw(min(_BATCH, self._strategy.attempts - first))
            for architecture in drawn.unbind():
                if self._passes(architecture):
                    return architecture
        raise self._give_up()

    def _passes(self, architecture: torch.Tensor) -> bool:
        return self._strategy.filter is None or bool(self._strategy.filter(self._named(architecture)))

    def _give_up(self) -> UnreachableTargetError:
        return UnreachableTargetError(
            f"None of {number_of(self._strategy.attempts, 'network')} drawn passes the filter. Widen its range, or "
            "draw more often with 'attempts'."
        )

    def _take(self, architecture: torch.Tensor) -> dict[str, Any]:
        sample = self._named(architecture)
        for module in self.supernet_modules():
            module.resample(memo=sample)
        return sample

    def _named(self, architecture: torch.Tensor) -> dict[str, Any]:
        indices = architecture.tolist()
        return {label: values[index] for (label, values), index in zip(self.options.items(), indices, strict=True)}

    def _note(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        number = value.compute() if hasattr(value, "compute") else value
        self._logged[name] = float(number.detach() if isinstance(number, torch.Tensor) else number)
        self.log(name, value, *args, **kwargs)

    def _reward(self) -> float:
        wanted = self._strategy.reward_metric_name
        if wanted is None:
            metrics = [name for name in self._logged if "loss" not in name]
            wanted = "default" if "default" in metrics else metrics[0] if len(metrics) == 1 else None
        if wanted not in self._logged:
            raise InvalidValueError(
                f"ENAS needs to know which metric is the reward: the evaluator's validation step logged "
                f"{', '.join(map(repr, self._logged)) or 'none'}. Name one with 'reward_metric_name'."
            )
        return self._logged[wanted]


def _checked_penalty(penalty: Any) -> Any:
    made = _nni.SampleProfilerPenalty(**penalty) if isinstance(penalty, dict) else penalty
    if made is None:
        return None
    if not isinstance(made, _nni.SampleProfilerPenalty):
        raise InvalidValueError(
            "The 'penalty' of ENAS must be a SampleProfilerPenalty of NNI, which judges single networks. "
            f"Got {type(made).__name__}."
        )
    if made.scale > 0:
        raise InvalidValueError(
            f"The 'penalty' of ENAS joins the reward, so its scale must be negative. Got {made.scale!r}."
        )
    return made


def _options_of(space: Any) -> dict[str, list[Any]]:
    options = {}
    for label, mutable in labels_of(space).items():
        if not isinstance(mutable, _nni.Categorical | _nni.CategoricalMultiple):
            raise InvalidValueError(
                f"ENAS chooses among values, and the label {label!r} is a {type(mutable).__name__}."
            )
        options[label] = list(mutable.grid())
    return options


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
        return self._walk(count, lambda _, logs: torch.multinomial(logs.exp(), 1)[:, 0])[0]

    @torch.no_grad()
    def likeliest(self) -> torch.Tensor:
        """Return the architecture, (n_labels,), that takes the most probable choice at every label."""
        return self._walk(1, _most_probable)[0][0]

    def judge(self, architectures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probability and entropy, both (n,), of architectures, (n, n_labels), with a gradient."""
        _, rows = self._walk(len(architectures), lambda place, _: architectures[:, place])
        scores = [logs.gather(1, chosen[:, None])[:, 0] for logs, chosen in zip(rows, architectures.T, strict=True)]
        entropies = [-(logs.exp() * logs).sum(-1) for logs in rows]
        return functools.reduce(torch.add, scores), functools.reduce(torch.add, entropies)

    @torch.no_grad()
    def probabilities(self) -> list[list[float]]:
        """Return by label the probabilities of its choices, after the most probable choices before it."""
        return [logs.exp()[0].tolist() for logs in self._walk(1, _most_probable)[1]]

    def _walk(
        self, count: int, choose: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Go through the labels; return the choices, (count, n_labels), and the logarithms of the probabilities."""
        state, word, chosen, rows = None, self.start.expand(count, -1), [], []
        for place, (embedding, head) in enumerate(zip(self.embeddings, self.heads, strict=True)):
            state = self.cell(word, state)
            rows.append(head(state[0]).log_softmax(-1))
            chosen.append(choose(place, rows[-1]))
            word = embedding(chosen[-1])
        return torch.stack(chosen, 1), rows


def _most_probable(_: int, logs: torch.Tensor) -> torch.Tensor:
    return logs.argmax(-1)
