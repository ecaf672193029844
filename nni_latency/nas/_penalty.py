"""`LatencyPenalty`: the penalty that NNI's differentiable strategies can feel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.nas._depth import depth_logits, proxyless_depths
from nni_latency.nas._expectation_groups import expected_cost
from nni_latency.nas._nni import BaseSuperNetModule, Cell, ExpectationProfilerPenalty
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.nas._space_cost import warn_of_loose_limit


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
        If the profiler is no LatencyProfiler, or the baseline is not positive.
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
        if not isinstance(profiler, LatencyProfiler):
            raise InvalidValueError(
                f"The 'profiler' of {type(self).__name__} must be a LatencyProfiler. Got {type(profiler).__name__}."
            )
        if not baseline > 0:
            raise InvalidValueError(f"The 'baseline' of {type(self).__name__} must be > 0. Got {baseline!r}.")
        check_no_cells(profiler.space, type(self).__name__)
        if nonlinear == "positive":
            profiler.cost.check_target(baseline)
            warn_of_loose_limit(profiler.cost, baseline)
        super().__init__(profiler, baseline, scale, nonlinear=nonlinear, aggregate=aggregate)
        self.expected = expected_cost(profiler.cost)
        self._alphas: list[torch.Tensor] | None = None
        self._logits: list[Callable[[], torch.Tensor]] | None = None

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
        if self._logits is None:
            found = architecture_logits(self.profiler.space)
            self._check({label: logits() for label, logits in found.items()})
            self._logits = [found[label] for label in self.expected.labels]
        return self.expected.forward(self.expected.softmax([logits() for logits in self._logits]))

    def _find_alphas(self) -> list[torch.Tensor]:
        found = dict(architecture_parameters(self.profiler.space))
        self._check(found)
        return [found[label] for label in self.expected.labels]

    def _check(self, found: Mapping[str, torch.Tensor]) -> None:
        if not found:
            raise MismatchError(
                "The space of the profiler has no architecture parameters: it is not the one that is searched. "
                "Make the LatencyProfiler with the very object that goes into the experiment."
            )
        self.expected.check_labels(found)


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

    They are its architecture parameters, but for the depth of a `Repeat` in Proxyless, which has none of its own.
    """
    found = {label: partial(_itself, alpha) for label, alpha in architecture_parameters(supernet)}
    depths = {label: partial(depth_logits, repeat) for label, repeat in proxyless_depths(supernet).items()}
    return {**found, **depths}


def _itself(alpha: torch.Tensor) -> torch.Tensor:
    return alpha
