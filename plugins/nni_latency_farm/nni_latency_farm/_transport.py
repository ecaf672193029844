# SPDX-License-Identifier: Apache-2.0
"""Dask connections with token authentication, and the Dask settings of a farm."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import ssl
import sys
from collections.abc import Mapping
from typing import Any

from nni_latency.errors import RemoteError
from nni_latency.imports import require
from nni_latency.version import __version__
from nni_latency_farm._security import FarmSecurity

#: Installation hint of the farm commands.
EXTRA = "nni_latency_farm"

distributed = require("distributed", "A farm", EXTRA)
_tcp = require("distributed.comm.tcp", "A farm", EXTRA)
_registry = require("distributed.comm.registry", "A farm", EXTRA)
dask = require("dask", "A farm", EXTRA)

#: Time without a heartbeat after which a worker is considered lost, and without an answer after which a connection
#: is [s].
SILENCE = 30.0

#: Timeout of the token handshake [s].
_PROOF = 10.0

_TOKEN = "nni_latency_token"
_NONCE = 32

#: Dask settings: work stays on its worker, and the work of a dead worker returns to the campaign immediately.
SETTINGS: dict[str, Any] = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.no-workers-timeout": "1s",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.large-graph-warning-threshold": "1TB",
    "distributed.admin.tick.limit": "1h",
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": f"{SILENCE:g}s",
    "distributed.comm.retry.count": 2,
}

#: A scheduler requests an answer from a worker once, and ends the request when it drops the worker. A second request
#: would never end, because a stopped process accepts connections without answering, and its address is not dropped
#: again. If the worker is still alive, the client retries.
SCHEDULER_SETTINGS: dict[str, Any] = {**SETTINGS, "distributed.comm.retry.count": 0}


def versions() -> dict[str, str]:
    """Return the versions that must agree on all sides, because they exchange Python objects."""
    return {
        "nni_latency": __version__,
        "distributed": distributed.__version__,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def check_versions(theirs: Mapping[str, str], address: object) -> None:
    """Raise `RemoteError` if the versions of a farm differ from the local ones."""
    for name, mine in versions().items():
        if theirs.get(name) != mine:
            raise RemoteError(
                f"The farm at {address} runs {name} {theirs.get(name, '?')}, and this side {mine}. Install the same "
                "version on both sides."
            )


def settings(chosen: Mapping[str, Any] = SETTINGS) -> Any:
    """Return a context manager with the Dask settings of a farm."""
    return dask.config.set(chosen)


def quiet() -> None:
    """Limit Dask's log to critical messages: the commands report everything else."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Security(distributed.Security):  # type: ignore[name-defined]
    """Dask security that passes the token to every connection."""

    token: bytes | None = None

    def get_connection_args(self, role: str) -> dict[str, Any]:
        return {**super().get_connection_args(role), _TOKEN: self.token}

    def get_listen_args(self, role: str) -> dict[str, Any]:
        return {**super().get_listen_args(role), _TOKEN: self.token}


def dask_security(security: FarmSecurity) -> Any:
    """Return the Dask security of a `FarmSecurity`, whose connections require the token.

    Raises
    ------
    RemoteError
        If the token, the certificate or the key cannot be read or used.
    """
    token = security.token()
    security.check_files()
    if security.encrypts:
        files = {"ca_file": str(security.ca or security.cert)}
        for role in ("client", "scheduler", "worker"):
            files |= {f"{role}_cert": str(security.cert), f"{role}_key": str(security.key)}
        made = _Security(require_encryption=True, **{f"tls_{name}": path for name, path in files.items()})
        try:
            made.get_connection_args("client")
        except (OSError, ssl.SSLError) as error:
            raise RemoteError(
                f"{str(security.cert)!r} and {str(security.key)!r} are no TLS certificate and its key in PEM: {error}."
            ) from error
    else:
        made = _Security(require_encryption=False)
    made.token = token
    _registry.backends["tcp"], _registry.backends["tls"] = _TcpBackend(), _TlsBackend()
    return made


async def _prove(stream: Any, token: bytes) -> None:
    """Authenticate to the listener, and verify that it has the token."""
    challenge = await stream.read_bytes(_NONCE)
    mine = secrets.token_bytes(_NONCE)
    await stream.write(_answer(token, b"client", challenge) + mine)
    answer = await stream.read_bytes(hashlib.sha256().digest_size)
    if not hmac.compare_digest(answer, _answer(token, b"server", mine)):
        raise ValueError


async def _ask_for_proof(stream: Any, token: bytes) -> bool:
    """Return whether the connecting side has the token; no other data is read before."""
    challenge = secrets.token_bytes(_NONCE)
    await stream.write(challenge)
    size = hashlib.sha256().digest_size
    reply = await stream.read_bytes(size + _NONCE)
    if not hmac.compare_digest(bytes(reply[:size]), _answer(token, b"client", challenge)):
        return False
    await stream.write(_answer(token, b"server", bytes(reply[size:])))
    return True


def _answer(token: bytes, side: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, side + challenge, "sha256")


class _Proving:
    """Connector that authenticates before Dask sends data."""

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Any:
        comm = await super().connect(address, deserialize, **arguments)  # type: ignore[misc]
        token = arguments.get(_TOKEN)
        if token:
            try:
                await asyncio.wait_for(_prove(comm.stream, token), _PROOF)
            except (OSError, ValueError, TimeoutError) as error:
                comm.abort()
                raise distributed.comm.core.FatalCommClosedError("The other side does not have the token.") from error
        return comm


class _Asking:
    """Listener that requires the token before Dask reads data."""

    _token: bytes | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._token = options.get(_TOKEN)
        super().__init__(*arguments, **options)

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        stream = await super()._prepare_stream(stream, address)  # type: ignore[misc]
        if stream is None or not self._token:
            return stream
        try:
            if await asyncio.wait_for(_ask_for_proof(stream, self._token), _PROOF):
                return stream
        except (OSError, TimeoutError):
            pass
        stream.close()
        return None


class _TcpConnector(_Proving, _tcp.TCPConnector):  # type: ignore[name-defined]
    pass


class _TlsConnector(_Proving, _tcp.TLSConnector):  # type: ignore[name-defined]
    pass


class _TcpListener(_Asking, _tcp.TCPListener):  # type: ignore[name-defined]
    pass


class _TlsListener(_Asking, _tcp.TLSListener):  # type: ignore[name-defined]
    pass


class _TcpBackend(_tcp.TCPBackend):  # type: ignore[name-defined]
    _connector_class, _listener_class = _TcpConnector, _TcpListener


class _TlsBackend(_tcp.TLSBackend):  # type: ignore[name-defined]
    _connector_class, _listener_class = _TlsConnector, _TlsListener
