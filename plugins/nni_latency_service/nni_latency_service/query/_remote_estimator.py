# SPDX-License-Identifier: Apache-2.0
"""`RemoteEstimator`: estimator backed by a latency service."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency_service.query._answer import Measure, check_measure
from nni_latency_service.query._client import LatencyClient
from nni_latency_service.query._question import Question


class RemoteEstimator(NetworkEstimator):
    """Network-level estimator that queries a service for a record, a measurement or a prediction.

    Answers are cached, so a search queries every network once; `estimate_all` and `measure` query several networks in
    one request.

    Parameters
    ----------
    client : LatencyClient
        Client of the service.
    platform : Platform or str
        The platform, or its id.
    measure : {"always", "if-unsure", "never"}, default="if-unsure"
        When the service measures a latency without a record.
    within : float, default=0.1
        As for `LatencyQuery.ask`.
    """

    metric = "latency"
    reads_onnx = True
    #: Batch size of `nni_latency.estimators.distil`.
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
        """Create an estimator from ``URL#PLATFORM`` or ``URL#PLATFORM,MEASURE``, the argument of ``service``.

        Raises
        ------
        InvalidValueError
            If the argument has another format.

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
        """Query the latency of a network, unless it is cached.

        Raises
        ------
        ServiceError
            If the service does not answer or rejects the request.
        MissingEntryError, MeasurementError
            If the service has no answer.
        InvalidValueError
            If the model and the inputs do not match.
        """
        return self.estimate_all([(model, example_inputs)])[0]

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Query the latency of a single operator."""
        return self.estimate(op)

    def estimate_all(self, networks: Iterable[tuple[Any, Any]]) -> list[Estimate]:
        """Query several networks at once; raises as `estimate`."""
        asked = [Question.of(model, inputs) for model, inputs in networks]
        with self._lock:
            new = {item.key: item for item in asked if item.key not in self._known}
        answers = self.client.query_all(
            list(new.values()), self.platform.id, measure=self.measure_when, within=self.within
        )
        for key, answer in zip(new, answers, strict=True):
            if isinstance(answer, LatencyError):
                raise answer
            self._known[key] = Estimate(answer.value, answer.low, answer.high, answer.missing)
        return [self._known[item.key] for item in asked]
