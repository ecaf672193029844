"""Connections of Dask that prove a token first, and the settings under which a farm runs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import ssl
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from nni_latency.errors import RemoteError
from nni_latency.imports import require
from nni_latency_farm._security import FarmSecurity

#: What the commands of a farm install.
EXTRA = "nni_latency_farm"

distributed = require("distributed", "A farm", EXTRA)
_tcp = require("distributed.comm.tcp", "A farm", EXTRA)
_registry = require("distributed.comm.registry", "A farm", EXTRA)
dask = require("dask", "A farm", EXTRA)

#: A worker that is silent for so long is given up, and its slice goes to another one [s].
SILENCE = 30.0

#: Longest time for the other side to prove that it has the token [s].
_PROOF = 10.0

_TOKEN = "nni_latency_token"
_NONCE = 32

#: How Dask has to behave: work stays where it was sent, a dead worker's work comes back to the campaign at once.
SETTINGS: dict[str, Any] = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.no-workers-timeout": "1s",
    "distributed.scheduler.worker-ttl": f"{SILENCE:g}s",
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

#: A scheduler asks a worker for an answer once. When it gives the worker up it ends that request; a second one would
#: have no end: a process that is stopped takes connections and never speaks, and its address is not given up again.
#: Where the worker is still there, the client asks again.
SCHEDULER_SETTINGS: dict[str, Any] = {**SETTINGS, "distributed.comm.retry.count": 0}


def versions() -> dict[str, str]:
    """Return what must be the same on all sides, because they send each other Python objects."""
    return {
        "nni_latency": metadata.version("nni_latency"),
        "distributed": distributed.__version__,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def check_versions(theirs: Mapping[str, str], address: object) -> None:
    """Raise `RemoteError` unless a farm has the versions of this side."""
    for name, mine in versions().items():
        if theirs.get(name) != mine:
            raise RemoteError(
                f"The farm at {address} runs {name} {theirs.get(name, '?')}, and this side {mine}. Install the same "
                "version on both sides."
            )


def settings(chosen: Mapping[str, Any] = SETTINGS) -> Any:
    """Return a context in which Dask behaves as a farm needs it."""
    return dask.config.set(chosen)


def quiet() -> None:
    """Keep Dask's own log to what is serious: the commands say the rest in their own words."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Security(distributed.Security):  # type: ignore[name-defined]
    """A security of Dask that hands the token to every connection."""

    token: bytes | None = None

    def get_connection_args(self, role: str) -> dict[str, Any]:
        return {**super().get_connection_args(role), _TOKEN: self.token}

    def get_listen_args(self, role: str) -> dict[str, Any]:
        return {**super().get_listen_args(role), _TOKEN: self.token}


def dask_security(security: FarmSecurity) -> Any:
    """Return what Dask needs of a security, and have its connections ask for the token.

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
    """Prove the token to the side that listens, and have it prove its own."""
    challenge = await stream.read_bytes(_NONCE)
    mine = secrets.token_bytes(_NONCE)
    await stream.write(_answer(token, b"client", challenge) + mine)
    answer = await stream.read_bytes(hashlib.sha256().digest_size)
    if not hmac.compare_digest(answer, _answer(token, b"server", mine)):
        raise ValueError


async def _ask_for_proof(stream: Any, token: bytes) -> bool:
    """Whether the side that connects has the token; nothing else is read of it before."""
    challenge = secrets.token_bytes(_NONCE)
    await stream.write(challenge)
    size = hashlib.sha256().digest_size
    said = await stream.read_bytes(size + _NONCE)
    if not hmac.compare_digest(bytes(said[:size]), _answer(token, b"client", challenge)):
        return False
    await stream.write(_answer(token, b"server", bytes(said[size:])))
    return True


def _answer(token: bytes, side: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, side + challenge, "sha256")


class _Proving:
    """A connector that proves the token before Dask speaks."""

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
    """A listener that asks for the token before Dask reads."""

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
