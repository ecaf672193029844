"""`LatencyProfiler`: an estimator as a profiler of NNI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Distillation, Missing, NetworkEstimator, distil
from nni_latency.loading import EstimatorSource, load_estimator
from nni_latency.nas._expressions import expression_of
from nni_latency.nas._filter import sample_of
from nni_latency.nas._nni import ExpressionProfiler, ModelSpace
from nni_latency.nas._space_cost import N_NETWORKS, cost_of_space
from nni_latency.spaces import choices_of, example_inputs_of


class LatencyProfiler(ExpressionProfiler):
    """The cost of a sample, for NNI's filters, penalties and strategies.

    It is an `ExpressionProfiler` of NNI: its `expression` is the sum over the labels of the space, so whatever NNI
    does with expressions works. `profile` itself does not evaluate it but looks the choices up, which is faster.

    Parameters
    ----------
    space : ModelSpace
        The space to be searched. Penalties find the live architecture parameters through this very object.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the network; its batch size must be that of the estimator. Without it, a batch of one.
    latency_estimator : Estimator, LookupTable, str or path
        Whatever `load_estimator` takes.
    missing : {"error", "nearest"}, default="error"
        What a table does about candidates without an entry.
    n_samples : int, optional
        Networks that an estimator of whole networks is asked for, to find a sum that stands for it; see `distil`. Also
        those that one measures which measures operators on demand (12 without it); other operators are predicted.

    Attributes
    ----------
    estimator : Estimator
        The estimator behind it.
    distillation : Distillation or None
        Of an estimator of whole networks: the sum that stands for it, and how far it is off.
    cost : AdditiveCost, GroupedCost or FrozenCost
        Cost of every choice, and the constant of the rest; where choices act together, by groups of them; where a
        space cannot be followed, network by network.
    expression : MutableExpression
        The same as an expression of NNI.

    Raises
    ------
    MismatchError
        If the estimator belongs to another space, input or batch size.
    MissingEntryError
        If the table lacks candidates, and `missing` is "error".
    InvalidValueError
        If the space has no choices, or the estimator cannot be taken apart by layer.

    Examples
    --------
    >>> from nni_latency import FBNetSpace, LookupTable
    >>> space = FBNetSpace(depth=0.25)
    >>> table = LookupTable.from_latencies(
    ...     space, {label: {choice: 0.001 for choice in mutable.values} for label, mutable in space.simplify().items()}
    ... )
    >>> profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=table)
    >>> round(profiler.profile({label: "skip" for label in space.simplify()}), 6)
    0.007
    """

    def __init__(
        self,
        space: Any,
        example_inputs: Any = None,
        *,
        latency_estimator: EstimatorSource,
        missing: Missing = "error",
        n_samples: int | None = None,
    ) -> None:
        super().__init__(space)
        self.space = space
        self.example_inputs = example_inputs
        self.estimator = load_estimator(latency_estimator, missing=missing)
        self.distillation: Distillation | None = None
        if isinstance(self.estimator, NetworkEstimator):
            choices_of(space)
            self.distillation = distil(self.estimator, space, example_inputs, n_samples=n_samples)
        self.cost = cost_of_space(self.distillation or self.estimator, space, example_inputs, n_samples or N_NETWORKS)
        self.expression = expression_of(self.cost, space)

    def profile(self, sample: Mapping[str, Any] | nn.Module) -> float:
        """Return the cost of a network, in the SI unit of the estimator's metric.

        Parameters
        ----------
        sample : mapping or Module
            A sample, ``{label: choice}``, or a frozen model. A model that a strategy froze knows its sample; one that
            ``space.freeze`` or ``space.random`` returned does not, and the estimator is asked for the network itself.

        Raises
        ------
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        """
        if not isinstance(sample, nn.Module):
            return self.cost(sample_of(sample))
        if isinstance(sample, ModelSpace) and sample.simplify():
            raise InvalidValueError(
                f"The {type(sample).__name__} is a whole space, not a network of it. Freeze it with a sample."
            )
        inputs = example_inputs_of(self.space) if self.example_inputs is None else self.example_inputs
        return self.estimator.estimate(sample, inputs).value
