"""`Conditions`: what changes on a machine from minute to minute, and decides how steady a measurement is."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.platforms._facts import Fact, affinity
from nni_latency.platforms._kernel import kernel_conditions
from nni_latency.platforms._nvml import nvml_conditions


def _described(meaning: str) -> Any:
    """Make an optional field that carries its meaning, so that `CONDITIONS` and the class cannot disagree."""
    return field(default=None, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The state of a machine at one moment. Immutable.

    Every field is optional, and None where it could not be read; `CONDITIONS` tells their meanings and units. Fields
    that count since some beginning, such as `steal`, say something only as a difference of two readings.

    Raises
    ------
    InvalidValueError
        If a field has a value of another type.

    Examples
    --------
    >>> Conditions(load=0.5, cpu_governor="performance").as_dict()
    {'load': 0.5, 'cpu_governor': 'performance'}
    """

    taken: float | None = _described("when it was read, by a clock that only the differences of mean something [s]")
    processors: int | None = _described("logical processors that this process may use")
    processors_online: int | None = _described("logical processors of the machine")
    load: float | None = _described("mean number of running processes on the machine over the last minute")
    busy: float | None = _described("time that the usable processors have worked, summed over them [s]")
    own_time: float | None = _described("time that processors have worked for this process and its children [s]")
    cpu_frequency: float | None = _described("current frequency, mean over the usable processors [Hz]")
    cpu_frequency_top: float | None = _described("current frequency of the fastest usable processor [Hz]")
    cpu_governor: str | None = _described("frequency governors of the usable processors")
    virtualised: bool | None = _described("whether the machine runs under a hypervisor")
    steal: float | None = _described("time that a hypervisor has taken from the usable processors, summed [s]")
    cpu_quota: float | None = _described("processors' worth of time that the control group grants")
    throttled: float | None = _described("time that the quota has stopped processors for, summed over them [s]")
    throttled_periods: int | None = _described("how often the quota has stopped the control group")
    memory_available: int | None = _described("main memory that can be had without swapping [byte]")
    swap_in: int | None = _described("memory that has been read back from swap since the machine started [byte]")
    gpu_clock: float | None = _described("current clock of the GPU's multiprocessors [Hz]")
    gpu_clock_max: float | None = _described("highest clock of the GPU's multiprocessors [Hz]")
    gpu_clock_reasons: tuple[str, ...] | None = _described("what keeps the GPU's clocks from being higher")
    gpu_memory_clock: float | None = _described("current clock of the GPU's memory [Hz]")
    gpu_temperature: float | None = _described("temperature of the GPU [C]")
    gpu_power: float | None = _described("power that the GPU draws [W]")
    gpu_power_limit: float | None = _described("power limit of the GPU [W]")
    gpu_utilisation: float | None = _described("share of the last moment in which the GPU worked, from 0 to 1")
    gpu_other_processes: tuple[int, ...] | None = _described("ids of other processes that use the GPU")
    meter: str | None = _described("what reads energy and power")
    meter_assumption: str | None = _described("what that assumes instead of measuring it")
    idle_power: float | None = _described("power that it reads without work [W]")

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if not _fits(getattr(self, name), kind):
                raise InvalidValueError(
                    f"The {name!r} of Conditions must be {_WORDS[kind]} or None. Got {getattr(self, name)!r}."
                )

    def as_dict(self) -> dict[str, Any]:
        """Return what was read as plain values, in the order of `CONDITIONS`; what was not is left out."""
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in known.items()
            if value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditions:
        """Make the conditions that `as_dict` told; names that this version does not know are passed over.

        Raises
        ------
        InvalidValueError
            If a value has another type than its field.

        Examples
        --------
        >>> Conditions.from_dict({"load": 0.5, "phase_of_the_moon": "full"}) == Conditions(load=0.5)
        True
        """
        # JSON knows no tuples.
        known: dict[str, Any] = {
            name: tuple(values[name]) if isinstance(values[name], list) else values[name]
            for name in _KINDS
            if name in values
        }
        return cls(**known)


#: Every field of `Conditions`, in the order in which it is shown.
CONDITIONS: tuple[Fact, ...] = tuple(Fact(item.name, item.metadata["meaning"]) for item in fields(Conditions))

# The first argument of each "kind | None".
_KINDS: dict[str, Any] = {name: get_args(hint)[0] for name, hint in get_type_hints(Conditions).items()}

_WORDS: dict[Any, str] = {
    float: "a finite number",
    int: "an int",
    bool: "a bool",
    str: "text",
    tuple[int, ...]: "a tuple of ints",
    tuple[str, ...]: "a tuple of texts",
}


def read_conditions(
    device: str = "cpu", *, root: Path = Path("/"), processors: Sequence[int] | None = None, nvml: Any = None
) -> Conditions:
    """Read the state of this machine now; what cannot be read is left out.

    The processors are read from the files of a Linux kernel, whatever the device: they feed a GPU as well.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    root : Path, default=Path("/")
        The folder in which ``proc`` and ``sys`` lie.
    processors : sequence of int, optional
        Numbers of the processors to look at; by default those that this process may use.
    nvml : module, optional
        What speaks to the driver of the GPU; by default ``pynvml``, which is imported for a GPU alone.

    Raises
    ------
    UnknownNameError
        If `device` is no name of a device. A GPU that is not there is left out instead.

    Examples
    --------
    >>> before = read_conditions()
    >>> after = read_conditions()
    >>> after.taken >= before.taken
    True
    """
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        raise UnknownNameError.of("device", device, ["cpu", "cuda:N"])
    taken = time.perf_counter()
    found = dict(kernel_conditions(root, affinity() if processors is None else processors))
    if device != "cpu":
        found.update(nvml_conditions(int(match[1] or 0), root, nvml))
    return Conditions(taken=taken, **found)


def _fits(value: object, kind: Any) -> bool:
    if value is None:
        return True
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return isinstance(value, tuple) and all(each is not None and _fits(each, item) for each in value)
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, (int, float)) and -math.inf < value < math.inf
    return isinstance(value, kind)
