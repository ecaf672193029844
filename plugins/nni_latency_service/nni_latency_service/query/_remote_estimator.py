"""`RemoteEstimator`: a service as an estimator, for searches."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency_service.query._answer import Answer, Measure, check_measure
from nni_latency_service.query._client import LatencyClient
from nni_latency_service.query._question import Question


class RemoteEstimator(NetworkEstimator):
    """Network-based: a service answers, from a record, a measurement or a prediction.

    What was asked for is remembered, so a search asks for every network once; `estimate_all` and `measure` ask for many
    in one request.

    Parameters
    ----------
    client : LatencyClient
        Of the service.
    platform : Platform or str
        The platform, or its id.
    measure : {"always", "if-unsure", "never"}, default="if-unsure"
        When the service measures what it does not know.
    within : float, default=0.1
        As for `LatencyQuery.ask`.
    """

    metric = "latency"
    reads_onnx = True
    #: Networks that `nni_latency.estimators.distil` asks for at once.
    batch = 64

    def __init__(
        self, client: LatencyClient, platform: Platform | str, *, measure: Measure = "if-unsure", within: float = 0.1
    ) -> None:
        self.client = client
        self.platform = Platform.parse(platform) if isinstance(platform, str) else platform
        self.measure_when, self.within = check_measure(measure), within
        self._known: dict[str, Estimate] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, argument: str) -> RemoteEstimator:
        """Make one of ``URL#PLATFORM`` or ``URL#PLATFORM,MEASURE``, the argument of ``service``.

        Raises
        ------
        InvalidValueError
            If it is not of this form.

        Examples
        --------
        >>> RemoteEstimator.of("http://127.0.0.1:8765#board.onnxruntime.fp32.t1,never").platform.id
        'board.onnxruntime.fp32.t1'
        """
        url, _, rest = argument.partition("#")
        platform, _, measure = rest.partition(",")
        if not (url and platform):
            raise InvalidValueError(
                "The estimator 'service' takes a URL and a platform, as in "
                f"'service:http://127.0.0.1:8765#epyc-7763.onnxruntime.fp32.t1'. Got {argument[:120]!r}."
            )
        return cls(LatencyClient(url), platform, measure=check_measure(measure or "if-unsure"))

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Ask for a network, unless that was done before.

        Raises
        ------
        ServiceError
            If the service does not answer, or refuses.
        MissingEntryError, MeasurementError
            If it has no answer.
        InvalidValueError
            If model and inputs do not fit each other.
        """
        return self.estimate_all([(model, example_inputs)])[0]

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Ask for one operator that runs alone."""
        return self.estimate(op)

    def estimate_all(self, networks: Iterable[tuple[Any, Any]]) -> list[Estimate]:
        """Ask for many networks at once; raises as `estimate`."""
        asked = [Question.of(model, inputs) for model, inputs in networks]
        with self._lock:
            new = {item.key: item for item in asked if item.key not in self._known}
        answers = self.client.query_all(
            list(new.values()), self.platform.id, measure=self.measure_when, within=self.within
        )
        for key, answer in zip(new, answers, strict=True):
            if isinstance(answer, LatencyError):
                raise answer
            self._known[key] = _estimate_of(answer)
        return [self._known[item.key] for item in asked]


def _estimate_of(answer: Answer) -> Estimate:
    return Estimate(answer.value, answer.low, answer.high, answer.missing)
