# SPDX-License-Identifier: Apache-2.0
"""HTTP interface of a `LatencyService`, built with FastAPI."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nni_latency.database import DatabaseStore, count_stored
from nni_latency.documents import json_text
from nni_latency.errors import InvalidValueError, LatencyError, MissingEntryError
from nni_latency.operators import InputShape
from nni_latency.units import number_of
from nni_latency.version import __version__
from nni_latency_service._jobs import Job
from nni_latency_service._keys import ApiKey, ApiKeys, Role
from nni_latency_service._known import KnownAnswers
from nni_latency_service._limits import RateLimiter
from nni_latency_service._lists import OFFSET, page_limit, page_of, register_lists
from nni_latency_service._metrics import ServiceMetrics
from nni_latency_service._page import register_page
from nni_latency_service._refusals import (
    REFUSALS,
    RefusedError,
    internal_error,
    refused,
    register_errors,
    sentence_of,
    too_many,
)
from nni_latency_service._requests import (
    FILE,
    Asked,
    BulkRequest,
    ComparisonRequest,
    NetworkRequest,
    QueryRequest,
    answers,
    body_of,
    takes,
)
from nni_latency_service._service import LatencyService
from nni_latency_service.query import Answer, Question

#: Host names under which a browser on the same machine reaches the service.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

#: What may stand in a request for a host name without its port; a domain with all that lie in it, and any.
_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")

#: Polling interval of a job whose progress is streamed [s], and the longest duration of a stream [s].
_INTERVAL, _LONGEST = 0.25, 3600.0

#: Content types of requests; browsers send these across sites only after a CORS preflight.
_JSON, _ONNX = "application/json", "application/octet-stream"

_INPUTS = Query(
    default=None, alias="input", description="shape of an input: 1,3,224,224, words=16:int64, state=2,N,128"
)

#: Content type of server-sent events.
_EVENTS = "text/event-stream"

#: The alternative response to a query.
_QUEUED: dict[int | str, dict[str, Any]] = {202: {"description": "The job that measures it."}}

#: Caller of a service without keys.
_ANYBODY = ApiKey("anybody", "admin", "")


def make_app(service: LatencyService, keys: ApiKeys | None = None, hosts: Sequence[str] = ()) -> FastAPI:
    """Return the FastAPI application of a service.

    Parameters
    ----------
    service : LatencyService
        The service.
    keys : ApiKeys, optional
        API keys of the callers. Without keys, every caller that uses a host name of this machine has full access.
    hosts : sequence of str
        Accepted host names besides those of this machine. With keys and no names, every host name is accepted.

    Returns
    -------
    FastAPI

    Raises
    ------
    InvalidValueError
        If a host name is none.
    """
    wrong = next((name for name in hosts if not _HOST.fullmatch(name)), None)
    if wrong is not None:
        raise InvalidValueError(
            f"'hosts' must be host names without a port, such as latency.example.org or *.example.org. Got {wrong!r}."
        )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.reader.start()
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="nni_latency",
        version=__version__,
        description="Ask for the latency of a network on a platform.",
        lifespan=lifespan,
        openapi_url="/openapi.json",
        responses=REFUSALS,
        docs_url=None,
        redoc_url=None,
    )
    named = (*_LOCAL_NAMES, *hosts) if keys is None or hosts else ("*",)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(named))
    _Interface(service, keys).register(app)
    return app


@dataclass
class _Caller:
    """Key and address of a caller."""

    key: ApiKey
    address: str


class _Interface:
    """The routes of an application."""

    def __init__(self, service: LatencyService, keys: ApiKeys | None) -> None:
        self._service, self._keys = service, keys
        self._metrics = ServiceMetrics(service)
        self._known = KnownAnswers(service.known_all)
        limits = service.limits
        self._requests = RateLimiter(limits.rate, limits.burst)
        self._uploads = RateLimiter(limits.uploads, 50 * limits.uploads)

    def register(self, app: FastAPI) -> None:
        """Add the routes and the middleware."""
        register_errors(app)
        app.add_middleware(_Middleware, metrics=self._metrics, limiter=self._requests)
        read, measure, admin = (Depends(self._allowing(role)) for role in ("read", "measure", "admin"))
        self._register_questions(app, read)
        self._register_service(app, read, admin)
        register_lists(app, self._service, read)
        self._register_jobs(app, read, measure)
        register_page(app)

    def _register_questions(self, app: FastAPI, read: Any) -> None:
        service = self._service

        @app.get("/v1/latency", tags=["questions"])
        async def latency(
            platform: str = Query(max_length=300), key: str = Query(max_length=4000), _: _Caller = read
        ) -> Response:
            """Return the recorded latency of a key; 404 if there is no record."""
            answer = await self._known.ask(key, platform)
            if answer is None:
                raise MissingEntryError(f"No latency of {key[:80]!r} on {platform!r} is recorded.")
            return JSONResponse(answer.content())

        @app.post("/v1/networks", tags=["questions"], openapi_extra=body_of(_ONNX, FILE))
        async def networks(
            request: Request,
            name: str = Query(default="network.onnx", max_length=200),
            batch_size: int | None = Query(default=None, ge=1, le=2**20),
            inputs: list[str] | None = _INPUTS,
            caller: _Caller = read,
        ) -> Response:
            """Read an ONNX file from the request body and return its key."""
            content = await self._body(request, _ONNX)
            self._charge_upload(caller)
            shapes = [InputShape.parse(text) for text in inputs] if inputs else None
            found = await run_in_threadpool(service.read, content, name, shapes, batch_size)
            return JSONResponse(service.describe(found))

        @app.post("/v1/query", tags=["questions"], openapi_extra=takes(QueryRequest), responses=_QUEUED)
        async def query(request: Request, caller: _Caller = read) -> Response:
            """Answer a query: 200 with an answer, or 202 with the job that measures it."""
            asked = await self._model(request, QueryRequest)
            return await run_in_threadpool(self._answer, asked, caller)

        @app.post("/v1/queries", tags=["questions"], openapi_extra=takes(BulkRequest))
        async def queries(request: Request, caller: _Caller = read) -> Response:
            """Answer several queries, each with an answer, a job or an error."""
            asked = await self._model(request, BulkRequest)
            if len(asked.questions) > service.limits.bulk:
                raise InvalidValueError(
                    f"A request may ask {number_of(service.limits.bulk, 'question')}. Got {len(asked.questions)}."
                )
            wait = self._requests.wait(_client(caller), len(asked.questions))
            if wait:
                raise too_many(wait)
            self._charge_upload(caller, sum(question.onnx is not None for question in asked.questions))
            return await run_in_threadpool(self._answers, asked, caller)

        @app.post("/v1/compare", tags=["questions"], openapi_extra=takes(ComparisonRequest))
        async def compare(request: Request, _: _Caller = read) -> Response:
            """Answer a query for all platforms without measuring."""
            asked = await self._model(request, ComparisonRequest)
            return await run_in_threadpool(self._everywhere, asked.key)

        @app.get("/v1/operators", tags=["questions"])
        def operators(
            platform: str = Query(max_length=300),
            key: str = Query(max_length=4000),
            most: int = Query(default=20, ge=1, le=500),
            _: _Caller = read,
        ) -> Response:
            """Return the most expensive operators of a network according to a predictor."""
            return JSONResponse({"operators": service.explain(service.question(key), platform, most)})

    def _register_service(self, app: FastAPI, read: Any, admin: Any) -> None:
        service = self._service

        @app.get("/health", tags=["service"])
        def health() -> Response:
            """Return whether the database is reachable."""
            service.query.store.platforms()
            return JSONResponse({"status": "ok", "version": app.version})

        @app.get("/metrics", tags=["service"], response_class=Response, responses=answers(CONTENT_TYPE_LATEST))
        def metrics(_: _Caller = read) -> Response:
            """Return metrics in the Prometheus format."""
            return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

        @app.get("/v1/database", tags=["service"])
        def database(_: _Caller = admin) -> Response:
            """Return the number of stored rows of each kind in the database."""
            store = service.query.store
            counts = count_stored(store.database) if isinstance(store, DatabaseStore) else {}
            return JSONResponse(counts)

    def _register_jobs(self, app: FastAPI, read: Any, measure: Any) -> None:
        service, limit = self._service, page_limit(self._service)

        @app.get("/v1/jobs", tags=["jobs"])
        def jobs(limit: int = limit, offset: int = OFFSET, _: _Caller = read) -> Response:
            """Return jobs, newest first."""
            return JSONResponse(page_of([job.content() for job in service.jobs.all()], limit, offset))

        @app.get("/v1/jobs/{job}", tags=["jobs"])
        def job(job: str, _: _Caller = read) -> Response:
            """Return one job."""
            return JSONResponse(service.jobs.find(job).content())

        @app.delete("/v1/jobs/{job}", tags=["jobs"])
        def cancel(job: str, caller: _Caller = measure) -> Response:
            """Cancel a queued job. Callers may cancel their own jobs, the role admin any job."""
            if not (caller.key.allows("admin") or service.jobs.find(job).owner == caller.key.name):
                raise RefusedError(403, "Only who asked for a job, or an administrator, may cancel it.")
            return JSONResponse(service.jobs.cancel(job).content())

        @app.get("/v1/jobs/{job}/events", tags=["jobs"], response_class=Response, responses=answers(_EVENTS))
        async def events(job: str, _: _Caller = read) -> Response:
            """Stream the progress of a job as server-sent events."""
            found = service.jobs.find(job)
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return StreamingResponse(_stream_events(found), media_type=_EVENTS, headers=headers)

    def _answer(self, asked: QueryRequest, caller: _Caller) -> Response:
        if asked.onnx is not None:
            self._charge_upload(caller)
        found = self._ask(asked, asked.platform, asked, caller)
        if isinstance(found, Job):
            return JSONResponse({"answer": None, "job": found.content()}, 202)
        return JSONResponse({"answer": found.content(), "job": None})

    def _answers(self, asked: BulkRequest, caller: _Caller) -> Response:
        results: list[dict[str, Any]] = []
        for question in asked.questions:
            try:
                found = self._ask(question, asked.platform, asked, caller)
            except LatencyError as error:
                results.append({"answer": None, "job": None, "error": str(error)})
            else:
                results.append(
                    {"answer": None, "job": None, "job" if isinstance(found, Job) else "answer": found.content()}
                )
        return JSONResponse({"results": results})

    def _ask(self, network: NetworkRequest, platform: str, asked: Asked, caller: _Caller) -> Answer | Job:
        if network.key is not None:
            known = self._service.known(network.key, platform)
            if known is not None and not known.remarks:
                return known
        question = self._question(network)
        may = caller.key.allows("measure")
        return self._service.ask(question, platform, asked.measure, asked.within, caller.key.name, may_measure=may)

    def _question(self, network: NetworkRequest) -> Question:
        if network.onnx is None:
            if network.key is None:
                raise InvalidValueError("A question needs 'key' or 'onnx'. Got neither.")
            return self._service.question(network.key)
        try:
            content = base64.b64decode(network.onnx, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidValueError("The field 'onnx' must be a file in base64.") from error
        return self._service.read(content, network.name)

    def _everywhere(self, key: str) -> Response:
        question, answers = self._service.question(key), []
        for platform in self._service.query.platforms():
            try:
                found = self._service.ask(question, platform, "never", 0.1, "", may_measure=False)
            except LatencyError:
                continue
            assert isinstance(found, Answer)
            answers.append(found.content())
        content = {**self._service.describe(question), "answers": sorted(answers, key=lambda item: item["value"])}
        return JSONResponse(content)

    async def _body(self, request: Request, kind: str) -> bytes:
        """Return the body of a request; raise if it is too large or of another content type."""
        found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != kind:
            raise RefusedError(415, f"The content type must be {kind!r}. Got {found[:60]!r}.")
        most = self._service.limits.body
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise RefusedError(413, f"A request may have {most / 2**20:g} MiB. Send the network without weights.")
            parts.append(part)
        return b"".join(parts)

    async def _model(self, request: Request, model: Any) -> Any:
        content = await self._body(request, _JSON)
        try:
            return await run_in_threadpool(model.model_validate_json, content)
        except ValueError as error:
            raise RefusedError(422, sentence_of(error)) from error

    def _charge_upload(self, caller: _Caller, count: int = 1) -> None:
        wait = self._uploads.wait(_client(caller), count) if count else 0.0
        if wait:
            raise too_many(wait)

    def _allowing(self, role: Role) -> Callable[[Request], Awaitable[_Caller]]:
        # Async, because a thread would take longer than the work.
        async def allowed(request: Request) -> _Caller:
            address = request.client.host if request.client else ""
            if self._keys is None:
                return _Caller(_ANYBODY, address)
            scheme, _, text = request.headers.get("authorization", "").partition(" ")
            given = text.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
            key = self._keys.find(given) if given else None
            if key is None:
                reason = "This API key is not known." if given else "Give an API key: 'Authorization: Bearer KEY'."
                raise RefusedError(401, reason, {"WWW-Authenticate": "Bearer"})
            if not key.allows(role):
                raise RefusedError(403, f"This needs an API key with the role {role!r}. This one has {key.role!r}.")
            return _Caller(key, address)

        return allowed


class _Middleware:
    """Middleware of all requests: limits the rate, records metrics and hides internal errors."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, limiter: RateLimiter) -> None:
        self._app, self._metrics, self._limiter = app, metrics, limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        with self._metrics.request() as count:
            wait = self._limiter.wait((scope.get("client") or ("",))[0])
            try:
                if wait:
                    await refused(too_many(wait))(scope, receive, send_safely)
                else:
                    await self._app(scope, receive, send_safely)
            except Exception:  # any failure is reported to the client as one sentence
                response = internal_error()
                if not status:
                    await response(scope, receive, send_safely)
            count(status)


async def _stream_events(job: Job) -> AsyncIterator[str]:
    """Yield an event whenever a job changes, until it ends."""
    sent, waited = -1, 0.0
    while waited < _LONGEST:
        version, over = job.version, job.is_over
        # A job that is over may be about to get its last version.
        if version != sent or over:
            yield f"event: {'end' if over else 'progress'}\ndata: {json_text(job.content())}\n\n"
            sent = version
        if over:
            return
        await asyncio.sleep(_INTERVAL)
        waited += _INTERVAL


def _client(caller: _Caller) -> str:
    return caller.address if caller.key is _ANYBODY else f"key {caller.key.name}"
