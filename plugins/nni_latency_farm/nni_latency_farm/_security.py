# SPDX-License-Identifier: Apache-2.0
"""`FarmSecurity`: certificate and token of a farm."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nni_latency.errors import InvalidValueError, RemoteError
from nni_latency.units import number_of

#: Environment variables with the credentials of clients of a public farm.
VARIABLES = tuple(f"NNI_LATENCY_FARM_{name}" for name in ("TOKEN_FILE", "TLS_CERT", "TLS_KEY", "TLS_CA"))

#: Default port of a scheduler.
PORT = 8786

#: Minimum length of a token; shorter ones can be guessed.
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class FarmSecurity:
    """Credentials shared by scheduler, workers and clients of a farm to authenticate each other. Immutable.

    Parameters
    ----------
    cert, key : Path, optional
        Files of a TLS certificate and its private key, in PEM format.
    ca : Path, optional
        File of the certificate that signed the certificates of all peers; by default `cert`, shared by all.
    token_file : Path, optional
        File of a shared secret. Each side proves that it has the secret before other data is read.

    Raises
    ------
    InvalidValueError
        If there is a certificate without a key, or the other way round.

    Examples
    --------
    >>> FarmSecurity().protects
    False
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.ca is not None and self.cert is None):
            raise InvalidValueError("TLS needs a certificate and its private key: give both, or neither.")

    @classmethod
    def of_environment(cls) -> FarmSecurity:
        """Create the security from the files named by environment variables.

        Raises
        ------
        InvalidValueError
            If there is a certificate without a key, or the other way round.
        """
        token, cert, key, ca = (Path(os.environ[name]) if os.environ.get(name) else None for name in VARIABLES)
        if (cert is None) != (key is None):
            raise InvalidValueError(
                f"TLS needs a certificate and its private key: set {VARIABLES[1]} and {VARIABLES[2]}."
            )
        return cls(cert, key, ca, token)

    @property
    def encrypts(self) -> bool:
        """Whether there is a certificate."""
        return self.cert is not None

    @property
    def protects(self) -> bool:
        """Whether there are a certificate and a token, as required for a public farm."""
        return self.encrypts and self.token_file is not None

    @property
    def scheme(self) -> str:
        """Scheme of addresses."""
        return "tls" if self.encrypts else "tcp"

    def token(self) -> bytes | None:
        """Read the token; None without a token file.

        Raises
        ------
        RemoteError
            If the file cannot be read, is readable by other users, or the token is too short.
        """
        path = self.token_file
        if path is None:
            return None
        try:
            mode, token = path.stat().st_mode, path.read_bytes().strip()
        except OSError as error:
            raise RemoteError(f"Cannot read the token file {str(path)!r}: {error.strerror or error}.") from error
        if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RemoteError(f"The token file {str(path)!r} can be used by others. Run: chmod 600 {path}")
        if len(token) < _SHORTEST_TOKEN:
            raise RemoteError(
                f"The token in {str(path)!r} has {number_of(len(token), 'character')}, and {_SHORTEST_TOKEN} are the "
                f"fewest. Make one with: openssl rand -hex 32 > {path}"
            )
        return token

    def check_files(self) -> None:
        """Raise `RemoteError` if a certificate, a key or the token cannot be read."""
        self.token()
        for path in (self.cert, self.key, self.ca):
            if path is not None:
                try:
                    path.read_bytes()
                except OSError as error:
                    raise RemoteError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error

    def check_host(self, host: str) -> None:
        """Raise `RemoteError` if a host is reachable from other machines without certificate and token."""
        if not self.protects and not is_local(host):
            raise RemoteError(
                f"A farm on {host} can be reached from other machines, and who reaches it can run code there: give a "
                "TLS certificate, its key and a token, or stay on 127.0.0.1."
            )


def is_local(host: str) -> bool:
    """Whether a host is an address of this machine that others cannot reach.

    Examples
    --------
    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
    (True, True, False)
    """
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


@dataclass(frozen=True)
class FarmAddress:
    """Address of a scheduler. Immutable.

    Examples
    --------
    >>> str(FarmAddress.parse("localhost:9000"))
    'tcp://localhost:9000'
    """

    host: str
    port: int = PORT
    encrypted: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.encrypted else 'tcp'}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> FarmAddress:
        """Read an address.

        Raises
        ------
        InvalidValueError
            If the text is not an address.
        """
        scheme, _, rest = text.rpartition("://")
        try:
            parts = urlsplit(f"//{rest}")
            port = parts.port or PORT
        except ValueError:
            parts, port = urlsplit(""), PORT
        surplus = parts.path or parts.query or parts.fragment or "@" in parts.netloc
        if scheme not in ("", "tcp", "tls") or not parts.hostname or surplus:
            raise InvalidValueError(
                "The address of a farm must be a host and a port, such as tcp://127.0.0.1:8786 or "
                f"tls://farm.example.org:8786. Got {text!r}."
            )
        return cls(parts.hostname, port, scheme == "tls")

    def reach(self, timeout: float = 5.0) -> None:
        """Raise `RemoteError` immediately if the address does not answer; Dask would retry for a long time."""
        try:
            socket.create_connection((self.host, self.port), timeout).close()
        except OSError as error:
            raise RemoteError(
                f"No farm answers at {self}: {error.strerror or error}. Check the address, and that 'nni-latency farm "
                "start' runs there."
            ) from error

    def secured(self, security: FarmSecurity) -> FarmAddress:
        """Return the address, encrypted if the security has a certificate.

        Raises
        ------
        RemoteError
            If the certificate is missing, or the connection would be unencrypted on the network.
        """
        if self.encrypted and not security.encrypts:
            raise RemoteError(f"{self} needs a TLS certificate and its key.")
        security.check_host(self.host)
        return FarmAddress(self.host, self.port, security.encrypts)
