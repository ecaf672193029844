# SPDX-License-Identifier: Apache-2.0
"""`LatencyClient`: client of a latency service."""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError, MissingEntryError
from nni_latency.units import number_of
from nni_latency_service.query._answer import Answer, Measure, check_measure
from nni_latency_service.query._question import Question

#: Environment variable with the default API key.
KEY_VARIABLE = "NNI_LATENCY_API_KEY"

#: Queries per request.
BULK = 64

#: Attempts at a request that is rate-limited or whose connection was closed.
_ATTEMPTS = 5


class ServiceError(LatencyError, RuntimeError):
    """Raised when a service does not answer or rejects a request; the message gives the reason.

    Attributes
    ----------
    status : int
        HTTP status; 0 without a response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class LatencyClient:
    """Queries a service for latencies. Thread-safe.

    A network is sent without its weights, and only if it is unknown to the service.

    Parameters
    ----------
    url : str
        URL of the service, such as ``http://127.0.0.1:8765``.
    key : str, optional
        API key; by default the value of the environment variable ``NNI_LATENCY_API_KEY``.
    timeout : float, default=60.0
        Timeout of a response [s]; measurements may take longer.

    Raises
    ------
    InvalidValueError
        If the URL or the key is invalid.

    Examples
    --------
    >>> client = LatencyClient("http://127.0.0.1:8765")
    >>> client.query("net.onnx", "epyc-7763.onnxruntime.fp32.t1").value  # doctest: +SKIP
    0.00312
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
            # Fails for a host name that cannot be looked up, such as one with an empty label.
            (parts.hostname or "").encode("idna")
            parts.path.encode("ascii")
        except ValueError as error:
            raise _no_url(url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise _no_url(url)
        self.url = url.rstrip("/")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = parts.path.rstrip("/")
        # Files of keys end with a line feed.
        self._key = (key if key is not None else os.environ.get(KEY_VARIABLE, "")).strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InvalidValueError(
                "An API key must be printable ASCII characters, as 'nni-latency serve keys add' prints them. Check "
                f"the key, or the variable {KEY_VARIABLE}."
            )
        self._timeout = timeout
        # Idle connections; a connection in use belongs to its thread.
        self._free: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close, self._free)

    def __repr__(self) -> str:
        return f"LatencyClient({self.url!r})"

    def query(
        self,
        question: object,
        platform: str,
        *,
        example_inputs: Any = None,
        measure: Measure = "if-unsure",
        within: float = 0.1,
        wait: bool = True,
        on_progress: Callable[[float], None] = lambda _share: None,
    ) -> Answer:
        """Query a latency; wait for the measurement if there is one.

        Parameters
        ----------
        question, example_inputs : object
            As `Question.of` takes them.
        platform : str
            Id of the platform.
        measure, within
            As for `LatencyQuery.ask`.
        wait : bool, default=True
            Whether to wait for a measurement. If False, a started measurement raises `MissingEntryError`.
        on_progress : callable, optional
            Called with the completed share during a measurement.

        Raises
        ------
        ServiceError
            If the service does not answer or rejects the request.
        MissingEntryError
            If the latency has no record and can be neither measured nor predicted.
        MeasurementError
            If the network cannot be run for a measurement.
        InvalidValueError
            If the question is invalid.
        """
        check_measure(measure)
        asked = Question.of(question, example_inputs)
        known = self.known(asked.key, platform)
        if known is not None and not known.remarks:
            return known
        body = {**_described(asked), "platform": platform, "measure": measure, "within": within}
        found = self._request("POST", "/v1/query", body)
        return self._settled(found, wait, on_progress)

    def query_all(
        self, questions: Sequence[object], platform: str, *, measure: Measure = "if-unsure", within: float = 0.1
    ) -> list[Answer | LatencyError]:
        """Query several latencies in few requests, and wait for measurements.

        Returns
        -------
        list of Answer or LatencyError
            One item per question, in order; an error where there is no answer.

        Raises
        ------
        ServiceError
            If the service does not answer or rejects the request.
        """
        asked = [Question.of(question) for question in questions]
        results: list[Answer | LatencyError] = []
        for begin in range(0, len(asked), BULK):
            part = asked[begin : begin + BULK]
            body = {
                "platform": platform,
                "measure": measure,
                "within": within,
                "questions": [_described(item) for item in part],
            }
            found = self._part(self._request("POST", "/v1/queries", body), "results", list)
            if len(found) != len(part):
                raise self._not_understood(f"{number_of(len(found), 'result')} for {number_of(len(part), 'question')}")
            # Before the next request: the service keeps a limited number of measurements that wait, or are over.
            results += map(self._result, found)
        return results

    def known(self, key: str, platform: str) -> Answer | None:
        """Return the recorded latency of a key; None if there is no record."""
        words = urllib.parse.urlencode({"key": key, "platform": platform})
        try:
            return self._answer(self._request("GET", f"/v1/latency?{words}"))
        except MissingEntryError:
            return None

    def platforms(self, *, measured: bool = False) -> list[str]:
        """Return the ids of the platforms of the service, or only of those on which it measures."""
        return [
            self._part(item, "id", str)
            for item in self._pages("/v1/platforms")
            if self._part(item, "measures", bool) or not measured
        ]

    def health(self) -> dict[str, Any]:
        """Return the health status of the service."""
        return self._object(self._request("GET", "/health"))

    def job(self, identifier: str) -> dict[str, Any]:
        """Return the state of a job."""
        return self._object(self._request("GET", f"/v1/jobs/{urllib.parse.quote(identifier, safe='')}"))

    def _result(self, item: Any) -> Answer | LatencyError:
        if self._object(item).get("error"):
            return MissingEntryError(str(item["error"]))
        try:
            return self._settled(item, True, lambda _share: None)
        except (MeasurementError, MissingEntryError) as error:
            return error

    def _settled(self, found: Any, wait: bool, on_progress: Callable[[float], None]) -> Answer:
        if self._object(found).get("answer"):
            return self._answer(found["answer"])
        job = self._part(found, "job", dict)
        identifier = self._part(job, "id", str)
        if not wait:
            raise MissingEntryError(f"It is being measured by the job {identifier!r}. Ask again later.")
        pause = 0.1
        while (state := self._part(job, "state", str)) in ("queued", "running"):
            on_progress(self._part(job, "progress", (int, float)))
            time.sleep(pause)
            pause = min(2.0, 1.5 * pause)
            job = self.job(identifier)
        if state != "done":
            raise MeasurementError(job.get("error") or f"The job was {state}.")
        return self._answer(job.get("answer"))

    def _object(self, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise self._not_understood(f"no object, but {type(content).__name__}")
        return content

    def _part(self, content: Any, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a field of a response; raise if it is missing or of the wrong type."""
        value = self._object(content).get(name)
        if not isinstance(value, kind):
            raise self._not_understood(f"no {name!r}" if value is None else f"{name!r} is {type(value).__name__}")
        return value

    def _answer(self, content: Any) -> Answer:
        try:
            return Answer.of_content(content)
        except InvalidValueError as error:
            raise self._not_understood(str(error)) from error

    def _not_understood(self, what: str) -> ServiceError:
        return ServiceError(
            f"{self.url} is no service of nni_latency, or one of another version. Its answer cannot be read: "
            f"{what.rstrip('.')}."
        )

    def _pages(self, path: str) -> Iterator[Any]:
        offset: int | None = 0
        while offset is not None:
            page = self._request("GET", f"{path}?offset={offset}")
            yield from self._part(page, "items", list)
            offset = page.get("next")
            if not isinstance(offset, int | None):
                raise self._not_understood(f"'next' is {type(offset).__name__}")

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for attempt in range(_ATTEMPTS):
            try:
                status, waits, answered = self._send(method, path, content, headers)
            except (OSError, http.client.HTTPException) as error:
                # The server may have closed idle connections.
                if (
                    attempt == 0
                    and isinstance(error, ConnectionError)
                    and not isinstance(error, ConnectionRefusedError)
                ):
                    self.close()
                    continue
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise ServiceError(f"The service {self.url} does not answer: {reason}.") from error
            if status == 429 and attempt < _ATTEMPTS - 1:
                time.sleep(min(30.0, waits))
                continue
            return self._read(status, answered)
        raise AssertionError(path)

    def _send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[int, float, bytes]:
        connection = self._connection()
        try:
            connection.request(method, f"{self._path}{path}", content, headers)
            response = connection.getresponse()
            waits = response.getheader("Retry-After", "1")
            found = response.status, float(waits) if waits.isdecimal() else 1.0, response.read()
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)
        return found

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._free.pop()
        except IndexError:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            return kind(self._host, self._port, timeout=self._timeout)

    def close(self) -> None:
        """Close the connections; they are reopened on demand."""
        _close(self._free)

    def _read(self, status: int, answered: bytes) -> Any:
        try:
            content = json.loads(answered)
        except (ValueError, RecursionError) as error:
            raise ServiceError(
                f"{self.url} is no service of nni_latency: it answers with status {status}, and no JSON.", status
            ) from error
        if status < 400:
            return content
        sentence = content.get("error") if isinstance(content, dict) else None
        if not isinstance(sentence, str):
            raise ServiceError(f"{self.url} is no service of nni_latency: it answers with status {status}.", status)
        if status == 404:
            raise MissingEntryError(sentence)
        if status == 422:
            raise InvalidValueError(sentence)
        raise ServiceError(f"{self.url} refuses: {sentence}", status)


def _close(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _described(asked: Question) -> dict[str, Any]:
    """Return the network, or the key of an operator or kernel, for a request."""
    if not asked.onnx:
        return {"key": asked.key}
    return {"key": asked.key, "onnx": base64.b64encode(asked.onnx).decode(), "name": asked.name[-200:]}


def _no_url(url: str) -> InvalidValueError:
    return InvalidValueError(f"The URL of a service must look like http://127.0.0.1:8765. Got {url[:80]!r}.")
