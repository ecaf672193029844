# SPDX-License-Identifier: Apache-2.0
"""`ApiKeys`: the API keys of a service and their roles. Keys are stored as digests."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from nni_latency.documents import RECORD, DocumentFormat, StrictDocument
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import reserved, write_atomically

#: Roles of a key; each includes those before it.
Role = Literal["read", "measure", "admin"]

#: Length of a key [byte]. It has enough entropy that a plain digest is as safe as a slow hash.
_BYTES = 32

_PREFIX = "nnil_"

#: Permissions of a key file.
_OWNER_ONLY = 0o600

#: How long a change waits for the lock of another process [s].
_PATIENCE = 30.0


@dataclass(frozen=True)
class ApiKey:
    """Owner, role and digest of a key. Immutable.

    Parameters
    ----------
    name : str
        Name of the owner.
    role : {"read", "measure", "admin"}
        Permissions: queries; queries and measurements; everything.
    digest : str
        SHA-256 of the key.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Role
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the key")]

    __pydantic_config__ = RECORD

    def allows(self, role: Role) -> bool:
        """Whether the key has the permissions of a role."""
        roles = get_args(Role)
        return bool(roles.index(self.role) >= roles.index(role))


class _KeysDocument(StrictDocument):
    format: Literal["nni_latency.api_keys"]
    version: Literal[1]
    keys: list[ApiKey]


_FORMAT = DocumentFormat(
    "nni_latency.api_keys",
    1,
    "file of API keys",
    "a file of API keys",
    "make one with 'nni-latency serve keys add'.",
    model=_KeysDocument,
)


class ApiKeys:
    """The keys of a service.

    Parameters
    ----------
    keys : sequence of ApiKey
        The keys.

    Examples
    --------
    >>> keys = ApiKeys([])
    >>> text = keys.add("ci", "measure")
    >>> keys.find(text).name, keys.find("guess")
    ('ci', None)
    """

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = {key.name: key for key in keys}

    @classmethod
    def load(cls, path: str | Path) -> ApiKeys:
        """Read a file of keys.

        Raises
        ------
        FileFormatError
            If it is not a key file.
        """
        return _FORMAT.load(path, lambda found: cls(found.keys))

    def save(self, path: str | Path) -> None:
        """Write a key file that only its owner can read."""
        target = Path(path)
        with reserved(target, "writing", wait=_PATIENCE):
            self._write(target)

    @classmethod
    @contextlib.contextmanager
    def changing(cls, path: str | Path, *, create: bool = False) -> Iterator[ApiKeys]:
        """Change the keys of a file while holding its lock.

        Parameters
        ----------
        path : str or Path
            The file.
        create : bool, default=False
            Whether to create the file if it does not exist.

        Yields
        ------
        ApiKeys
            The keys of the file. They are written on exit, unless an exception is raised.

        Raises
        ------
        BusyError
            If other processes hold the lock for half a minute.
        FileFormatError
            If it is not a key file.
        """
        target = Path(path)
        with reserved(target, "changing", wait=_PATIENCE):
            keys = cls([]) if create and not target.exists() else cls.load(target)
            yield keys
            keys._write(target)

    def _write(self, target: Path) -> None:
        content = {**_FORMAT.head, "keys": [vars(key) for key in self]}
        with _FORMAT.writable(str(target)):
            _FORMAT.check_content(content)
        write_atomically(target, json.dumps(content, indent=2) + "\n", _OWNER_ONLY)

    def __iter__(self) -> Iterator[ApiKey]:
        """Iterate over the keys in order of addition."""
        return iter(self._keys.values())

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    def add(self, name: str, role: Role) -> str:
        """Create a key and return it. The key is not stored and cannot be retrieved later.

        Raises
        ------
        InvalidValueError
            If the name is taken or empty, or the role is unknown.
        """
        if not name.strip() or len(name) > 100 or name in self._keys:
            raise InvalidValueError(f"The name of a key must be new and have 1 to 100 characters. Got {name[:110]!r}.")
        if role not in get_args(Role):
            raise InvalidValueError(f"The role of a key must be one of {', '.join(get_args(Role))}. Got {role!r}.")
        text = _PREFIX + secrets.token_urlsafe(_BYTES)
        self._keys[name] = ApiKey(name, role, _digest(text))
        return text

    def remove(self, name: str) -> None:
        """Remove a key.

        Raises
        ------
        UnknownNameError
            If no key has this name.
        """
        if name not in self._keys:
            raise UnknownNameError.of("key", name, list(self._keys))
        del self._keys[name]

    def find(self, text: str) -> ApiKey | None:
        """Return the key that matches a text; None if there is none."""
        digest = _digest(text)
        return next((key for key in self._keys.values() if hmac.compare_digest(key.digest, digest)), None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
