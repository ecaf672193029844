# SPDX-License-Identifier: Apache-2.0
"""`DocumentFormat`: what a kind of file is called, how it is read, and what is said of one that cannot be."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError, create_model

from nni_latency.documents._registry import SavedFile
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError
from nni_latency.files import readable, write_atomically

Content = dict[str, Any]
Made = TypeVar("Made")

#: Letters of a wrong value that are shown, and of a whole reason.
_SHOWN, _LONGEST = 60, 800

#: What a value of a file must be, by the type of pydantic's error.
_EXPECTED = {
    "missing": "is missing",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "is not a field of such a file"),
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have {max_length} or fewer items",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    "float_type": "must be a number",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "must be an object of named fields"),
}

#: Faults of a field, not of its value, which is not shown.
_OF_FIELDS = ("missing", "extra_forbidden", "unexpected_keyword_argument")

#: What a value of several types may be, by what pydantic appends to its place.
_ALTERNATIVES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list[int]": "a list of whole numbers",
}


@dataclass(frozen=True)
class DocumentFormat:
    """A kind of file: JSON whose first fields say what it is.

    Parameters
    ----------
    name : str
        Its ``format``.
    version : int
        Its ``version``, the one that is written and read.
    noun : str
        What it is called in messages.
    what : str
        The same with an article, in full.
    remedy : str
        How to come by another one, to end a sentence.
    model : type of BaseModel, optional
        What the content must be, ``format`` and ``version`` apart.

    Examples
    --------
    >>> from pydantic import BaseModel
    >>> class Letter(BaseModel):
    ...     pages: int
    >>> letters = DocumentFormat("nni_latency.letter", 1, "letter", "a letter", "write it", model=Letter)
    >>> letters.parse_json('{"format": "nni_latency.letter", "version": 1, "pages": 2}', "letter.json").pages
    2
    """

    name: str
    version: int
    noun: str
    what: str
    remedy: str
    model: Any = field(default=None, kw_only=True)

    @property
    def head(self) -> Content:
        """The fields that every such file begins with."""
        return {"format": self.name, "version": self.version}

    def schema(self) -> Content:
        """Return the JSON schema of the content."""
        schema: Content = self._whole.model_json_schema()
        return schema

    def load(self, path: str | os.PathLike[str], make: Callable[[Any], Made]) -> Made:
        """Read and check a file, and make something of it.

        Parameters
        ----------
        path : str or path
            The file, or a `SavedFile`, which is not read again.
        make : callable
            Makes it; what is wrong with a value is a fault of the file.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of another version.
        """
        file = SavedFile.of(path)
        with readable(file.path, self.what):
            document = self.parse_json(self._data(file), str(file))
            with self.valid(str(file)):
                return make(document)

    def parse(self, content: Content) -> Any:
        """Check the content of a file that is not JSON as a whole."""
        return self._whole.model_validate(content)

    def parse_json(self, data: str | bytes, origin: str) -> Any:
        """Check the content of a file, and return it as the model.

        Parameters
        ----------
        data : str or bytes
            The JSON.
        origin : str
            Where it was read, for the message.

        Raises
        ------
        FileFormatError
            If it is not whole, of another kind, of another version, or not valid.
        """
        try:
            return self._whole.model_validate_json(data)
        except ValidationError as error:
            # Whatever else is wrong counts for less than that.
            self.check(self._json(data, origin), origin)
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                # Python reads halves of characters, which no text can hold.
                reason = first["ctx"]["error"]
                raise FileFormatError(f"The {self.noun} {origin!r} is not JSON that can be read: {reason}.") from error
            with self.valid(origin):
                raise error

    @cached_property
    def _whole(self) -> Any:
        """The model with the fields that say what the file is."""
        head: Any = {"format": (Literal[self.name], ...), "version": (Literal[self.version], ...)}
        return create_model(self.model.__name__, __base__=self.model, __doc__=self.model.__doc__, **head)

    def save(
        self, path: str | Path, fields: Mapping[str, Any], lists: Mapping[str, Iterable[str]] | None = None
    ) -> Path:
        """Write a file, whole or not at all; `render` says how.

        Raises
        ------
        InvalidValueError
            If `load` would refuse the file.
        OutputError
            If it cannot be written.
        """
        with self.writable(str(path)):
            text = render({**self.head, **fields}, lists)
            self.check_content(json.loads(text))
        write_atomically(Path(path), text)
        return Path(path)

    def check_content(self, content: Any) -> None:
        """Raise `ValueError` if the content of a file to be written is not what is read from one."""
        self._whole.model_validate_json(json.dumps(content, ensure_ascii=False).encode())

    @contextlib.contextmanager
    def writable(self, origin: str) -> Iterator[None]:
        """Turn whatever cannot stand in a file into one sentence, before the file is written.

        Raises
        ------
        InvalidValueError
            If what is done inside finds a value that a file cannot hold, or that would not be read from it.
        """
        try:
            yield
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValueError(f"The {self.noun} cannot be written to {origin!r}: {_reason(error)}") from error

    def read(self, path: str | os.PathLike[str]) -> Content:
        """Read a file and check what it is.

        Raises
        ------
        FileFormatError
            If it is absent, truncated, of another kind or of another version.
        """
        file = SavedFile.of(path)
        return self.check(self._json(self._data(file), str(file)), str(file))

    def check(self, content: Any, origin: str) -> Content:
        """Return the content of a file if its format is this one, and its version not a higher one.

        Parameters
        ----------
        content : object
            What was read.
        origin : str
            Where, for the message.

        Raises
        ------
        FileFormatError
            If it is of another kind or of another version.
        """
        kind = content.get("format") if isinstance(content, dict) else None
        if not isinstance(content, dict) or kind != self.name:
            raise FileFormatError(
                f"{origin!r} is not {self.what}: its format must be {self.name!r}. Got {_short(repr(kind))}. "
                f"Name another file, or {self.remedy}"
            )
        version = content.get("version")
        if isinstance(version, int) and version > self.version:
            raise FileFormatError(
                f"The {self.noun} {origin!r} has version {version}, this nni_latency reads up to {self.version}. "
                f"It was written by another version of nni_latency: use that version, or {self.remedy}"
            )
        return content

    @contextlib.contextmanager
    def valid(self, origin: str) -> Iterator[None]:
        """Turn whatever is wrong with the values of a file into one sentence that names the file and the place.

        Raises
        ------
        FileFormatError
            If what is done inside finds a value that cannot be.
        """
        try:
            yield
        except ValidationError as error:
            raise FileFormatError(f"The {self.noun} {origin!r} is not valid: {_reason(error)}") from error
        except (LatencyError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise FileFormatError(f"The {self.noun} {origin!r} is not valid: {_short(str(error))}") from error

    def _data(self, file: SavedFile) -> bytes:
        try:
            return file.data
        except OSError as error:
            raise FileFormatError(f"Cannot read the {self.noun} {str(file)!r}: {error.strerror or error}.") from error

    def _json(self, data: str | bytes, origin: str) -> Any:
        try:
            return json.loads(data if isinstance(data, str) else data.decode())
        except UnicodeDecodeError as error:
            raise FileFormatError(f"Cannot read the {self.noun} {origin!r}: it is not text.") from error
        except json.JSONDecodeError as error:
            raise FileFormatError(
                f"The {self.noun} {origin!r} is not whole JSON (line {error.lineno}: {error.msg}). It may have been "
                f"cut off while it was copied: take it again from where it came, or {self.remedy}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"The {self.noun} {origin!r} is not JSON that can be read: {error}.") from error


def _short(text: str) -> str:
    """Keep a message that repeats what a file holds readable, whatever that is."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _reason(error: Exception) -> str:
    """Say in one sentence what is wrong with a value."""
    if isinstance(error, UnicodeEncodeError):
        text = error.object[max(0, error.start - 10) : error.end + 10]
        return f"a text has half of a character, which no file can hold. Got {text!r}."
    if isinstance(error, ValidationError):
        return _short(explain(error))
    return f"{_short(str(error)).rstrip('.')}."


def explain(error: ValidationError) -> str:
    """Say what the first fault of a document is, where, what stands there, and how many more there are."""
    faults = error.errors()
    first = faults[0]
    depth, alternatives = _alternatives(faults)
    place = ".".join(map(str, first["loc"][:depth])) or "the document"
    cause, got = first.get("ctx", {}).get("error"), f". Got {str(first['input'])[:_SHOWN]!r}"
    if alternatives:
        # A whole number is a number.
        *names, last = (_ALTERNATIVES[name] for name in alternatives if name != "int" or "float" not in alternatives)
        said = f"{place} must be {' or '.join(filter(None, (', '.join(names), last)))}"
    elif cause is not None:
        said = f"{place}: {_short(str(cause)).rstrip('.')}"
    elif first["type"] in _EXPECTED:
        said = f"{place} {_EXPECTED[first['type']].format(**first.get('ctx', {}))}"
    else:
        said = f"{place}: {first['msg']}"
    others = len(faults) - max(1, alternatives.total())
    more = f" (and {others} more)" if others else ""
    is_whole = isinstance(cause, LatencyError) or first["type"] in _OF_FIELDS
    return f"{said}{'' if is_whole else got}{more}."


def _alternatives(faults: Sequence[Any]) -> tuple[int, Counter[str]]:
    """Return the depth of the first faulty value, and how many of the faults are of each type that it may have."""
    place = faults[0]["loc"]
    depth = max((depth for depth, name in enumerate(place) if name in _ALTERNATIVES), default=len(place))
    places = [fault["loc"] for fault in faults]
    found = Counter(
        other[depth]
        for other in places
        if other[:depth] == place[:depth] and len(other) > depth and other[depth] in _ALTERNATIVES
    )
    return (depth, found) if len(found) > 1 else (len(place), Counter())


def render(fields: Mapping[str, Any], lists: Mapping[str, Iterable[str]] | None = None) -> str:
    """Write a document as JSON that a person can read: one line a field, then lists with one line an item.

    Parameters
    ----------
    fields : mapping
        What JSON can hold; numbers are finite.
    lists : mapping, optional
        Items that are JSON already.

    Examples
    --------
    >>> print(render({"a": [1, 2]}, {"items": ['{"b": 3}', '{"b": 4}']}), end="")
    {
     "a": [1, 2],
     "items": [
      {"b": 3},
      {"b": 4}
     ]
    }
    """
    lines = [f'"{name}": {json.dumps(value, allow_nan=False)}' for name, value in fields.items()]
    for name, items in (lists or {}).items():
        inner = ",\n  ".join(items)
        lines.append(f'"{name}": [\n  {inner}\n ]' if inner else f'"{name}": []')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def json_text(content: Any, indent: int | None = None) -> str:
    """Write anything as JSON: numbers that are not finite, which JSON does not have, become null.

    Parameters
    ----------
    content : object
        What JSON can hold, apart from such numbers.
    indent : int, optional
        Spaces before what lies inside; without it everything is one line.

    Examples
    --------
    >>> json_text({"error": math.inf, "costs": (1.0, 2.0)})
    '{"error": null, "costs": [1.0, 2.0]}'
    """
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
