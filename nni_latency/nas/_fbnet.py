# SPDX-License-Identifier: Apache-2.0
"""`FBNet`: the strategy of the FBNet paper for NNI 3, with a target; its loss and its mask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Missing
from nni_latency.loading import EstimatorSource
from nni_latency.nas._derive import found_sample
from nni_latency.nas._nni import DARTS, DartsLightningModule, GumbelSoftmax, ModelSpace
from nni_latency.nas._penalty import LatencyPenalty, TargetPenalty, check_no_cells
from nni_latency.nas._profiler import LatencyProfiler

#: Epochs of the paper's search, and those of them in which only weights learn.
PAPER_EPOCHS = 90
PAPER_WARMUP = 10

#: The paper's logarithm needs a number well above one; latencies are counted in microseconds there.
LOG_UNIT = 1e-6

# Exponent of e above which the paper's factor only points the way: its square must stay a number in 32 bits.
_LARGEST_EXPONENT = 30.0


class FBNet(DARTS):
    """Differentiable search that obeys the cost of a real device.

    One supernet holds all candidates; a Gumbel-softmax mask weighs them, and gets sharper as the temperature falls.
    Weights and architecture parameters learn in turns. Without a target, the loss of the architecture step is the
    paper's [1]_ (see `FBNetLoss`). With one, multipliers bring the expected cost to the target (see `TargetPenalty`),
    and the network exported is the one that `found_sample` takes: the most probable that fills the target.

    Parameters
    ----------
    latency_estimator : Estimator, LookupTable, str or path
        Whatever `load_estimator` takes: a table's file, a plugin's name, ...
    target : float, optional
        Highest cost of the network to be found, in the SI unit of the metric: seconds for latency.
    fill : float, optional
        Least share of the target that the network is to use, in (0, 1].
    example_inputs : Tensor, optional
        Input of the network on the device; without it, a batch of one of the space's own size.
    alpha, beta : float, default=0.2, 0.6
        Of the paper's loss; with a target they are not used.
    weight : float, default=1.0
        Weight of the cost in the loss; with 0 the costs change nothing at all.
    temperature : float, default=5.0
        Temperature of the first epoch.
    temperature_decay : float, default=0.045
        The temperature is multiplied by ``exp(-temperature_decay)`` after every epoch.
    warmup_epochs : int, optional
        First epochs, in which only weights learn. Without it, a ninth of all, as in the paper, and at least one where
        there is more than one.
    arc_learning_rate : float, default=0.01
        Learning rate of the architecture parameters (Adam).
    missing : {"error", "nearest"}, default="error"
        What a table does about candidates without an entry.
    **kwargs
        Further parameters of NNI's `DARTS` strategy: `gradient_clip_val`, `log_prob_every_n_step`, `mutation_hooks`.

    Raises
    ------
    MismatchError
        When the experiment starts, if the estimator belongs to another space, input or batch size.
    UnreachableTargetError
        When the experiment starts, if no network of the space meets the target, or none uses that share of it.

    Warns
    -----
    TargetWarning
        When the experiment starts, if every network of the space meets the target.

    References
    ----------
    .. [1] B. Wu et al., "FBNet: Hardware-Aware Efficient ConvNet Design via Differentiable Neural Architecture
       Search", CVPR 2019. arXiv:1812.03443

    Examples
    --------
    >>> strategy = FBNet(latency_estimator="table.json", target=0.012)
    >>> NasExperiment(FBNetSpace(num_classes=10), evaluator, strategy).run()                   # doctest: +SKIP
    """

    def __init__(
        self,
        latency_estimator: EstimatorSource,
        *,
        target: float | None = None,
        fill: float | None = None,
        example_inputs: Any = None,
        alpha: float = 0.2,
        beta: float = 0.6,
        weight: float = 1.0,
        temperature: float = 5.0,
        temperature_decay: float = 0.045,
        warmup_epochs: int | None = None,
        arc_learning_rate: float = 0.01,
        missing: Missing = "error",
        **kwargs: Any,
    ) -> None:
        if "penalty" in kwargs:
            raise InvalidValueError("FBNet has its own loss and takes no 'penalty'; use 'target' and 'weight'.")
        if fill is not None and target is None:
            raise InvalidValueError("The 'fill' of FBNet is a share of its target. Give a 'target', too.")
        if not temperature > 0:
            raise InvalidValueError(f"The 'temperature' of FBNet must be a number > 0. Got {temperature!r}.")
        super().__init__(arc_learning_rate=arc_learning_rate, warmup_epochs=warmup_epochs, **kwargs)
        self.latency_estimator = latency_estimator
        self.target = target
        self.fill = fill
        self.example_inputs = example_inputs
        self.alpha = alpha
        self.beta = beta
        self.weight = weight
        self.temperature = temperature
        self.temperature_decay = temperature_decay
        self.missing = missing
        self.mask = SharedGumbelSoftmax(temperature)
        self.profiler: LatencyProfiler | None = None
        self._loss: FBNetLoss | TargetPenalty | None = None

    def configure_softmax(self) -> nn.Module:
        """Return the one mask that all layers share."""
        return self.mask

    def mutate_model(self, model: ModelSpace) -> ModelSpace:
        """Cost the space, then turn it into a supernet in place."""
        self.profiler = LatencyProfiler(
            model, self.example_inputs, latency_estimator=self.latency_estimator, missing=self.missing
        )
        self.profiler.cost.check_additive()
        check_no_cells(model, type(self).__name__)
        if self.target is None:
            self._loss = FBNetLoss(self.profiler, self.mask, alpha=self.alpha, beta=self.beta, weight=self.weight)
        else:
            self._loss = TargetPenalty(self.profiler, self.target, fill=self.fill, weight=self.weight)
        return super().mutate_model(model)

    def configure_oneshot_module(self, training_module: Any) -> FBNetLightningModule:
        """Make the module that searches."""
        if self._loss is None:
            raise InvalidValueError("FBNet must mutate the model space before it makes the module that searches.")
        return FBNetLightningModule(
            training_module,
            mask=self.mask,
            temperature=self.temperature,
            temperature_decay=self.temperature_decay,
            arc_learning_rate=self.arc_learning_rate,
            gradient_clip_val=self.gradient_clip_val,
            log_prob_every_n_step=self.log_prob_every_n_step,
            warmup_epochs=self.warmup_epochs,
            penalty=self._loss,
        )


class FBNetLightningModule(DartsLightningModule):
    """The search of `FBNet`, step by step."""

    penalty: FBNetLoss | TargetPenalty

    def __init__(
        self,
        training_module: Any,
        *,
        mask: SharedGumbelSoftmax,
        temperature: float,
        temperature_decay: float,
        warmup_epochs: int | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(training_module, warmup_epochs=warmup_epochs or 0, **kwargs)
        self.mask = mask
        self.temperature = temperature
        self.temperature_decay = temperature_decay
        self._warmup_by_length = warmup_epochs is None

    def resample(self) -> dict[str, Any]:
        """Draw the noise of the next step."""
        self.mask.resample()
        result: dict[str, Any] = super().resample()
        return result

    def on_train_epoch_start(self) -> None:
        """Set the temperature, and let architecture parameters learn once the weights are warm."""
        if self._warmup_by_length:
            self.warmup_epochs = default_warmup(self.trainer.max_epochs or PAPER_EPOCHS)
        self.mask.tau = self.temperature * math.exp(-self.temperature_decay * self.trainer.current_epoch)
        self.log("gumbel_temperature", self.mask.tau)
        super().on_train_epoch_start()

    def configure_architecture_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the paper: Adam with a weight decay of 5e-4."""
        parameters = self.arch_parameters()
        if not parameters:
            raise InvalidValueError("The supernet has no architecture parameters: there is nothing to search.")
        return torch.optim.Adam(parameters, self.arc_learning_rate, weight_decay=5e-4)

    def export_probs(self) -> Mapping[str, Any]:
        """Return the probability of every choice, without noise: ``{label: {choice: probability}}``."""
        with torch.no_grad():
            flat = self.penalty.expected.softmax(self.penalty.logits())
        return _Probabilities(self.penalty.profiler.cost.choices, flat)

    def export(self) -> dict[str, Any]:
        """Return the network that the probabilities stand for.

        With a target it is that of `found_sample`; without one, or with weight 0, the most probable choice of every
        layer.
        """
        penalty = self.penalty
        if isinstance(penalty, TargetPenalty) and penalty.scale > 0:
            return found_sample(penalty.profiler, penalty.baseline, penalty.fill)
        result: dict[str, Any] = super().export()
        return result


class _Probabilities(Mapping[str, "dict[Any, float]"]):
    """Probabilities by label and choice. They are fetched from the device when they are first read.

    NNI's step exports them for the penalty, which does not read them: a device would be waited for in every step.
    """

    def __init__(self, choices: Mapping[str, Sequence[Any]], flat: torch.Tensor) -> None:
        self._choices, self._flat = choices, flat

    @cached_property
    def _rows(self) -> dict[str, dict[Any, float]]:
        shares = iter(self._flat.tolist())
        return {label: dict(zip(choices, shares, strict=False)) for label, choices in self._choices.items()}

    def __getitem__(self, label: str) -> dict[Any, float]:
        return self._rows[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)


def default_warmup(epochs: int) -> int:
    """Return the weight-only epochs of a search of that length.

    >>> [default_warmup(epochs) for epochs in (1, 2, 5, 90)]
    [0, 1, 1, 10]
    """
    return min(max(1, round(epochs * PAPER_WARMUP / PAPER_EPOCHS)), epochs - 1)


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
        if not self.mask.training:
            return super().profile(sample)
        alphas = self.logits()
        noise = [self.mask.noise(alpha) for alpha in alphas]
        return self.expected.forward(self.expected.softmax(alphas, noise, self.mask.tau))

    def aggregate_fn(self, loss: torch.Tensor, normalized_penalty: torch.Tensor) -> torch.Tensor:
        """Return the loss times the paper's factor."""
        if self.scale == 0:
            return loss
        cost = (normalized_penalty + 1) * self.baseline
        exponent = self.scale * self.beta * torch.log(torch.log(cost / LOG_UNIT))
        # Too large a factor keeps its relative gradient.
        return loss * self.alpha * torch.exp(exponent - (exponent.detach() - _LARGEST_EXPONENT).clamp_min(0.0))


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
