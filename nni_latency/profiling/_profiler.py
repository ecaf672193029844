# SPDX-License-Identifier: Apache-2.0
"""Profiling of networks with their operators in context, then of operators of significant kinds alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Measurement, Meter, Protocol, Record, Subject, Summary, quantile
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import TracedOperator, family_of
from nni_latency.profiling._document import AloneCost, ModelProfile, Part, ProfiledOperator
from nni_latency.profiling._models import ProfiledModel
from nni_latency.profiling._profile import OperatorProfile, select_kinds
from nni_latency.profiling._visits import WAYS, ProfileSchedule, alone_subject, runs_for
from nni_latency.tables import Measured, Measuring, MeasuringOptions, OperatorSamples
from nni_latency.units import number_of

#: Default protocol of profiles: few runs per visit, several visits.
PROFILE_PROTOCOL = Protocol(n_warmup=1, n_run=2, time_budget=600.0, half_width=0.05, processes=1, timeout=300.0)

#: Share of the budget for whole networks; the rest is for operators alone.
_NETWORKS = 0.5


class OperatorProfiler:
    """Measures the operators of several models on one platform: first in context, then the significant ones alone.

    Parameters
    ----------
    models : sequence of ProfiledModel
        Models to profile, in the order of measurement.
    runtime : Runtime
        Runtime that executes the models. It must call operators one by one, like ``torch``.
    batch_size : int
        Inputs per run, recorded in the profile.
    protocol : Protocol, optional
        Measurement protocol; by default `PROFILE_PROTOCOL`.
    target : float, default=0.9
        Target share of every model's time, and of its energy with a meter, to attribute to operators.

    Raises
    ------
    InvalidValueError
        If there is no model, two share a name, or the target is outside (0, 1].
    MeasurementError
        If the runtime cannot time operators one by one.
    """

    def __init__(
        self,
        models: Sequence[ProfiledModel],
        runtime: Runtime,
        *,
        batch_size: int = 1,
        protocol: Protocol | None = None,
        target: float = 0.9,
    ) -> None:
        names = [model.name for model in models]
        if not names or len(set(names)) != len(names):
            twice = next((name for name in names if names.count(name) > 1), None)
            raise InvalidValueError(
                "A profile needs at least one model. Got none." if twice is None else f"Name {twice!r} once."
            )
        if not 0 < target <= 1:
            raise InvalidValueError(f"The 'target' of a profile must be a share in (0, 1]. Got {target!r}.")
        check_profiles(runtime)
        self.models, self.runtime, self.batch_size, self.target = tuple(models), runtime, batch_size, target
        self.protocol = replace(protocol or PROFILE_PROTOCOL, threads=runtime.platform.threads)
        #: Kinds of operators selected so far.
        self.significant: tuple[str, ...] = ()
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._unbuildable: dict[str, str] = {}
        self._tried: set[str] = set()
        self._schedules: list[ProfileSchedule] = []
        self._networks: ProfileSchedule | None = None
        self._meters: tuple[Meter, ...] = ()
        self._measured: Measured | None = None

    def measure_networks(self, **how: Unpack[MeasuringOptions]) -> None:
        """Measure the models with all their operators in context, within half of the budget.

        Raises
        ------
        MeasurementError
            If none of them can be run.
        BusyError, OutputError, MismatchError
            As for `nni_latency.tables.build_table`.
        """
        calls = {model.key: model.network_calls.n_calls for model in self.models}
        self._networks = ProfileSchedule(
            list({model.key: model.subject for model in self.models}.values()),
            self._within(_NETWORKS * self.protocol.time_budget),
            weights={model.key: model.weights for model in self.models},
            n_calls=calls,
        )
        self._run(self._networks, how)
        self.__dict__.pop("_samples", None)
        self.significant = select_kinds(self._shares(), self.target)

    def wanted(self) -> list[TracedOperator]:
        """Return the operators of significant kinds not yet measured alone, most expensive first."""
        times: dict[str, float] = defaultdict(float)
        found: dict[str, TracedOperator] = {}
        for model, parts in self._parts.values():
            for key, item in model.operators.items():
                if key not in self._tried and family_of(item.op) in self.significant:
                    found.setdefault(key, item)
                    times[key] += parts[key].seconds
        return sorted(found.values(), key=lambda item: -times[item.op.op_key])

    def measure_operators(self, **how: Unpack[MeasuringOptions]) -> bool:
        """Measure the `wanted` operators alone with the remaining budget, and select further kinds.

        Returns
        -------
        bool
            Whether more operators need measuring: kinds were added because the energy of others cannot be measured.
        """
        wanted = self.wanted()
        subjects = [subject for item in wanted for subject in self._alone(item)]
        left = self.protocol.time_budget - sum(schedule.spent for schedule in self._schedules)
        self._tried.update(item.op.op_key for item in wanted)
        if subjects:
            schedule = ProfileSchedule(
                subjects,
                self._within(max(left, 1.0)),
                weights={item.key: item.specification["numbers"] for item in subjects},
                required=False,
            )
            how["fresh"] = False  # Continue the campaign in which the networks were just measured.
            self._run(schedule, how)
            left -= schedule.spent
        self.significant = select_kinds(self._shares(), self.target, self.significant)
        return bool(self.wanted()) and left > 0

    def is_done(self, model: ProfiledModel) -> bool:
        """Whether a model and all its significant operators reach the precision of the protocol."""
        if self._networks is None or not self._networks.is_done(model.key):
            return False
        keys = {key for key, item in model.operators.items() if family_of(item.op) in self.significant}
        own = [subject.key for (key, _), subject in self._subjects.items() if key in keys]
        return keys <= self._tried and all(self._schedule_of(key).is_done(key) for key in own)

    def reason(self, model: ProfiledModel) -> str | None:
        """Return the reason why a model cannot be measured; None without a failure."""
        return None if self._networks is None else self._networks.failures.get(model.key)

    def profile(self) -> OperatorProfile:
        """Return the profile of the measurements so far.

        Raises
        ------
        MeasurementError
            If nothing was measured yet.
        """
        if self._measured is None or not self._parts:
            raise MeasurementError("No model was measured yet, so there is no profile.")
        models = tuple(self._model(model, parts) for model, parts in self._parts.values())
        keys = list(dict.fromkeys(key for model in models for key in model.parts))
        ops = {key: op for model, _ in self._parts.values() for key, op in model.ops.items()}
        return self._measured.mark(
            OperatorProfile(
                platform=self.runtime.platform,
                protocol=self.protocol,
                rounds=sum(schedule.rounds for schedule in self._schedules),
                duration=round(sum(schedule.spent for schedule in self._schedules), 3),
                drift=tuple(self._samples.drift),
                remarks=tuple(self._remarks()),
                batch_size=self.batch_size,
                target=self.target,
                models=models,
                operators=tuple(ProfiledOperator(ops[key], self._alone_costs.get(key, {})) for key in keys),
                significant=self.significant,
                failures=self._failures(),
                meter=None if self._meter is None else self._meter.description,
                assumption=self._assumption,
            )
        )

    @property
    def _meter(self) -> Meter | None:
        return next((meter for meter in self._meters if meter.metric == "energy"), None)

    @property
    def _assumption(self) -> str | None:
        """Assumption of the meter; None if it measures."""
        return (self._meter.assumption or None) if self._meter is not None else None

    def _within(self, budget: float) -> Protocol:
        return replace(self.protocol, time_budget=max(budget, 1e-3))

    def _run(self, schedule: ProfileSchedule, how: MeasuringOptions) -> None:
        self._meters = tuple(how.get("meters", ()))
        measuring = Measuring(self.runtime, schedule.protocol, **how)
        self._schedules.append(schedule)
        self._measured = measuring.run(schedule, {"what": "operators of models", "batch_size": self.batch_size})
        self.__dict__.pop("_alone_costs", None)
        self.__dict__.pop("_parts", None)

    def _schedule_of(self, key: str) -> ProfileSchedule:
        return next(schedule for schedule in self._schedules if key in schedule.networks)

    def _alone(self, item: TracedOperator) -> list[Subject]:
        """Return the subjects that measure an operator alone; empty, with a recorded reason, if it cannot be built."""
        model = next(model for model in self.models if item.op.op_key in model.operators)
        key = item.op.op_key
        inside = [parts[key] for _, parts in self._parts.values() if key in parts]
        runs = runs_for(min(part.seconds / part.count for part in inside))
        try:
            made = {(key, way): alone_subject(item, model, way, runs) for way in WAYS}
        except InvalidValueError as error:
            self._unbuildable[key] = str(error)
            return []
        self._subjects |= made
        return list(made.values())

    def _visits(self, key: str) -> Sequence[Record]:
        return next((item.visits[key] for item in self._schedules if key in item.visits), ())

    @cached_property
    def _samples(self) -> OperatorSamples:
        """Times of the models and their calls at the machine's usual speed."""
        calls = {model.key: model.network_calls for model in self.models}
        return OperatorSamples(calls, self.protocol, (record for key in calls for record in self._visits(key)))

    @cached_property
    def _parts(self) -> dict[str, tuple[ProfiledModel, dict[str, Part]]]:
        """Measured models by name, with the parts of their operators."""
        found = {}
        for model in self.models:
            if model.key not in self._samples.measured:
                continue
            # The parts by modules come first and add up to the model.
            places = self._samples.places(model.key)[: len(model.trace.operators)]
            parts: dict[str, Part] = {}
            for place in places:
                before = parts.get(place.op_key, Part(0, 0.0))
                parts[place.op_key] = Part(before.count + 1, before.seconds + place.value)
            found[model.name] = (model, parts)
        return found

    def _model(self, model: ProfiledModel, parts: Mapping[str, Part]) -> ModelProfile:
        whole, visits = self._samples.whole(model.key), self._visits(model.key)
        times = model.network_calls.modules.times(self._samples.calls(model.key))
        taken = np.quantile(times, self.protocol.statistic, axis=0)
        # Rounding must not make the parts exceed the whole.
        factor = whole.value / math.fsum(part.seconds for part in parts.values())
        return ModelProfile(
            whole.value,
            whole.low,
            whole.high,
            name=model.name,
            inputs=model.trace.inputs,
            marked=float(taken.sum()),
            parts={key: Part(part.count, part.seconds * factor) for key, part in parts.items()},
            watts=_watts(visits),
            n_samples=whole.n_samples,
        )

    @cached_property
    def _alone_costs(self) -> dict[str, dict[str, AloneCost]]:
        """Costs of operators alone, by operator and mode."""
        found: dict[str, dict[str, AloneCost]] = defaultdict(dict)
        for (key, way), subject in self._subjects.items():
            visits = self._visits(subject.key)
            if visits:
                summary = self._summary(visits, subject.specification["runs"])
                found[key][way] = AloneCost(
                    summary.value, summary.low, summary.high, watts=_watts(visits), n_samples=summary.n_samples
                )
        return dict(found)

    def _summary(self, visits: Sequence[Record], runs: int) -> Summary:
        scale = self._samples.unit / runs
        taken = tuple(seconds / record.reference * scale for record in visits for seconds in record.whole)
        return Measurement(taken, self.protocol).summary

    def _shares(self) -> list[dict[str, float]]:
        """Return the still attributable share of every kind, by model and metric."""
        return [row for model, parts in self._parts.values() for row in self._rows(model, parts)]

    def _rows(self, model: ProfiledModel, parts: Mapping[str, Part]) -> Iterable[dict[str, float]]:
        kinds = {key: family_of(op) for key, op in model.ops.items()}
        yield _by_kind({key: part.seconds for key, part in parts.items()}, kinds, parts)
        usual = _watts(self._visits(model.key))
        if usual is None or self._assumption is not None:
            # Energy at an assumed power has the same shares as time.
            return
        powers = {key: self._power(key) for key in parts}
        joules = {key: part.seconds * (powers[key] or usual) for key, part in parts.items()}
        # Failed operators are not attributable; untested ones may be.
        yield _by_kind(joules, kinds, [key for key in parts if key not in self._tried or powers[key] is not None])

    def _power(self, key: str) -> float | None:
        return ProfiledOperator(self._op(key), self._alone_costs.get(key, {})).watts

    def _op(self, key: str) -> Any:
        return next(model.ops[key] for model in self.models if key in model.operators)

    def _failures(self) -> dict[str, str]:
        networks = {model.name: reason for model in self.models if (reason := self.reason(model)) is not None}
        ways = {subject.key: key for (key, _), subject in self._subjects.items()}
        alone = {ways[key]: reason for item in self._schedules for key, reason in item.failures.items() if key in ways}
        return {**networks, **self._unbuildable, **alone}

    def _remarks(self) -> Iterable[str]:
        late = [model.name for model in self.models if model.name not in self._parts and self.reason(model) is None]
        if late:
            yield f"The budget was spent before these models were measured: {', '.join(late)}. Give a larger one."
        waiting = {key for (key, _), item in self._subjects.items() if not self._visits(item.key)}
        waiting -= set(self._failures())
        waiting |= {item.op.op_key for item in self.wanted()}
        if waiting:
            unmeasured = number_of(len(waiting), "operator")
            yield f"The budget was spent before measuring {unmeasured} alone. Give a larger one."


def check_profiles(runtime: Runtime) -> None:
    """Raise `MeasurementError` if a runtime cannot time operators inside a network."""
    if not runtime.sees_calls:
        raise runtime.sees_no_calls("Profile operators with the runtime torch or torch-nhwc.")


def profile_operators(
    models: Sequence[ProfiledModel],
    runtime: Runtime,
    *,
    batch_size: int = 1,
    protocol: Protocol | None = None,
    target: float = 0.9,
    **how: Unpack[MeasuringOptions],
) -> OperatorProfile:
    """Measure the operators of several models in one campaign; see `OperatorProfiler`.

    Parameters
    ----------
    models, runtime, batch_size, protocol, target
        As for `OperatorProfiler`.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    OperatorProfile

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from nni_latency.profiling import own_model
    >>> from nni_latency.testing import FakeRuntime
    >>> model = own_model("mine", nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(1, 4))
    >>> runtime = FakeRuntime(lambda op: 0.003 if op.kind == "linear" else 0.001)
    >>> profile = profile_operators([model], runtime, target=0.7, store="memory", timer=lambda: runtime.clock.now)
    >>> profile.significant, {kind: round(share, 3) for kind, share in profile.shares("latency")["mine"].items()}
    (('linear',), {'linear': 0.75, 'relu': 0.25})
    """
    profiler = OperatorProfiler(models, runtime, batch_size=batch_size, protocol=protocol, target=target)
    profiler.measure_networks(**how)
    while profiler.measure_operators(**how):
        pass
    return profiler.profile()


def _watts(visits: Sequence[Record]) -> float | None:
    powers = [watts for record in visits for watts in record.samples.get("power", ())]
    return quantile(powers, 0.5) if powers else None


def _by_kind(costs: Mapping[str, float], kinds: Mapping[str, str], counted: Iterable[str]) -> dict[str, float]:
    total, found = math.fsum(costs.values()), defaultdict[str, float](float)
    for key in counted:
        found[kinds[key]] += costs[key] / total
    return dict(found)
