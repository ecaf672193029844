# SPDX-License-Identifier: Apache-2.0
"""`LatencyQuery`: looks up, measures or predicts a latency on a platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError, MissingEntryError, listed
from nni_latency.estimators import Estimate, Estimator, LayerEstimator
from nni_latency.graphs import GraphPredictor
from nni_latency.kernels import Kernel, KernelPredictors
from nni_latency.measurement import Benches, Campaign, CampaignHeader, NetworkSchedule, Progress, Protocol, Store
from nni_latency.operators import OpSpec, precision_remarks
from nni_latency.platforms import Platform
from nni_latency.version import __version__
from nni_latency_service.query._answer import Answer, Measure, check_measure
from nni_latency_service.query._machines import LocalMachines, Machines
from nni_latency_service.query._question import Question

#: Default protocol of a query: two processes, at most sixteen visits of three runs each.
QUERY_PROTOCOL = Protocol(n_warmup=1, n_run=3, rounds=16, time_budget=20.0, processes=2)

#: Name of query campaigns in a store.
KIND = "query"

#: How long to wait for another process or thread that measures the same network [s].
_LONGEST_WAIT = 3600.0

Predictor = Estimator | GraphPredictor | KernelPredictors


class LatencyQuery:
    """Answers latency queries. Thread-safe.

    A latency with a record in the store is answered from the record; otherwise it is measured or predicted, as
    requested. Measurements are stored, so nothing is measured twice: of concurrent identical queries, in any process,
    one measures and the others wait.

    Parameters
    ----------
    store : Store
        Store of the records; measurements are added to it.
    machines : Machines, optional
        Machines that measure; without them, a latency without a record is predicted.
    predictors : mapping of str to GraphPredictor, KernelPredictors or Estimator, optional
        Predictors by the name shown in answers. The first that supports the platform is used; for kernels, kernel
        predictors take precedence.
    protocol : Protocol, optional
        Measurement protocol; by default `QUERY_PROTOCOL`.

    Examples
    --------
    >>> from nni_latency.database import open_store
    >>> from nni_latency.measurement.runtimes import TorchEager
    >>> machines = LocalMachines([TorchEager()])
    >>> query = LatencyQuery(open_store("memory"), machines=machines)
    >>> [platform] = query.platforms()
    >>> query.ask("relu()@1x8:float32", platform).source  # doctest: +SKIP
    'measurement'
    """

    def __init__(
        self,
        store: Store,
        *,
        machines: Machines | None = None,
        predictors: Mapping[str, Predictor] | None = None,
        protocol: Protocol | None = None,
    ) -> None:
        self.store = store
        self.machines: Machines = LocalMachines([]) if machines is None else machines
        self.predictors = dict(predictors or {})
        self.protocol = protocol or QUERY_PROTOCOL

    def __repr__(self) -> str:
        return f"LatencyQuery({self.store!r})"

    def platforms(self) -> list[str]:
        """Return the sorted ids of all platforms with records, machines or predictors."""
        found = [*self.store.platforms(), *self.machines.platforms()]
        found += [platform for predictor in self.predictors.values() for platform in platforms_of(predictor)]
        return sorted({platform.id for platform in found})

    def measures_on(self, platform: str) -> bool:
        """Whether a machine of a platform is available now."""
        return any(item.id == platform for item in self.machines.platforms())

    def ask(
        self,
        question: object,
        platform: str,
        *,
        measure: Measure = "if-unsure",
        within: float = 0.1,
        on_progress: Callable[[Progress], None] = lambda _progress: None,
    ) -> Answer:
        """Answer from a record, a measurement or a prediction.

        Parameters
        ----------
        question : object
            Anything that `Question.of` accepts.
        platform : str
            Id of the platform.
        measure : {"always", "if-unsure", "never"}, default="if-unsure"
            When to measure a latency without a record: always; if half the width of the predicted interval exceeds
            `within` or there is no prediction; or never.
        within : float, default=0.1
            Tolerance as a fraction of the prediction.
        on_progress : callable, optional
            Called with a `nni_latency.measurement.Progress` during the measurement.

        Returns
        -------
        Answer

        Raises
        ------
        InvalidValueError
            If the question is invalid, or an option is out of range.
        MissingEntryError
            If the latency has no record and can be neither measured nor predicted; the message gives the reason.
        MeasurementError
            If the network cannot be run for the measurement.
        OutputError
            If the measurement cannot be stored.
        """
        check_measure(measure)
        if not 0 < within <= 1:
            raise InvalidValueError(f"'within' must be a share above 0 and at most 1. Got {within!r}.")
        asked = Question.of(question)
        known = self.known(asked.key, platform)
        if known is not None and not known.remarks:
            return known
        predicted = None if measure == "always" else known or self.predict(asked, platform)
        if predicted is not None and (measure == "never" or (known is None and predicted.spread <= within)):
            return predicted
        if measure == "never" or asked.build is None or not self.measures_on(platform):
            return self._unmeasured(asked, platform, measure, predicted)
        try:
            return self._measure(asked, platform, on_progress)
        except MeasurementError as error:
            if predicted is None:
                raise
            return replace(predicted, remarks=(*predicted.remarks, f"It was not measured: {error}"))

    def known(self, key: str, platform: str) -> Answer | None:
        """Return the recorded latency; None if there is no record.

        If a machine of the platform is available, records of a different state of the platform, such as another version
        of the runtime, carry a remark.
        """
        return self.known_all([(key, platform)])[0]

    def known_all(self, asked: Sequence[tuple[str, str]]) -> list[Answer | None]:
        """Return the result of `known` for each pair of key and platform, in few store queries."""
        here = {item.id: item for item in self.machines.platforms()}
        found = self.store.known_all([(key, here.get(platform, platform)) for key, platform in asked])
        answers = [None if known is None else Answer.of_known(known) for known in found]
        changed = [place for place, answer in enumerate(answers) if answer is None and asked[place][1] in here]
        if changed:
            older = self.store.known_all([asked[place] for place in changed])
            for place, known in zip(changed, older, strict=True):
                if known is not None:
                    differences = "; ".join(known.platform.differences(here[asked[place][1]]))
                    remark = f"It was measured before the platform changed: {differences}."
                    answers[place] = replace(Answer.of_known(known), remarks=(remark,))
        return answers

    def predict(self, question: Question, platform: str) -> Answer | None:
        """Return the prediction of the first predictor that supports the platform; None without a prediction."""
        if question.graph is None:
            return None
        for name, predictor in sorted(self.predictors.items(), key=lambda item: _comes_later(item[1], question)):
            if any(item.id == platform for item in platforms_of(predictor)):
                try:
                    estimate = _estimate(predictor, question, platform)
                except (LatencyError, ArithmeticError, LookupError, TypeError, ValueError):
                    # Operators of an untrusted file may have any attributes.
                    continue
                if estimate is not None and estimate.value > 0:
                    estimate = _with_precision(estimate, question, platform)
                    return Answer.of_estimate(
                        estimate, key=question.key, platform=platform, predictor=name, version=__version__
                    )
        return None

    def _unmeasured(self, asked: Question, platform: str, measure: str, predicted: Answer | None) -> Answer:
        """Return a prediction wider than requested, or raise with the reason for no answer."""
        reason = self._why_not_measured(asked, platform, measure)
        if predicted is not None:
            doubts = () if predicted.remarks else (f"The interval is wide. {reason}",)
            return replace(predicted, remarks=(*predicted.remarks, *doubts))
        platforms = self.platforms()
        if platform not in platforms:
            there = listed(platforms) or "none"
            raise MissingEntryError(f"Nothing is known of the platform {platform!r}. Available: {there}.")
        raise MissingEntryError(f"The latency of {asked.name or asked.key!r} on {platform} is not known. {reason}")

    def _why_not_measured(self, asked: Question, platform: str, measure: str) -> str:
        if measure == "never":
            return "No predictor knows it, and nothing is measured with measure='never'."
        if asked.build is None:
            return "It was asked for by its key alone. Send the network itself, so that it can be measured."
        places = [item.id for item in self.machines.platforms()]
        return f"No machine that measures on this platform is there; those that measure: {listed(places) or 'none'}."

    def _measure(self, asked: Question, platform: str, on_progress: Callable[[Progress], None]) -> Answer:
        benches = self.machines.benches(platform)
        was_measured = self._run(asked, benches, on_progress)
        known = self.store.known(asked.key, benches.platform)
        if known is None:
            raise MeasurementError(f"The measurement of {asked.name!r} on {platform} gave no latency.")
        return Answer.of_known(known, "measurement" if was_measured else "record")

    def _run(self, asked: Question, benches: Benches, on_progress: Callable[[Progress], None]) -> bool:
        """Measure unless the store has the record; return whether anything was measured."""
        protocol = replace(self.protocol, threads=benches.platform.threads)
        header = CampaignHeader(KIND, {"subject": asked.key}, benches.platform, protocol)
        subject = asked.subject()
        for fresh in (False, True):
            with self.store.campaign(header, fresh=fresh, wait=_LONGEST_WAIT) as log:
                if log.failures and not fresh:
                    # Retry failed entries.
                    continue
                before = len(log.records)
                schedule = NetworkSchedule([subject], protocol, isolated=benches.isolated, kind=KIND)
                try:
                    Campaign(schedule, benches, log, on_progress=on_progress).run()
                except MeasurementError as error:
                    reason = next((failure.reason for failure in log.failures), str(error)).rstrip(".")
                    raise MeasurementError(
                        f"{asked.name or asked.key!r} cannot be measured on {benches.platform.id}: {reason}."
                    ) from error
                return len(log.records) > before
        raise AssertionError(asked.key)


def _comes_later(predictor: Predictor, question: Question) -> bool:
    """Whether a predictor comes after the kernel predictors."""
    return question.kind == "kernel" and not isinstance(predictor, KernelPredictors)


def platforms_of(predictor: Predictor) -> tuple[Platform, ...]:
    """Return the platforms that a predictor supports."""
    return tuple(predictor.platforms_) if isinstance(predictor, GraphPredictor) else (predictor.platform,)


def _estimate(predictor: Predictor, question: Question, platform: str) -> Estimate | None:
    """Call a predictor with its input format."""
    if isinstance(predictor, KernelPredictors):
        return Estimate.of(predictor.estimate_kernel(Kernel.parse(question.key))) if question.kind == "kernel" else None
    if isinstance(predictor, GraphPredictor):
        assert question.graph is not None, question
        return predictor.estimate_platforms(question.graph)[platform]
    if not isinstance(predictor, Estimator) or predictor.metric != "latency":
        return None
    if isinstance(question.source, OpSpec):
        return predictor.estimate_op(question.source) if isinstance(predictor, LayerEstimator) else None
    if question.source is None or (isinstance(question.source, str) and not predictor.reads_onnx):
        return None
    estimator: Estimator = predictor
    return estimator.estimate(question.source, question.example_inputs)


def _with_precision(estimate: Estimate, question: Question, platform: str) -> Estimate:
    """Add remarks if the precision of the network differs from that of the platform."""
    assert question.graph is not None, question
    remarks = precision_remarks((item.op for item in question.graph.operators), Platform.parse(platform).precision)
    return replace(estimate, missing=(*estimate.missing, *remarks))
