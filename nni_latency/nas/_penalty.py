# SPDX-License-Identifier: Apache-2.0
"""Latency penalties for NNI's differentiable strategies: a fixed weight, or multipliers that reach a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError, UnreachableTargetError
from nni_latency.estimators import AdditiveCost, GroupedCost
from nni_latency.nas._expectation import expected_cost
from nni_latency.nas._nni import BaseSuperNetModule, Cell, ExpectationProfilerPenalty, ProxylessMixedRepeat
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.nas._space_cost import warn_of_loose_limit
from nni_latency.units import format_metric, format_percent, with_article

#: How much a violation presses at once, and how much of it the multipliers remember after every step.
_AT_ONCE, _RATE = 2.0, 0.05


class LatencyPenalty(ExpectationProfilerPenalty):
    """Penalise the expected cost, with a gradient, in DARTS, GumbelDARTS and Proxyless.

    In NNI 3.0 these strategies hand a penalty Python floats, so the architecture parameters never feel it. This one
    takes the live parameters from the supernet, which NNI makes of the profiler's space in place, and computes the
    expected cost with the softmax of them: that is exactly the mean cost of the network that the strategy would sample.

    Parameters
    ----------
    profiler : LatencyProfiler
        Made with the very space object that is searched.
    baseline : float
        Cost at which the penalty is zero, in the SI unit of the metric.
    scale : float, default=1.0
        Weight of the penalty; 0 switches it off.
    nonlinear : {"linear", "positive", "negative", "absolute"}, default="linear"
        What is done with ``cost / baseline - 1``, as in NNI's `ProfilerPenalty`.
    aggregate : {"add", "mul"}, default="add"
        How it joins the loss, as in NNI's `ProfilerPenalty`.

    Raises
    ------
    InvalidValueError
        If the profiler is not a LatencyProfiler, or the baseline is not positive.
    UnreachableTargetError
        If ``nonlinear="positive"`` and no network is as cheap as the baseline.

    Examples
    --------
    >>> from nni.nas.strategy import DARTS                                                     # doctest: +SKIP
    >>> profiler = LatencyProfiler(space, inputs, latency_estimator="table.json")              # doctest: +SKIP
    >>> strategy = DARTS(penalty=LatencyPenalty(profiler, baseline=0.012, scale=2.0))          # doctest: +SKIP
    """

    def __init__(
        self,
        profiler: LatencyProfiler,
        baseline: float,
        scale: float = 1.0,
        *,
        nonlinear: Literal["linear", "positive", "negative", "absolute"] = "linear",
        aggregate: Literal["add", "mul"] = "add",
    ) -> None:
        self._check_profiler(profiler)
        if not baseline > 0:
            raise InvalidValueError(f"The 'baseline' of {type(self).__name__} must be > 0. Got {baseline!r}.")
        check_no_cells(profiler.space, type(self).__name__)
        if nonlinear == "positive":
            profiler.cost.check_target(baseline)
            warn_of_loose_limit(profiler.cost, baseline)
        super().__init__(profiler, baseline, scale, nonlinear=nonlinear, aggregate=aggregate)
        self.expected = expected_cost(profiler.cost)
        self._logits: list[Callable[[], torch.Tensor]] | None = None

    @classmethod
    def _check_profiler(cls, profiler: object) -> None:
        if not isinstance(profiler, LatencyProfiler):
            raise InvalidValueError(
                f"The 'profiler' of {cls.__name__} must be a LatencyProfiler. Got {type(profiler).__name__}."
            )

    def forward(self, loss: torch.Tensor, sample: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Join the cost with the loss; also return what NNI logs, without gradients."""
        joined, details = super().forward(loss, sample)
        return joined, {name: value.detach() for name, value in details.items()}

    def profile(self, sample: Mapping[str, Any]) -> torch.Tensor:
        """Return the expected cost of the supernet, a scalar with a gradient.

        Parameters
        ----------
        sample : mapping
            What NNI hands over: probabilities without a gradient, which are of no use and are not looked at.

        Raises
        ------
        MismatchError
            If the profiler's space is not the supernet.
        """
        return self.expected.forward(self.expected.softmax(self.logits()))

    def logits(self) -> list[torch.Tensor]:
        """Return the live logits, (n_choices,), of every label of the space; raises as `profile` does."""
        if self._logits is None:
            found = architecture_logits(self.profiler.space)
            if not found:
                raise MismatchError(
                    "The space of the profiler has no architecture parameters: it is not the one that is searched. "
                    "Make the LatencyProfiler with the very object that goes into the experiment."
                )
            self.expected.check_labels({label: logits() for label, logits in found.items()})
            self._logits = [found[label] for label in self.expected.labels]
        return [logits() for logits in self._logits]


def check_no_cells(space: nn.Module, who: str) -> None:
    """Raise `InvalidValueError` if a space has cells, whose expected cost a differentiable strategy cannot follow."""
    name = next((name for name, module in space.named_modules() if isinstance(module, Cell)), None)
    if name is not None:
        raise InvalidValueError(
            f"{who} cannot follow the cost of {type(space).__name__}: {name!r} is a Cell, of which DARTS and "
            "GumbelDARTS learn a weight for every pair of an input and an operation, and not the probability of a "
            "choice. Take ENAS or RandomOneShot with a LatencyFilter, or a multi-trial strategy such as "
            "RegularizedEvolution."
        )


def architecture_parameters(supernet: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the label and the architecture parameters, (n_choices,), of every choice of a supernet of NNI."""
    for module in supernet.modules():
        if not isinstance(module, BaseSuperNetModule) or not hasattr(module, "_arch_alpha"):
            continue
        if isinstance(module._arch_alpha, torch.Tensor):
            yield str(module.label), module._arch_alpha
        else:
            yield from module._arch_alpha.items()


def architecture_logits(supernet: nn.Module) -> dict[str, Callable[[], torch.Tensor]]:
    """Return by label what gives the live logits, (n_choices,), of a choice of a supernet of NNI.

    They are its architecture parameters, but for the depth of a `Repeat` in Proxyless, which has none.
    """
    found = {label: partial(_itself, alpha) for label, alpha in architecture_parameters(supernet)}
    depths = {label: partial(depth_logits, repeat) for label, repeat in proxyless_depths(supernet).items()}
    return {**found, **depths}


def _itself(alpha: torch.Tensor) -> torch.Tensor:
    return alpha


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
        If the profiler is not a LatencyProfiler, the fill is outside (0, 1], or the weight is negative.
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
        self._check_profiler(profiler)
        profiler.cost.check_target(target)
        super().__init__(profiler, target, weight)
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
    # Where networks are only known one by one, the costliest is unknown.
    if isinstance(cost, AdditiveCost | GroupedCost) and cost.range[1] < fill * target:
        raise UnreachableTargetError(
            f"No network of the space uses {format_percent(fill)} of {with_article(cost.metric)} of "
            f"{format_metric(target, cost.metric)}: the costliest has {format_metric(cost.range[1], cost.metric)}. "
            "Lower the target or the fill."
        )


def proxyless_depths(supernet: nn.Module) -> dict[str, ProxylessMixedRepeat]:
    """Return by label what Proxyless has made of every `Repeat` of a space."""
    return {
        str(module.depth_choice.label): module
        for module in supernet.modules()
        if isinstance(module, ProxylessMixedRepeat)
    }


def depth_logits(repeat: Any) -> torch.Tensor:
    """Return logits of the depths that a `Repeat` chooses among, (n_choices,), with a gradient.

    Proxyless gives every block beyond the smallest depth two parameters, to be skipped or to be run, and draws them
    independently; the depth is how many are run. So its distribution is built up block by block. Depths that cannot be
    chosen are left out; the softmax of the logits shares their probability among the others.
    """
    counts: torch.Tensor | None = None
    for index in range(repeat.min_depth, repeat.max_depth):
        skip, run = torch.softmax(repeat.blocks[index]._arch_alpha, -1)
        counts = torch.ones_like(skip)[None] if counts is None else counts
        zero = torch.zeros_like(counts[:1])
        counts = skip * torch.cat([counts, zero]) + run * torch.cat([zero, counts])
    assert counts is not None, "a Repeat with a single depth has no choice"
    chosen = torch.tensor([depth - repeat.min_depth for depth in repeat.depth_choice.values], device=counts.device)
    return counts[chosen].clamp_min(torch.finfo(counts.dtype).tiny).log()
