"""Running the service: uvicorn on one address."""

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
    """Refuse to be reached from other machines without keys.

    Raises
    ------
    InvalidValueError
        If the host is not this machine alone and there are no keys.
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
        What answers.
    host, port : str, int
        Where it listens; port 0 is any that is free.
    keys : ApiKeys, optional
        Who may ask.
    hosts : sequence of str
        Names by which it may be called; see `make_app`.
    on_start : callable, optional
        Called with its URL once it listens.

    Raises
    ------
    InvalidValueError
        If other machines would reach it without keys.
    OutputError
        If it cannot listen there.
    """
    check_binding(host, keys)
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
        # The faster one has no limit on the size of headers.
        http="h11",
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=65536,
    )
    # What is loaded by now stays: it need not be searched for garbage again and again, while requests wait.
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
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"Cannot listen on {host!r}, port {port}: {reason}.") from error
    return made
