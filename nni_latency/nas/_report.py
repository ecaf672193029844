# SPDX-License-Identifier: Apache-2.0
"""Costs beside the accuracy in what a trial reports to NNI, so that its web page shows both."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.files import is_file
from nni_latency.loading import EstimatorSource, load_estimator
from nni_latency.nas import _nni
from nni_latency.nas._profiler import LatencyProfiler, sample_of
from nni_latency.units import METRICS


def cost_report(
    costs: LatencyProfiler | EstimatorSource, candidate: Any = None, example_inputs: Any = None
) -> dict[str, float]:
    """Return what a network costs under the name and in the unit that a report gives it.

    Parameters
    ----------
    costs : LatencyProfiler, Estimator, LookupTable, str or path
        A profiler, which looks up a sample, or whatever `load_estimator` takes, which costs the network itself.
    candidate : Module, model of a strategy, or mapping, optional
        For an estimator the network; for a profiler a sample, or a model that was frozen with one. Without it, a
        profiler takes the model of the running trial.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the network, for an estimator.

    Returns
    -------
    dict
        One number: ``latency_ms``, ``energy_mj``, ``peak_memory_mib``, ``parameter_memory_mib``,
        ``activation_memory_mib`` or ``throughput_per_s``.

    Raises
    ------
    InvalidValueError
        If there is no candidate, or it is not of the kind that is needed.

    Examples
    --------
    >>> from nni_latency import FBNetSpace, LookupTable
    >>> space = FBNetSpace(depth=0.25)
    >>> costs = {label: {choice: 0.001 for choice in mutable.values} for label, mutable in space.simplify().items()}
    >>> profiler = LatencyProfiler(space, latency_estimator=LookupTable.from_latencies(space, costs))
    >>> report = cost_report(profiler, {label: "skip" for label in costs})
    >>> {name: round(value, 6) for name, value in report.items()}
    {'latency_ms': 7.0}
    """
    if isinstance(costs, LatencyProfiler):
        candidate = _nni.nni.get_current_parameter() if candidate is None else candidate
        if candidate is None:
            raise InvalidValueError(
                "There is no candidate to cost: outside of a trial a profiler needs a sample or a frozen model."
            )
        metric, value = costs.estimator.metric, costs.profile(sample_of(candidate))
    else:
        if candidate is None:
            raise InvalidValueError("An estimator costs a network: give the network as the candidate. Got None.")
        estimator = load_estimator(costs)
        estimate = estimator.estimate(candidate, example_inputs)
        metric, value = estimator.metric, estimate.value
    factor, unit = METRICS[metric].shown
    name = f"{metric}_{unit.lower().replace('1/', 'per_')}"
    return {name: factor * value}


def report_with_cost(
    accuracy: float,
    costs: LatencyProfiler | EstimatorSource,
    candidate: Any = None,
    example_inputs: Any = None,
    **further: float,
) -> dict[str, float]:
    """Report the final result of a trial to NNI: its accuracy for the strategy, and its cost beside it.

    NNI's strategies see ``default`` alone; its web page offers all of them as metrics.

    Parameters
    ----------
    accuracy : float
        What the strategy maximises.
    costs, candidate, example_inputs
        As in `cost_report`.
    **further : float
        More numbers for the web page.

    Returns
    -------
    dict
        What was reported: ``{"default": accuracy, "latency_ms": ...}`` and the further numbers.

    Raises
    ------
    InvalidValueError
        If a number is not finite, or one of the further has a name that is taken.

    Examples
    --------
    >>> def evaluate(model):
    ...     accuracy = train_and_judge(model)
    ...     report_with_cost(accuracy, "/data/table.json", model, torch.zeros(1, 3, 224, 224))
    """
    return _report(accuracy, cost_report(costs, candidate, example_inputs), further)


class CostReporting(_nni.Evaluator):
    """An evaluator that adds the network's cost to whatever another one reports as its final result.

    It is for evaluators that report on their own, such as NNI's `Classification`, in multi-trial strategies. It works
    with every engine of NNI; where trials run in separate processes, `costs` must be a path or a name, because a
    profiler cannot be sent to them.

    Parameters
    ----------
    evaluator : Evaluator
        Who trains and reports.
    costs : LatencyProfiler, Estimator, LookupTable, str or path
        As in `cost_report`. A relative path is made absolute, because trials run in another folder.
    input_shape : tuple of int, optional
        Shape of the network's input, batch first; needed unless `costs` is a profiler.

    Raises
    ------
    InvalidValueError
        If the evaluator is none, or the input shape is missing.

    Examples
    --------
    >>> evaluator = CostReporting(Classification(max_epochs=3), "table.json", (1, 3, 224, 224))   # doctest: +SKIP
    """

    #: NNI's word for "sends itself by its arguments".
    _traced: ClassVar[bool] = True

    def __init__(
        self,
        evaluator: Any,
        costs: LatencyProfiler | EstimatorSource,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        if not isinstance(evaluator, _nni.Evaluator):
            raise InvalidValueError(
                f"The 'evaluator' of CostReporting must be an evaluator of NNI. Got {type(evaluator).__name__}."
            )
        if input_shape is None and not isinstance(costs, LatencyProfiler):
            raise InvalidValueError("CostReporting needs the 'input_shape' of the network, unless it gets a profiler.")
        self.evaluator = evaluator
        self.costs = _absolute(costs)
        self.input_shape = None if input_shape is None else tuple(input_shape)

    @property
    def trace_symbol(self) -> type:
        """Class that makes this evaluator."""
        return self.__class__

    @property
    def trace_args(self) -> list[Any]:
        """Positional arguments that make it: none."""
        return []

    @property
    def trace_kwargs(self) -> dict[str, Any]:
        """Arguments that make it."""
        return {"evaluator": self.evaluator, "costs": self.costs, "input_shape": self.input_shape}

    def trace_copy(self) -> Any:
        """Return its class and arguments, without an instance."""
        return _nni.SerializableObject(self.__class__, [], self.trace_kwargs)

    def extra_repr(self) -> str:
        """Return what stands between the brackets of its representation."""
        return f"{self.evaluator!r}, costs={self.costs!r}"

    def evaluate(self, model: Any) -> Any:
        """Cost the network, then let the evaluator train it and report."""
        if self.input_shape is None:
            found = cost_report(self.costs)
        else:
            found = cost_report(self.costs, model, torch.zeros(self.input_shape))
        with _added_to_final_results(found):
            return self.evaluator.evaluate(model)


class _CostChannel(_nni.TrialCommandChannel):
    """A trial's way to NNI that adds costs to the final result."""

    def __init__(self, channel: Any, costs: Mapping[str, float]) -> None:
        self._channel = channel
        self._costs = costs

    def receive_parameter(self) -> Any:
        return self._channel.receive_parameter()

    def send_metric(self, type: Any, parameter_id: Any, trial_job_id: Any, sequence: Any, value: Any) -> None:  # noqa: A002
        if type == "FINAL":
            metrics = dict(value) if isinstance(value, Mapping) else {"default": value}
            value = {**self._costs, **metrics}
        self._channel.send_metric(
            type=type, parameter_id=parameter_id, trial_job_id=trial_job_id, sequence=sequence, value=value
        )


@contextlib.contextmanager
def _added_to_final_results(costs: Mapping[str, float]) -> Iterator[None]:
    before = _nni.get_default_trial_command_channel()
    _nni.set_default_trial_command_channel(_CostChannel(before, costs))
    try:
        yield
    finally:
        _nni.set_default_trial_command_channel(before)


def _report(accuracy: float, found: Mapping[str, float], further: Mapping[str, float]) -> dict[str, float]:
    taken = sorted({"default", *found} & set(further))
    if taken:
        raise InvalidValueError(f"The further numbers of a report must have unused names. Got {taken[0]!r}.")
    numbers: dict[str, Any] = {"default": accuracy, **found, **further}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            label = "accuracy" if name == "default" else name
            raise InvalidValueError(f"The {label!r} of a report must be a finite number. Got {value!r}.")
    result = {name: float(value) for name, value in numbers.items()}
    _nni.nni.report_final_result(result)
    return result


def _absolute(costs: Any) -> Any:
    """Return an existing file by its absolute path, and anything else as it is."""
    if isinstance(costs, str | os.PathLike) and is_file(costs):
        return str(Path(costs).resolve())
    return costs
