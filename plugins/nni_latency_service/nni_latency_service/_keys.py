"""`ApiKeys`: who may ask, measure and administer. Keys are stored as digests."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from nni_latency.documents import DocumentFormat, StrictDocument
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import reserved, write_atomically

#: What a key allows; each role includes those before it.
Role = Literal["read", "measure", "admin"]

#: Bytes of a key: too many to be guessed, so a plain digest of it is as good as a slow one.
_BYTES = 32

_PREFIX = "nnil_"

#: How long a change waits for those of other processes [s].
_PATIENCE = 30.0


class _KeyDocument(StrictDocument):
    name: str = Field(min_length=1, max_length=100)
    role: Role
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the key")


class _KeysDocument(StrictDocument):
    format: Literal["nni_latency.api_keys"]
    version: Literal[1]
    keys: list[_KeyDocument]


_FORMAT = DocumentFormat(
    "nni_latency.api_keys",
    1,
    "file of API keys",
    "a file of API keys",
    "make one with 'nni-latency serve keys add'.",
    model=_KeysDocument,
)


@dataclass(frozen=True)
class ApiKey:
    """Whose key it is and what it allows. Immutable.

    Parameters
    ----------
    name : str
        Whose.
    role : {"read", "measure", "admin"}
        What it allows: asking; measuring, too; or everything.
    digest : str
        SHA-256 of the key.
    """

    name: str
    role: Role
    digest: str

    def allows(self, role: Role) -> bool:
        """Whether it allows what a role allows."""
        roles = get_args(Role)
        return bool(roles.index(self.role) >= roles.index(role))


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
            If it is none.
        """
        return _FORMAT.load(path, lambda found: cls([ApiKey(item.name, item.role, item.digest) for item in found.keys]))

    def save(self, path: str | Path) -> None:
        """Write a file of keys that nobody but its owner can read."""
        target = Path(path)
        with reserved(target, "writing", wait=_PATIENCE):
            self._write(target)

    @classmethod
    @contextlib.contextmanager
    def changing(cls, path: str | Path, *, create: bool = False) -> Iterator[ApiKeys]:
        """Change the keys of a file, which no other process reads and writes meanwhile.

        Parameters
        ----------
        path : str or Path
            The file.
        create : bool, default=False
            Whether it is made if it does not exist.

        Yields
        ------
        ApiKeys
            Its keys; written in the end, unless an exception is raised.

        Raises
        ------
        BusyError
            If other processes change it for half a minute.
        FileFormatError
            If it is no file of keys.
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
        write_atomically(target, json.dumps(content, indent=2) + "\n")
        target.chmod(0o600)

    def __iter__(self) -> Iterator[ApiKey]:
        """Iterate over the keys in the order in which they were added."""
        return iter(self._keys.values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._keys)

    def add(self, name: str, role: Role) -> str:
        """Make a key, and return it: this is the only time that it is known.

        Raises
        ------
        InvalidValueError
            If the name is taken or empty, or there is no such role.
        """
        if not name.strip() or len(name) > 100 or name in self._keys:
            raise InvalidValueError(f"The name of a key must be new and have 1 to 100 characters. Got {name[:110]!r}.")
        if role not in get_args(Role):
            raise InvalidValueError(f"The role of a key must be one of {', '.join(get_args(Role))}. Got {role!r}.")
        text = _PREFIX + secrets.token_urlsafe(_BYTES)
        self._keys[name] = ApiKey(name, role, _digest(text))
        return text

    def remove(self, name: str) -> None:
        """Take a key away.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        """
        if name not in self._keys:
            raise UnknownNameError.of("key", name, list(self._keys))
        del self._keys[name]

    def find(self, text: str) -> ApiKey | None:
        """Return the key that a text is; None if it is none."""
        digest = _digest(text)
        return next((key for key in self._keys.values() if hmac.compare_digest(key.digest, digest)), None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
