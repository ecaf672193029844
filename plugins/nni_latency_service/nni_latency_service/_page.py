# SPDX-License-Identifier: Apache-2.0
"""Web page of the service: three static files without external resources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

#: File and content type by path.
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

#: Content security policy: only these files and requests to this service.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def register_page(app: FastAPI) -> None:
    """Add the page to an application. It holds no data, so it needs no key."""
    for path in _FILES:
        app.add_api_route(path, _route(path), methods=["GET"], include_in_schema=False)
    # Browsers request it automatically.
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), methods=["GET"], include_in_schema=False)


def _route(path: str) -> Callable[[], Response]:
    name, kind = _FILES[path]
    content = (Path(__file__).with_name(name)).read_bytes()
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    def page() -> Response:
        return Response(content, media_type=kind, headers=headers)

    return page
