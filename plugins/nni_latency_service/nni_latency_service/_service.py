# SPDX-License-Identifier: Apache-2.0
"""`LatencyService`: the service without its transport."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nni_latency.database import DatabaseStore, PlatformDrift, platform_drift
from nni_latency.errors import InvalidValueError, LatencyError, MissingEntryError
from nni_latency.graphs import GraphPredictor
from nni_latency.learning import current_versions, evolve, load_version
from nni_latency.operators import OP_KEY, InputShape, count_graph, features_of, parse_op_keys
from nni_latency.units import whole_number
from nni_latency_service._jobs import Job, JobQueue
from nni_latency_service._limits import ServiceLimits
from nni_latency_service._reader import OnnxReader
from nni_latency_service.query import Answer, LatencyQuery, Measure, Question, platforms_of

_LOG = logging.getLogger(__name__)

#: Lifetime of the cached drift of a platform [s].
_DRIFT_HOLDS = 60.0

#: Largest number of elements of the inputs, and of the weights, of a single operator or kernel.
_MOST_ALONE = 2**25


class LatencyService:
    """Answers queries and queues measurements. Thread-safe.

    Parameters
    ----------
    query : LatencyQuery
        Answers the queries.
    limits : ServiceLimits, optional
        Limits of the service.

    Attributes
    ----------
    jobs : JobQueue
        Requested measurements.
    sources : Counter
        Number of answers by source.
    """

    def __init__(self, query: LatencyQuery, limits: ServiceLimits | None = None) -> None:
        self.query = query
        self.limits = limits or ServiceLimits()
        self.jobs = JobQueue(self.limits.queue, self.limits.kept, self.limits.patience)
        self.reader = OnnxReader(self.limits)
        self.sources: Counter[str] = Counter()
        self.began = time.time()
        self._questions: OrderedDict[str, Question] = OrderedDict()
        self._versions: dict[str, int] = {}
        self._drift: dict[str, tuple[float, PlatformDrift]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop the background work."""
        self._closed.set()
        # Before the machines leave, or a job that fails because of that would be queued again.
        self.jobs.stop()
        # Before the jobs are waited for, so that none waits for a machine of a farm.
        self.query.machines.close()
        self.jobs.close()
        self.reader.close()

    def read(
        self, content: bytes, name: str, shapes: list[InputShape] | None = None, batch: int | None = None
    ) -> Question:
        """Read a network and keep it for queries by key.

        Raises
        ------
        InvalidValueError
            If it cannot be read, or exceeds the limits.
        """
        found: Question = self.reader.read(content, name, shapes, batch)
        with self._lock:
            self._questions.pop(found.key, None)
            self._questions[found.key] = found
            while len(self._questions) > self.limits.kept:
                self._questions.popitem(last=False)
        return found

    def question(self, key: str) -> Question:
        """Return the question of a key: a network read before, an operator or a kernel.

        Raises
        ------
        InvalidValueError, UnknownNameError
            If the key is invalid or unknown.
        """
        found = self._questions.get(key)
        if found is not None:
            return found
        if key.endswith(".onnx"):
            raise InvalidValueError(f"A key is no path. Send the content of the file instead. Got {key[:80]!r}.")
        self._check_size(key)
        return Question.of(key)

    def _check_size(self, key: str) -> None:
        """Reject an operator or a kernel that is too large to build in this process."""
        sizes = [_MOST_ALONE + 1 if size is None else size for size in map(whole_number, re.findall(r"\d+", key))]
        if OP_KEY.fullmatch(key):
            features = features_of(parse_op_keys(key)[0])
            largest = max(features.params, features.inputs, features.outputs)
        else:
            largest = math.prod(sorted(sizes)[-2:]) if "(" in key else 0
        if largest > _MOST_ALONE or any(size > _MOST_ALONE for size in sizes if "(" in key):
            raise InvalidValueError(
                f"An operator or a kernel may have {_MOST_ALONE} numbers in its inputs and weights. Got {key[:80]!r}."
            )

    def known(self, key: str, platform: str) -> Answer | None:
        """Return the recorded latency of a key."""
        return self.known_all([(key, platform)])[0]

    def known_all(self, asked: Sequence[tuple[str, str]]) -> list[Answer | None]:
        """Return the recorded latency of each pair of key and platform."""
        answers = self.query.known_all(asked)
        self.sources["record"] += sum(answer is not None for answer in answers)
        return answers

    def ask(
        self, question: Question, platform: str, measure: Measure, within: float, owner: str, *, may_measure: bool
    ) -> Answer | Job:
        """Answer immediately, or queue a measurement.

        Raises
        ------
        LatencyError
            As `LatencyQuery.ask` does.
        BusyError
            If the queue is full.
        """
        answer, reason = None, ""
        try:
            answer = self.query.ask(question, platform, measure="never", within=within)
        except MissingEntryError as error:
            reason = str(error)
        wanted = self._is_wanted(answer, measure, within)
        if wanted and may_measure and question.build is not None and self.query.measures_on(platform):
            return self.jobs.submit(
                question.key,
                question.name,
                platform,
                owner,
                lambda report: self._measured(question, platform, measure, within, report),
                lambda: self.query.measures_on(platform),
            )
        if answer is None or (measure == "always" and answer.source == "prediction"):
            if measure == "never":
                raise MissingEntryError(reason)
            refused = "The API key does not allow measuring." if not may_measure else self._refusal(question, platform)
            raise MissingEntryError(f"The latency of {question.name!r} on {platform!r} is not known. {refused}")
        if wanted and not answer.remarks:
            answer = replace(answer, remarks=("The interval is wide, and nothing was measured.",))
        self.sources[answer.source] += 1
        return answer

    def _is_wanted(self, answer: Answer | None, when: Measure, within: float) -> bool:
        """Whether the query asks for a measurement."""
        if when == "never" or (answer is not None and answer.source == "record" and not answer.remarks):
            return False
        if answer is None or when == "always" or answer.source == "record":
            return True
        return answer.spread > within

    def _refusal(self, question: Question, platform: str) -> str:
        if question.build is None:
            return "Only its key was sent. Send the network itself, so that it can be predicted or measured."
        places = ", ".join(item.id for item in self.query.machines.platforms()) or "none"
        return f"Nothing measures on this platform. Those that are measured on: {places}."

    def _measured(self, question: Question, platform: str, when: Measure, within: float, report: Any) -> Answer:
        answer = self.query.ask(question, platform, measure=when, within=within, on_progress=report)
        self.sources[answer.source] += 1
        return answer

    def describe(self, question: Question) -> dict[str, Any]:
        """Return the platform-independent description of a network: its operators and their work."""
        found: dict[str, Any] = {"key": question.key, "kind": question.kind, "name": question.name}
        if question.graph is not None:
            features = count_graph(question.graph).features
            found |= {"operators": len(question.graph.operators), "macs": features.macs, "params": features.params}
        return found

    def explain(self, question: Question, platform: str, most: int) -> list[dict[str, Any]]:
        """Return the most expensive operators on a platform according to a graph predictor.

        Raises
        ------
        MissingEntryError
            If the network is unknown, or no graph predictor supports the platform.
        """
        if question.graph is None:
            raise MissingEntryError("Only the key of the network is known. Send the network itself.")
        for name, predictor in self.query.predictors.items():
            if isinstance(predictor, GraphPredictor) and platform in [item.id for item in predictor.platforms_]:
                try:
                    costs = predictor.explain(question.graph, platform)
                except (LatencyError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                    # Operators of an untrusted file may have any attributes.
                    raise MissingEntryError(f"{name!r} cannot tell what the operators cost.") from error
                costs = sorted(costs, key=lambda item: item.seconds, reverse=True)[:most]
                fields = ("name", "op_key", "seconds", "share")
                return [{field: getattr(item, field) for field in fields} for item in costs]
        raise MissingEntryError(f"No graph predictor knows the platform {platform!r}.")

    def evolve_every(self, interval: float) -> None:
        """Retrain the predictors from the database periodically in the background, and use the current versions.

        Parameters
        ----------
        interval : float
            Time between two attempts [s].
        """
        if isinstance(self.query.store, DatabaseStore):
            threading.Thread(target=self._evolve, args=(self.query.store, interval), daemon=True).start()

    def _evolve(self, store: DatabaseStore, interval: float) -> None:
        while not self._closed.wait(interval):
            try:
                for found in evolve(store):
                    _LOG.info("%s: %s", found.name, found.reason)
                self.take_current()
            except Exception:  # a failure must not end the background training
                _LOG.exception("Learning from the database failed.")

    def take_current(self) -> None:
        """Replace outdated predictors by the current versions in the database.

        Raises
        ------
        FileFormatError
            If the file of a predictor is damaged.
        """
        store = self.query.store
        if not isinstance(store, DatabaseStore):
            return
        for version in current_versions(store):
            if self._versions.get(version.name) != version.number:
                self.take_predictor(version.name, load_version(store, version.number))
                self._versions[version.name] = version.number

    def take_predictor(self, name: str, predictor: Any) -> None:
        """Give a predictor precedence over all others; it replaces one of the same name."""
        others = {key: value for key, value in self.query.predictors.items() if key != name}
        self.query.predictors = {name: predictor, **others}

    def drift(self, platform: str) -> PlatformDrift:
        """Return the speed of a platform over time, cached for at most a minute."""
        store = self.query.store
        if not isinstance(store, DatabaseStore):
            return PlatformDrift(platform)
        at, found = self._drift.get(platform, (-math.inf, PlatformDrift(platform)))
        if time.monotonic() - at > _DRIFT_HOLDS:
            found = platform_drift(store.database, platform)
            self._drift[platform] = time.monotonic(), found
        return found

    def predictors(self) -> list[dict[str, Any]]:
        """Return the predictors and their platforms."""
        found = []
        for name, predictor in self.query.predictors.items():
            ids = [platform.id for platform in platforms_of(predictor)]
            found.append({"name": name, "kind": type(predictor).__name__, "platforms": ids})
        return found
