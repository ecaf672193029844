# SPDX-License-Identifier: Apache-2.0
"""Paginated lists of the service: platforms, drift, workers, records and predictors."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, Response

from nni_latency.database import DatabaseStore, list_known, predictor_versions
from nni_latency_service._service import LatencyService

#: Query parameter for the offset of a page.
OFFSET = Query(default=0, ge=0)

#: Published fields of a worker; its address stays private.
_OF_WORKER = ("name", "platform", "state", "reason", "benches", "jobs", "joined", "checked", "references", "slower")


def page_limit(service: LatencyService) -> Any:
    """Return the query parameter for the number of items per page."""
    most = service.limits.page
    return Query(default=min(100, most), ge=1, le=most)


def page_of(items: list[Any], limit: int, offset: int) -> dict[str, Any]:
    """Return one page of a list, the total number of items and the offset of the next page."""
    following = offset + limit if offset + limit < len(items) else None
    return {"items": items[offset : offset + limit], "total": len(items), "next": following}


def register_lists(app: FastAPI, service: LatencyService, read: Any) -> None:
    """Add the routes of all lists; `read` is the dependency that checks read access."""
    _register_machines(app, service, read)
    _register_records(app, service, read)
    _register_predictors(app, service, read)


def _register_machines(app: FastAPI, service: LatencyService, read: Any) -> None:
    limit = page_limit(service)

    @app.get("/v1/platforms", tags=["lists"])
    def platforms(limit: int = limit, offset: int = OFFSET, _: Any = read) -> Response:
        """Return the platforms and whether each can measure."""
        measured = {item.id for item in service.query.machines.platforms()}
        found = [{"id": name, "measures": name in measured} for name in service.query.platforms()]
        return JSONResponse(page_of(found, limit, offset))

    @app.get("/v1/drift", tags=["lists"])
    def drift(limit: int = limit, offset: int = OFFSET, _: Any = read) -> Response:
        """Return the speed of each platform over time, measured with the reference operator."""
        page = page_of(service.query.platforms(), limit, offset)
        found = [service.drift(platform) for platform in page["items"]]
        page["items"] = [{**asdict(item), "slower": item.slower} for item in found]
        return JSONResponse(page)

    @app.get("/v1/workers", tags=["lists"])
    def workers(limit: int = limit, offset: int = OFFSET, _: Any = read) -> Response:
        """Return the workers of the farm, with the times of their reference networks and their states."""
        found = [{name: vars(item)[name] for name in _OF_WORKER} for item in service.query.machines.workers()]
        return JSONResponse(page_of(found, limit, offset))


def _register_records(app: FastAPI, service: LatencyService, read: Any) -> None:
    limit = page_limit(service)

    @app.get("/v1/records", tags=["lists"])
    def records(
        platform: str | None = Query(default=None, max_length=300),
        limit: int = limit,
        after: str | None = Query(default=None, max_length=60),
        _: Any = read,
    ) -> Response:
        """Return measurements, newest campaigns first; `next` is the `after` of the next page."""
        store = service.query.store
        if not isinstance(store, DatabaseStore):
            return JSONResponse({"items": [], "next": None})
        found, following = list_known(store.database, platform=platform, limit=limit, after=after)
        return JSONResponse({"items": found, "next": following})


def _register_predictors(app: FastAPI, service: LatencyService, read: Any) -> None:
    limit = page_limit(service)

    @app.get("/v1/predictors", tags=["lists"])
    def predictors(limit: int = limit, offset: int = OFFSET, _: Any = read) -> Response:
        """Return the predictors."""
        return JSONResponse(page_of(service.predictors(), limit, offset))

    @app.get("/v1/predictors/versions", tags=["lists"])
    def versions(limit: int = limit, offset: int = OFFSET, _: Any = read) -> Response:
        """Return the predictor versions in the database, oldest first."""
        store = service.query.store
        found = predictor_versions(store.database) if isinstance(store, DatabaseStore) else []
        return JSONResponse(page_of([asdict(item) for item in found], limit, offset))
