# SPDX-License-Identifier: Apache-2.0
"""`FileTool`: a benchmark binary of a user, described in a TOML file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nni_latency.devices._tool import Form, Start, Tool, UnreadableError, Written, numbers
from nni_latency.documents import explain
from nni_latency.errors import FileFormatError, InvalidValueError, first_line
from nni_latency.measurement.runtimes import ProfiledNode, ProfiledRun
from nni_latency.platforms import PRECISIONS

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

#: What stands for a value in a word of a command.
_PLACEHOLDERS = ("binary", "model", "weights", "threads", "runs", "warmup", "output", "precision")

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

_Word = Annotated[str, Field(max_length=4096)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Place(_Strict):
    """Where times are found: by a regular expression, or on a path in JSON."""

    source: Literal["output", "file"] = "output"
    pattern: str | None = None
    json_path: str | None = Field(None, alias="json")
    unit: Literal["s", "ms", "us", "ns"]

    @model_validator(mode="after")
    def _check(self) -> _Place:
        if (self.pattern is None) == (self.json_path is None):
            raise ValueError("give either 'pattern' or 'json'")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern, re.MULTILINE).groups
            except re.error as error:
                raise ValueError(f"the 'pattern' is no regular expression: {error}") from error
            if groups < 1:
                raise ValueError("the 'pattern' needs a group around the number, such as 'time: ([0-9.]+)'")
        return self

    def text(self, written: Written) -> str:
        return written.file("result") if self.source == "file" else written.text

    @property
    def scale(self) -> float:
        return _UNITS[self.unit]


class _Layers(_Place):
    """Where the times of layers are found: groups 'name' and 'time', or keys of every item on a path in JSON."""

    name: str = "name"
    time: str = "time"

    @model_validator(mode="after")
    def _check_groups(self) -> _Layers:
        known = re.compile(self.pattern).groupindex if self.pattern is not None else {"name": 1, "time": 2}
        if self.pattern is not None and not {"name", "time"} <= set(known):
            raise ValueError("the 'pattern' needs the groups (?P<name>...) and (?P<time>...)")
        return self


class _Described(_Strict):
    """The content of a file."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    format: Literal["onnx", "tflite", "ncnn"]
    command: list[_Word] = Field(min_length=1)
    binary: str | None = None
    files: list[str] = []
    precisions: list[str] = Field(["fp32"], min_length=1)
    probe: list[_Word] = ["--help"]
    samples: _Place
    layers: _Layers | None = None

    @model_validator(mode="after")
    def _check(self) -> _Described:
        for word in self.command:
            unknown = [name for name in _PLACEHOLDER.findall(word) if name not in _PLACEHOLDERS]
            if unknown:
                raise ValueError(
                    f"the command has the placeholder {{{unknown[0]}}}; those that there are: "
                    f"{', '.join(f'{{{name}}}' for name in _PLACEHOLDERS)}"
                )
        text = " ".join(self.command)
        if "{model}" not in text:
            raise ValueError("the command needs {model}, the path of the network")
        wrong = [name for name in self.precisions if name not in PRECISIONS]
        if wrong:
            raise ValueError(f"'precisions' has {wrong[0]!r}; those that there are: {', '.join(PRECISIONS)}")
        if self.layers is not None and self.format != "onnx":
            raise ValueError("'layers' needs the format onnx, whose nodes have names")
        return self


class FileTool(Tool):
    """A benchmark binary that a file describes; see `read_tool`."""

    name = "tool"

    def __init__(self, described: _Described, folder: Path) -> None:
        self._described = described
        self.runtime, self.form = described.name, described.format
        self.precisions, self.probe = tuple(described.precisions), tuple(described.probe)
        self.gives_layers = self.counts_always = described.layers is not None
        self.companions = tuple(str(folder / path) for path in described.files)
        #: Path of the binary on the device, if the file has it.
        self.binary = described.binary

    form: Form

    def command(self, start: Start) -> list[str]:
        """Return the words of the command with values instead of placeholders; nothing else is replaced in them."""
        values = {
            "binary": start.binary,
            "model": start.model,
            "weights": start.weights,
            "threads": start.threads,
            "runs": start.runs,
            "warmup": start.warmups,
            "output": f"{start.folder}/result",
            "precision": start.precision,
        }
        return [
            _PLACEHOLDER.sub(lambda found: str(values[found[1]]), word)  # no value is looked through again
            for word in self._described.command
        ]

    def outputs(self, start: Start) -> Sequence[str]:
        """Return the file that {output} stands for, if times are in it."""
        places = [self._described.samples, self._described.layers]
        return ["result"] if any(place is not None and place.source == "file" for place in places) else []

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the times of runs."""
        place = self._described.samples
        text = place.text(written)
        if place.pattern is not None:
            return [value * place.scale for value in numbers(place.pattern, text, f"match of {place.pattern!r}")]
        assert place.json_path is not None
        found = [item for value in on_path(text, place.json_path) for item in _flat(value)]
        return [_number(value, place.json_path) * place.scale for value in found]

    def layers(self, written: Written, start: Start) -> list[ProfiledRun]:
        """Read the times of layers."""
        place = self._described.layers
        assert place is not None
        text = place.text(written)
        if place.pattern is not None:
            pairs = [
                (match["name"], _number(match["time"], place.pattern))
                for match in re.finditer(place.pattern, text, re.MULTILINE)
            ]
        else:
            assert place.json_path is not None
            items = [item for value in on_path(text, place.json_path) for item in _flat(value)]
            if not all(isinstance(item, dict) and {place.name, place.time} <= set(item) for item in items):
                raise UnreadableError(f"an item on {place.json_path!r} has no {place.name!r} and {place.time!r}")
            pairs = [(str(item[place.name]), _number(item[place.time], place.json_path)) for item in items]
        if not pairs:
            raise UnreadableError("its output has no times of layers")
        nodes = [ProfiledNode([name], seconds * place.scale) for name, seconds in pairs]
        samples = self.samples(written, start)
        return [ProfiledRun(nodes, sorted(samples)[len(samples) // 2])]


def read_tool(path: str | Path) -> FileTool:
    """Read the description of a tool from a TOML file.

    Raises
    ------
    InvalidValueError
        If there is no such file, or none of those that are sent beside the network.
    FileFormatError
        If the file is no TOML, or a key is missing, unknown or has a value of another kind; the message names the key.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValueError(
            f"The description of a tool {str(path)!r} cannot be read: {first_line(error)}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is no TOML: {first_line(error)}.") from error
    try:
        described = _Described.model_validate(content)
    except ValidationError as error:
        raise FileFormatError(f"{path} does not describe a tool: {explain(error)}") from error
    tool = FileTool(described, Path(path).parent)
    lacking = [name for name in tool.companions if not Path(name).is_file()]
    if lacking:
        raise InvalidValueError(f"{path} sends the file {lacking[0]!r}, which does not exist.")
    return tool


def on_path(text: str, path: str) -> list[Any]:
    """Return what lies on a path in JSON: keys, numbers of items, and ``*`` for all of them, with dots between.

    Raises
    ------
    UnreadableError
        If the text is no JSON, or nothing lies there.

    Examples
    --------
    >>> on_path('{"runs": [{"ms": 1.5}, {"ms": 2}]}', "runs.*.ms")
    [1.5, 2]
    """
    begin = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=0)
    try:
        found: list[Any] = [json.JSONDecoder().raw_decode(text, begin)[0]]
    except json.JSONDecodeError as error:
        raise UnreadableError(f"its output is no JSON: {error}") from error
    for key in path.split("."):
        found = [item for value in found for item in _below(value, key)]
    if not found:
        raise UnreadableError(f"its JSON has nothing on the path {path!r}")
    return found


def _below(value: Any, key: str) -> Iterator[Any]:
    if key == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif isinstance(value, dict) and key in value:
        yield value[key]
    elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
        yield value[int(key)]


def _flat(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _number(value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"{value!r} at {where!r} is not a number") from error
