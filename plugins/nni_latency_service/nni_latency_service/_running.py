# SPDX-License-Identifier: Apache-2.0
"""Runs the service with uvicorn."""

from __future__ import annotations

import gc
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence

import uvicorn

from nni_latency.errors import InvalidValueError, OutputError
from nni_latency_service._app import make_app
from nni_latency_service._keys import ApiKeys
from nni_latency_service._service import LatencyService


def check_binding(host: str, keys: ApiKeys | None) -> None:
    """Reject a public address without keys.

    Raises
    ------
    InvalidValueError
        If the host is reachable from other machines and there are no keys.
    """
    if not (keys is not None and len(keys)) and not _is_local(host):
        raise InvalidValueError(
            f"Other machines reach {host!r}, and anybody could measure. Make keys with 'nni-latency serve keys add', "
            "and give the service their file; or bind to 127.0.0.1."
        )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def serve(
    service: LatencyService,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    keys: ApiKeys | None = None,
    hosts: Sequence[str] = (),
    on_start: Callable[[str], None] = lambda _url: None,
) -> None:
    """Run a service until it is interrupted.

    Parameters
    ----------
    service : LatencyService
        The service.
    host, port : str, int
        Address to listen on; port 0 selects a free port.
    keys : ApiKeys, optional
        API keys of the callers.
    hosts : sequence of str
        Accepted host names; see `make_app`.
    on_start : callable, optional
        Called with the URL once the service listens.

    Raises
    ------
    InvalidValueError
        If other machines could reach it without keys.
    OutputError
        If the address is not available.
    """
    check_binding(host, keys)
    host = host.strip("[]")  # those of an IPv6 address in a URL
    app = make_app(service, keys if keys is not None and len(keys) else None, hosts)
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    on_start(f"http://{name}:{listening.getsockname()[1]}")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # The faster parser does not limit the size of headers.
        http="h11",
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=65536,
    )
    # Freeze the objects loaded so far, so that garbage collection does not scan them while requests wait.
    gc.collect()
    gc.freeze()
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise InvalidValueError(f"A 'port' must be from 0 to 65535. Got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(1024)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"Cannot listen on {host!r}, port {port}: {reason}.") from error
    return made
