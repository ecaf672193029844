# SPDX-License-Identifier: Apache-2.0
"""`Tool`: a benchmark binary of a runtime, how it is started, and how what it writes is read."""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nni_latency.errors import MeasurementError
from nni_latency.measurement.runtimes import ProfiledRun

#: In which form a network is sent: one ONNX file, one TFLite file, or the two files of ncnn.
Form = Literal["onnx", "tflite", "ncnn"]

#: Names of the files of a network by its form, the first of which a tool takes as the model.
FILES: Mapping[Form, tuple[str, ...]] = {
    "onnx": ("model.onnx",),
    "tflite": ("model.tflite",),
    "ncnn": ("model.param", "model.bin"),
}


class UnreadableError(MeasurementError):
    """Raised when the output of a tool lacks what is looked for in it; the message is what was expected."""


@dataclass(frozen=True)
class Start:
    """One start of a tool. Immutable.

    Parameters
    ----------
    binary : str
        Path of the tool on the device.
    model : str
        Path of the network there; of ncnn, that of the layers.
    folder : str
        Folder there, empty before, into which the tool may write.
    shapes : sequence of tuple of int
        Shapes of the network's inputs.
    threads : int
        Threads that compute the network.
    precision : str
        Numeric precision.
    runs, warmups : int
        How often the network runs, with and without being timed.
    with_layers : bool, default=False
        Whether the times of layers are wanted.
    is_first : bool, default=False
        Whether this network was never run on the device before.
    """

    binary: str
    model: str
    folder: str
    shapes: Sequence[tuple[int, ...]]
    threads: int
    precision: str
    runs: int
    warmups: int
    with_layers: bool = False
    is_first: bool = False

    @property
    def weights(self) -> str:
        """Path of the weights of ncnn."""
        return self.model.removesuffix(".param") + ".bin"


@dataclass(frozen=True)
class Written:
    """What a tool has written. Immutable.

    Parameters
    ----------
    out, err : str
        Its standard output and error.
    files : mapping of str to bytes
        Contents of the files of `Tool.outputs` that it has written.
    """

    out: str
    err: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Standard output and error, one behind the other."""
        return f"{self.out}\n{self.err}"

    def file(self, name: str) -> str:
        """Return the text of a file.

        Raises
        ------
        UnreadableError
            If the tool has not written it.
        """
        if not self.files.get(name):
            raise UnreadableError(f"it has not written the file {name}")
        return self.files[name].decode(errors="replace")

    def json(self, name: str) -> Any:
        """Return the content of a file in JSON.

        Raises
        ------
        UnreadableError
            If there is none.
        """
        try:
            return json.loads(self.file(name))
        except json.JSONDecodeError as error:
            raise UnreadableError(f"the file {name} that it has written is no JSON: {error}") from error


class Tool(ABC):
    """A benchmark binary. A new one is a subclass with a name, a command and a reader.

    Attributes
    ----------
    name : str
        Under which it is named by ``--runtime``.
    runtime : str
        The runtime that it measures, as platforms have it.
    form : {"onnx", "tflite", "ncnn"}
        What is sent.
    precisions : tuple of str
        Precisions that it can be started with.
    gives_layers : bool
        Whether it reports times of layers under the names of ONNX nodes, so that they are attributed to parts.
    counts_always : bool
        Whether these times cost nothing, so that one start gives them together with times of whole runs.
    on_gpu : bool
        Whether a GPU computes.
    probe : tuple of str
        Arguments with which it prints something and ends.
    """

    name: str
    runtime: str
    form: Form = "onnx"
    precisions: tuple[str, ...] = ("fp32",)
    gives_layers: bool = False
    counts_always: bool = False
    on_gpu: bool = False
    probe: tuple[str, ...] = ("--help",)

    #: The runtime whose plugin prepares networks and reads profiles; without one that is done here.
    plugin: str | None = None

    #: Files of a network that it does not read, which are not sent.
    unread: tuple[str, ...] = ()

    #: Files of this machine that are sent beside the network.
    companions: tuple[str, ...] = ()

    #: Files that it writes into the folder of its start, or the beginnings of their names: at every start, where the
    #: times of layers are wanted, and when a network first runs.
    results: tuple[str, ...] = ()
    layer_results: tuple[str, ...] = ()
    first_results: tuple[str, ...] = ()

    #: Regular expression of the version in what it prints, the parts of which are its groups.
    version_pattern: str = ""

    @abstractmethod
    def command(self, start: Start) -> list[str]:
        """Return the program and its arguments. No shell interprets them."""

    def outputs(self, start: Start) -> Sequence[str]:
        """Return the files that it writes into the folder of its start, or the beginnings of their names."""
        layers = self.layer_results if start.with_layers else ()
        return [*self.results, *layers, *(self.first_results if start.is_first else ())]

    @abstractmethod
    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the times of whole runs, or of their median where the tool reports nothing finer [s].

        Raises
        ------
        UnreadableError
            If there are none.
        """

    def layers(self, written: Written, start: Start) -> list[ProfiledRun]:
        """Read the times of layers by run; one run where the tool reports their mean."""
        raise UnreadableError(f"{self.name} reports no times of layers")

    def version(self, text: str) -> str | None:
        """Find the version of the runtime in what the tool prints."""
        found = re.search(self.version_pattern, text) if self.version_pattern else None
        parts = [part for group in found.groups() if group for part in group.split(".")] if found else []
        return ".".join(str(int(part)) for part in parts) or None


@contextlib.contextmanager
def looking_for(what: str) -> Iterator[None]:
    """Return a context in which values are taken out of a file.

    Raises
    ------
    UnreadableError
        If one is absent or of another type.

    Examples
    --------
    >>> with looking_for("a number 'computeMs' of every run in times.json"):
    ...     [float(item["computeMs"]) for item in [{"computeMs": "none"}]]
    Traceback (most recent call last):
    nni_latency.devices._tool.UnreadableError: it has not written a number 'computeMs' of every run in times.json
    """
    try:
        yield
    except (ArithmeticError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise UnreadableError(f"it has not written {what}") from error


def numbers(pattern: str, text: str, what: str) -> list[float]:
    """Return the first groups of all matches of a regular expression as numbers.

    Raises
    ------
    UnreadableError
        If there is no match, or one is not a number.

    Examples
    --------
    >>> numbers(r"avg = *([0-9.]+)", "min = 1.5  avg =  2.0", "avg = NUMBER")
    [2.0]
    """
    found = re.findall(pattern, text, re.MULTILINE)
    try:
        values = [float(item[0] if isinstance(item, tuple) else item) for item in found]
    except ValueError as error:
        raise UnreadableError(f"its output has something else than a number at {what}") from error
    if not values:
        raise UnreadableError(f"its output has no {what}")
    return values
