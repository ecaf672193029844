# SPDX-License-Identifier: Apache-2.0
"""Error responses: JSON with one sentence and no internal details."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from nni_latency.errors import (
    BusyError,
    LatencyError,
    MissingDependencyError,
    MissingEntryError,
    OutputError,
    UnknownNameError,
)

_LOG = logging.getLogger(__name__)

_STATUS: Sequence[tuple[type[LatencyError], int]] = (
    (BusyError, 503),
    (OutputError, 503),
    (MissingDependencyError, 501),
    (MissingEntryError, 404),
    (UnknownNameError, 404),
)


class Refusal(BaseModel):
    """What is answered to a request that is refused."""

    error: str = Field(description="one sentence")
    status: int


#: Error responses for the OpenAPI document.
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "The request is wrong, or not allowed."},
    "5XX": {"model": Refusal, "description": "The service failed, or cannot answer now."},
}


class RefusedError(Exception):
    """Raised when a request is rejected; carries the status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


def register_errors(app: FastAPI) -> None:
    """Convert all exceptions to JSON with one sentence."""

    @app.exception_handler(RefusedError)
    async def refusal(_: Request, error: RefusedError) -> Response:
        return refused(error)

    @app.exception_handler(LatencyError)
    async def latency_error(_: Request, error: LatencyError) -> Response:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
        return _error(status, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return _error(422, sentence_of(error))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        sentences = {404: f"There is nothing at {request.url.path[:80]!r}.", 405: "The method is not allowed here."}
        headers = {**(error.headers or {}), **({"Allow": _allowed(request)} if error.status_code == 405 else {})}
        return _error(error.status_code, sentences.get(error.status_code, str(error.detail)), headers)

    @app.exception_handler(Exception)
    async def internal(_: Request, error: Exception) -> Response:
        return internal_error()


def _allowed(request: Request) -> str:
    """Return the methods of all routes of a path; the framework lists only those of the first."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes for method in route.methods}))


def sentence_of(error: Any) -> str:
    """Describe the first error of a request in one sentence."""
    try:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        what = f"The field {place!r}" if place else "The request"
        return f"{what} is not valid: {first['msg']}."
    except (AttributeError, LookupError, TypeError):
        return "The request is not valid."


def too_many(wait: float) -> RefusedError:
    """Return the error of a client that has to wait [s]."""
    return RefusedError(429, f"Too many requests. Wait {wait:.1f} s.", {"Retry-After": str(math.ceil(wait))})


def refused(refusal: RefusedError) -> Response:
    """Return the response to a rejected request."""
    return _error(refusal.status, str(refusal), refusal.headers)


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": " ".join(sentence.splitlines()), "status": status}, status, headers)


def internal_error() -> Response:
    """Log the current exception and return a response without its details."""
    number = secrets.token_hex(4)
    _LOG.exception("Request %s failed.", number)
    return _error(500, f"The service failed. Its log says why, under {number}.")
