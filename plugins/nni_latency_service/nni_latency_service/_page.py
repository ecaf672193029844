"""The page of the service: three files, nothing of which comes from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

#: By path, the file and its content type.
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

#: What a browser may load and do: nothing but these files and requests to this service.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def register_page(app: FastAPI) -> None:
    """Add the page to an application. It shows nothing by itself, so it needs no key."""
    for path in _FILES:
        app.add_api_route(path, _route(path), methods=["GET"], include_in_schema=False)
    # Browsers ask for it by themselves.
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), methods=["GET"], include_in_schema=False)


def _route(path: str) -> Callable[[], Response]:
    name, kind = _FILES[path]
    content = (Path(__file__).with_name(name)).read_bytes()
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    def page() -> Response:
        return Response(content, media_type=kind, headers=headers)

    return page
