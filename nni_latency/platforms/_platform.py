# SPDX-License-Identifier: Apache-2.0
"""`Platform`: device, runtime, precision and threads, with a stable id; the devices of this machine."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError
from nni_latency.platforms._facts import FACTS, FactValue, collect_facts
from nni_latency.units import number_of

PRECISIONS = ("fp32", "bf16", "fp16", "int8")

#: Facts whose name begins like this are a runtime's own, such as its version, and part of a platform's identity.
RUNTIME_FACT = "runtime."

# Words that makers put into names and that do not distinguish devices.
_NOISE = re.compile(r"\((r|tm|c)\)|@.*$|\b(cpu|processor|core|intel|amd|nvidia|geforce|with|graphics|\d+-core)\b", re.I)

#: Rows and columns of the matrices that are multiplied, on a processor and on a GPU.
_SIDE, _SIDE_ON_GPU = 1024, 4096

#: Channels and side of the map of the convolution that measures a processor's speed.
_CHANNELS, _PLACES = 256, 58

#: Numbers that are copied: 128 MiB, several times the largest caches.
_COPIED = 2**25

#: How long each is repeated [s].
_LONG = 0.3


@dataclass(frozen=True, repr=False)
class Platform:
    """Where a cost was taken. Immutable; records of different platforms never mix.

    Parameters
    ----------
    device : str
        Short name of the device, lower case, such as ``epyc-7763``.
    runtime : str
        What executes the model, such as ``torch``.
    precision : str
        ``fp32``, ``bf16``, ``fp16`` or ``int8``.
    threads : int
        Threads that compute one network.
    facts : mapping
        What was read about the device and the software (see `FACTS`), and what a runtime adds about itself, in names
        that begin with ``runtime.``: its version, execution provider, compiler flags, the precision that really ran.

    Examples
    --------
    >>> Platform("epyc-7763", "torch", "fp32", 1).id
    'epyc-7763.torch.fp32.t1'
    """

    device: str
    runtime: str = "torch"
    precision: str = "fp32"
    threads: int = 1
    facts: Mapping[str, FactValue] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.device):
            raise InvalidValueError(
                f"The 'device' of a Platform must be lower-case letters, digits and dashes. Got {self.device!r}."
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.runtime):
            raise InvalidValueError(
                f"The 'runtime' of a Platform must be letters, digits and dashes. Got {self.runtime!r}."
            )
        if self.precision not in PRECISIONS:
            raise InvalidValueError(
                f"The 'precision' of a Platform must be one of {', '.join(PRECISIONS)}. Got {self.precision!r}."
            )
        if not 1 <= self.threads < 10**6:
            raise InvalidValueError(f"The 'threads' of a Platform must be an int from 1 to 999999. Got {self.threads}.")
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))

    def __repr__(self) -> str:
        return f"Platform({self.id!r}, {number_of(len(self.facts), 'fact')})"

    def __reduce__(self) -> tuple[type[Platform], tuple[object, ...]]:
        """Pickle the facts as a plain dictionary: a read-only view cannot be."""
        return type(self), (self.device, self.runtime, self.precision, self.threads, dict(self.facts))

    @classmethod
    def current(
        cls, device: str = "cpu", *, runtime: str = "torch", precision: str = "fp32", threads: int = 1
    ) -> Platform:
        """Make the platform of a device of this machine, with the facts that can be read.

        Parameters
        ----------
        device : str, default="cpu"
            ``cpu``, ``cuda`` or ``cuda:N``.
        runtime, precision, threads
            As in `Platform`.

        Raises
        ------
        UnknownNameError
            If this machine has no such device.

        Examples
        --------
        >>> Platform.current(threads=2).id.endswith(".torch.fp32.t2")
        True
        """
        facts = collect_facts(resolve_device(device))
        return cls(device_slug(facts), runtime, precision, threads, facts)

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Make a platform of its id, or of the name of a device alone.

        Raises
        ------
        InvalidValueError
            If it is neither.

        Examples
        --------
        >>> Platform.parse("raspberry-pi-4.tflite.fp32.t4").threads
        4
        >>> Platform.parse("pixel-3").id
        'pixel-3.unknown.fp32.t1'
        """
        parts = text.split(".")
        if len(parts) == 1:
            return cls(text, "unknown")
        if len(parts) != 4 or not re.fullmatch(r"t[1-9]\d{0,5}", parts[3]):
            raise InvalidValueError(
                "A platform must be the name of a device, or its id such as 'raspberry-pi-4.tflite.fp32.t4': "
                f"device, runtime, precision, threads. Got {text!r}."
            )
        return cls(parts[0], parts[1], parts[2], int(parts[3][1:]))

    @property
    def id(self) -> str:
        """Stable name of the platform, the same in every process and file."""
        return f"{self.device}.{self.runtime}.{self.precision}.t{self.threads}"

    @property
    def runs_unused(self) -> bool:
        """Whether operators that no output depends on are executed, as by eager torch. Compilers drop them."""
        return self.runtime in ("torch", "torch-nhwc")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        return {**vars(self), "facts": dict(self.facts)}

    def differences(self, other: Platform) -> list[str]:
        """Say in words what keeps the records of two platforms apart; empty if nothing does.

        Facts of the machine that only one side knows are not held against it; those of a runtime are.
        """
        found = [] if self.id == other.id else [f"id: {self.id} against {other.id}"]
        for name in dict.fromkeys([*list(self.identity)[1:], *list(other.identity)[1:]]):
            mine, theirs = self.facts.get(name), other.facts.get(name)
            known = (mine is not None and theirs is not None) or name.startswith(RUNTIME_FACT)
            if known and mine != theirs:
                found.append(f"{name}: {mine} against {theirs}")
        return found

    @property
    def identity(self) -> dict[str, FactValue]:
        """The id, and the facts whose change makes numbers incomparable, by name."""
        names = [fact.name for fact in FACTS if fact.identity and fact.name in self.facts]
        names += sorted(name for name in self.facts if name.startswith(RUNTIME_FACT))
        return {"id": self.id, **{name: self.facts[name] for name in names}}


def ids_named(name: str, ids: Iterable[str]) -> list[str]:
    """Return the ids that a name stands for: the id itself, else those of which it is whole parts, else part of a text.

    Parameters
    ----------
    name : str
        What a user typed, such as ``epyc-7763``, ``onnxruntime``, ``openvino:bf16``, ``fp32.t4`` or ``epyc``.
    ids : iterable of str
        Ids of platforms.

    Examples
    --------
    >>> ids_named("torch", ["pi-4.torch.fp32.t1", "pi-4.torchscript.fp32.t1"])
    ['pi-4.torch.fp32.t1']
    """
    known, wanted = list(ids), name.replace(":", ".")
    whole = [item for item in known if f".{wanted}." in f".{item}."]
    return [item for item in known if item == name] or whole or [item for item in known if wanted in item]


def check_same_platform(first: Platform, second: Platform, what: str) -> None:
    """Raise `MismatchError` if records of the two platforms must not be mixed.

    Parameters
    ----------
    first, second : Platform
        The two sides.
    what : str
        What would have mixed them, to begin the message.
    """
    differences = first.differences(second)
    if differences:
        raise MismatchError(f"{what} would mix two platforms ({'; '.join(differences)}).")


def device_slug(facts: Mapping[str, FactValue]) -> str:
    """Make the short device name out of the facts.

    A virtual machine may hide the model ("Xeon Processor"): the signature then identifies it.

    Examples
    --------
    >>> device_slug({"device_name": "AMD EPYC 7763 64-Core Processor"})
    'epyc-7763'
    >>> device_slug({"device_name": "Intel(R) Xeon(R) Processor", "cpu_signature": "6-143-4"})
    'xeon-6-143-4'
    """
    name = str(facts.get("device_name", "unknown"))
    slug = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", name).lower()).strip("-") or "unknown"
    if not re.search(r"\d", slug) and "cpu_signature" in facts:
        slug = f"{slug}-{facts['cpu_signature']}"
    return slug


#: How devices are named that are not this machine, for messages.
OTHER_DEVICES = "For another device, give ssh:USER@HOST, adb, python:PATH, or a name that 'nni-latency devices' lists."


def list_devices() -> list[str]:
    """List the devices that this machine can measure on, ``cpu`` first.

    Examples
    --------
    >>> list_devices()[0]
    'cpu'
    """
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def resolve_device(name: str) -> str:
    """Return the full name of a device: ``cuda`` is the first GPU.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.
    """
    full = "cuda:0" if name == "cuda" else name
    if full == "cpu":
        return full
    known = list_devices()
    if full not in known:
        no_gpu = full.startswith("cuda") and len(known) == 1
        advice = "A GPU takes NVIDIA's driver and a CUDA build of torch." if no_gpu else OTHER_DEVICES
        raise UnknownNameError(f"{UnknownNameError.of('device', name, known)} {advice}")
    return full


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the threads of torch, and treat numbers too small for the processor's fast path as zero.

    Numbers of that size make a layer take up to 40 % longer, and an epoch of a search several times as long: untrained
    weights shrink activations to it, and candidates that a mask hardly uses get such gradients.

    Parameters
    ----------
    count : int
        Threads within the context; those of before are set again behind it.

    Examples
    --------
    >>> import torch
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def measure_speeds(device: str = "cpu", threads: int = 1) -> dict[str, float]:
    """Measure how many operations a device computes per second, and how many bytes it moves, as torch does it.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    threads : int, default=1
        Threads of a processor.

    Returns
    -------
    dict
        ``peak_flops``: operations of the fastest product of two large matrices of single precision, and on a processor
        also of the fastest convolution, because MKL does not use all of processors of other makers [FLOP/s].
        ``memory_bandwidth``: bytes read and written by the fastest copy of 128 MiB [byte/s].

    Raises
    ------
    UnknownNameError
        If there is no such device.

    Examples
    --------
    >>> sorted(measure_speeds())
    ['memory_bandwidth', 'peak_flops']
    """
    import torch

    where = resolve_device(device)
    on_gpu = where.startswith("cuda")
    side = _SIDE_ON_GPU if on_gpu else _SIDE

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize(where)

    with torch_threads(threads), torch.inference_mode():
        factor, product = torch.ones(side, side, device=where), torch.empty(side, side, device=where)
        computed = 2 * side**3 / _fastest(lambda: torch.mm(factor, factor, out=product), wait)
        if not on_gpu:
            maps, weights = torch.ones(1, _CHANNELS, _PLACES, _PLACES), torch.ones(_CHANNELS, _CHANNELS, 3, 3)
            inner = 2 * 9 * _CHANNELS**2 * (_PLACES - 2) ** 2
            computed = max(computed, inner / _fastest(lambda: torch.nn.functional.conv2d(maps, weights), wait))
        source = torch.ones(_COPIED, device=where)
        copy = torch.empty_like(source)
        moved = 2 * source.nbytes / _fastest(lambda: copy.copy_(source), wait)
    return {"peak_flops": float(f"{computed:.3g}"), "memory_bandwidth": float(f"{moved:.3g}")}


def _fastest(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the time of the fastest run [s]; the first one, which touches new memory, does not count."""
    run()
    wait()
    end, fastest = time.perf_counter() + _LONG, float("inf")
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        wait()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest
