# SPDX-License-Identifier: Apache-2.0
"""`Remark`: what makes a measurement unsteady, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nni_latency.platforms._conditions import Conditions
from nni_latency.units import format_percent, format_seconds, number_of

# "performance" stays at the highest frequency, and "userspace" at a chosen one.
STEADY_GOVERNORS = frozenset({"performance", "userspace"})

# Own threads are in the load and may use every processor; daemons add a little. Half a process more is other work.
LOAD_MARGIN = 0.5

# The kernel counts in ticks of 10 ms. Over shorter spans than this [s], two of them already look like a share.
SHORTEST_SPAN = 1.0

# Share of the processors' time. Where another process takes more than this, runs wait for it now and then or share
# their caches with it; daemons alone, and the kernel's own rounding, stay below.
OTHERS_SHARE = 0.05

# One run in a hundred is lengthened, which is more than the tables claim to resolve.
STEAL_SHARE = 0.01

# Below this the host of a virtual machine interferes so seldom that dropping outliers takes care of it.
STEAL_SEEN = 0.001

# A few pages of sleeping processes come back on any desktop [byte]; a machine that is short of memory moves far more.
SWAP_NOISE = 1 << 20

# What a small network, its input and the work space of its convolutions ask for at once [byte].
MEMORY_LOW = 256 << 20

# Clocks of a steady machine agree to a few per cent; a fall beyond this changes the times by as much.
FREQUENCY_FALL = 0.1

# NVIDIA's GPUs begin to slow down at 83 to 90 C [C].
TEMPERATURE_HIGH = 85.0

# A GPU that has worked less than half of the last moment may rest at a low clock with good reason.
GPU_BUSY = 0.5

# Clocks that a GPU holds for long lie between two thirds of the highest and all of it.
GPU_CLOCK_LOW = 0.6

# What a machine without work draws differs by a few per cent from minute to minute; more is another state.
IDLE_CHANGE = 0.1

# Reasons for which clocks are not the highest and yet steady: there is no work, or the clocks were set.
HARMLESS_REASONS = frozenset({"idle", "application clocks"})
_POWER_REASONS = frozenset({"power cap", "power brake"})
_HEAT_REASONS = frozenset({"software thermal slowdown", "hardware thermal slowdown"})

_LOCK = "nvidia-smi --lock-gpu-clocks=MHZ"


@dataclass(frozen=True)
class Remark:
    """One thing that makes a measurement unsteady. Immutable.

    Parameters
    ----------
    condition : str
        What was found, as a sentence.
    advice : str
        What to do about it, as a sentence.

    Examples
    --------
    >>> print(Remark("The GPU is at 91 C.", "Improve its cooling."))
    The GPU is at 91 C. Improve its cooling.
    """

    condition: str
    advice: str

    def __str__(self) -> str:
        return f"{self.condition} {self.advice}"


def remarks_on(before: Conditions, after: Conditions | None = None) -> list[Remark]:
    """Say what was unsteady while something was measured; empty if nothing was.

    Parameters
    ----------
    before : Conditions
        Read just before the measurement, on the same machine.
    after : Conditions, optional
        Read just after it. Without it only what one reading shows is judged: nothing that is counted, such as
        stolen time, and no change.

    Returns
    -------
    list of Remark
        At most one for each thing, in a fixed order.

    Examples
    --------
    >>> remarks_on(Conditions(cpu_governor="performance"))
    []
    >>> for remark in remarks_on(Conditions(cpu_governor="powersave")):
    ...     print(remark)
    The frequency governor is 'powersave': clocks rise and fall with the load. Set it with: echo performance |
    sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor
    """
    span = _Span(before, after)
    return [remark for rule in _RULES for remark in rule(span)]


@dataclass(frozen=True)
class _Span:
    """Two readings, or one alone."""

    before: Conditions
    after: Conditions | None

    def known(self, name: str) -> list[Any]:
        """List the values of a field that were read, the latest first."""
        values = [getattr(conditions, name) for conditions in (self.after, self.before) if conditions is not None]
        return [value for value in values if value is not None]

    def latest(self, name: str) -> Any:
        return next(iter(self.known(name)), None)

    def grown(self, name: str) -> Any:
        """Return by how much a counter grew; None if one reading lacks it, or it began anew with another machine."""
        values = self.known(name)
        return values[0] - values[1] if len(values) == 2 and values[0] >= values[1] else None

    def share(self, seconds: float | None) -> float | None:
        """Return what part a time [s] is of that of all usable processors; None if that is unknown."""
        elapsed: float | None = self.grown("taken")
        processors: int | None = self.latest("processors")
        if seconds is None or elapsed is None or elapsed < SHORTEST_SPAN or not processors:
            return None
        return seconds / (elapsed * processors)

    def others(self) -> float | None:
        """Return the share of the processors' time that other processes took."""
        busy, own = self.grown("busy"), self.grown("own_time")
        return None if busy is None or own is None else self.share(busy - own)

    def fall(self, name: str) -> float:
        """Return by what part a value fell; 0 if it did not, or is not known."""
        values = self.known(name)
        return max(0.0, 1 - values[0] / values[1]) if len(values) == 2 and values[1] else 0.0


def _governor(span: _Span) -> Iterator[Remark]:
    names = (span.latest("cpu_governor") or "").split(", ")
    unsteady = [repr(name) for name in names if name and name not in STEADY_GOVERNORS]
    if unsteady:
        yield Remark(
            f"The frequency governor is {' or '.join(unsteady)}: clocks rise and fall with the load.",
            "Set it with: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )


def _company(span: _Span) -> Iterator[Remark]:
    advice = "Stop them, which 'top' lists, or wait until they are done."
    share, loads = span.others(), span.known("load")
    processors = span.latest("processors_online") or span.latest("processors")
    if share is not None:
        # What happened in between is known: the load, a mean over a minute that may lie before, adds nothing.
        if share > OTHERS_SHARE:
            yield Remark(f"Other processes took {format_percent(share)} of the processors' time.", advice)
    elif loads and processors and max(loads) > processors + LOAD_MARGIN:
        yield Remark(
            f"The load was {max(loads):.1f} on {number_of(processors, 'processor')}: others are at work.", advice
        )


def _steal(span: _Span) -> Iterator[Remark]:
    share = span.share(span.grown("steal"))
    if share is None or share <= STEAL_SEEN:
        return
    if share > STEAL_SHARE:
        yield Remark(
            f"The host of this virtual machine withheld {format_percent(share)} of the processors' time: it is busy.",
            "Measure again at a quieter time, or on a dedicated machine.",
        )
    elif span.latest("virtualised"):
        yield Remark(
            f"This is a virtual machine, and its host withheld {format_percent(share)} of the processors' time.",
            "This is little; measure once more to see that the values hold.",
        )


def _quota(span: _Span) -> Iterator[Remark]:
    times, stopped, quota = span.grown("throttled_periods"), span.grown("throttled"), span.latest("cpu_quota")
    if times:
        size = f" of {number_of(quota, 'processor')}" if quota else ""
        lasting = f", for {format_seconds(stopped)} of processor time" if stopped else ""
        yield Remark(
            f"The CPU quota{size} stopped the processes of this container {number_of(times, 'time')}{lasting}.",
            "Raise the quota, or measure with fewer threads than it has processors.",
        )


def _swapping(span: _Span) -> Iterator[Remark]:
    moved = span.grown("swap_in") or 0
    if moved > SWAP_NOISE:
        yield Remark(
            f"{_mebibytes(moved)} were read back from swap: memory was short.",
            "Stop what fills the memory, or take a smaller batch.",
        )


def _memory(span: _Span) -> Iterator[Remark]:
    least = min(span.known("memory_available"), default=MEMORY_LOW)
    if least < MEMORY_LOW:
        yield Remark(
            f"Only {_mebibytes(least)} of memory were available.",
            "Stop what fills the memory, before the machine begins to swap.",
        )


def _frequency(span: _Span) -> Iterator[Remark]:
    # Idle processors rest at a low frequency even on a steady machine, so the fastest counts, not the mean.
    name = "cpu_frequency_top" if len(span.known("cpu_frequency_top")) == 2 else "cpu_frequency"
    if span.fall(name) > FREQUENCY_FALL:
        end, start = span.known(name)
        yield Remark(
            f"The processors' frequency fell from {_gigahertz(start)} to {_gigahertz(end)}.",
            "Let the machine warm up before, improve its cooling, or turn its turbo frequencies off.",
        )


def _heat(span: _Span) -> Iterator[Remark]:
    if any(span.known("cpu_slowed")):
        highest = max(span.known("cpu_temperature"), default=None)
        at = f" at {highest:.0f} C" if highest is not None else ""
        yield Remark(
            f"The processors were slowed down{at}.",
            "Improve the cooling or the power supply, or let the machine rest between measurements.",
        )


def _gpu_reasons(span: _Span) -> Iterator[Remark]:
    reasons = list(dict.fromkeys(word for words in reversed(span.known("gpu_clock_reasons")) for word in words))
    power, heat = (", ".join(word for word in reasons if word in group) for group in (_POWER_REASONS, _HEAT_REASONS))
    rest = ", ".join(word for word in reasons if word not in _POWER_REASONS | _HEAT_REASONS | HARMLESS_REASONS)
    limit = span.latest("gpu_power_limit")
    if power:
        at = f" at a limit of {limit:.0f} W" if limit else ""
        yield Remark(
            f"The GPU lowered its clocks to save power{at} ({power}).",
            f"Raise the limit with: nvidia-smi --power-limit=WATTS, or hold lower clocks with: {_LOCK}",
        )
    if heat:
        yield Remark(
            f"The GPU lowered its clocks because of heat ({heat}).",
            f"Improve its cooling, or hold lower clocks with: {_LOCK}",
        )
    # The hardware's slowdown is reported along with its cause, so it is a separate remark only where it stands alone.
    if rest and not (rest == "hardware slowdown" and (power or heat)):
        yield Remark(
            f"The GPU lowered its clocks ({rest}).",
            "See what limits them with: nvidia-smi --query --display=CLOCK,POWER,PERFORMANCE",
        )


def _gpu_temperature(span: _Span) -> Iterator[Remark]:
    highest = max(span.known("gpu_temperature"), default=0.0)
    if highest > TEMPERATURE_HIGH:
        yield Remark(
            f"The GPU is at {highest:.0f} C, where it begins to lower its clocks.",
            "Improve its cooling, or let it rest between measurements.",
        )


def _gpu_clock(span: _Span) -> Iterator[Remark]:
    # Of one reading: whether the clock is low is only known at the moment at which the GPU is known to be busy.
    end = span.after or span.before
    clock, highest = end.gpu_clock, end.gpu_clock_max
    explained = set(end.gpu_clock_reasons or ()) - {"idle"}
    if clock is None or (end.gpu_utilisation or 0.0) < GPU_BUSY or explained:
        return
    if highest and clock < GPU_CLOCK_LOW * highest:
        yield Remark(
            f"The busy GPU ran at {_gigahertz(clock)}, {format_percent(clock / highest)} of its highest clock.",
            "Unless it is locked on purpose, release it with: nvidia-smi --reset-gpu-clocks",
        )
    elif span.fall("gpu_clock") > FREQUENCY_FALL:
        yield Remark(
            f"The GPU's clock fell from {_gigahertz(span.known('gpu_clock')[1])} to {_gigahertz(clock)}.",
            f"Hold it at one that it can keep with: {_LOCK}",
        )


def _gpu_company(span: _Span) -> Iterator[Remark]:
    others = sorted({each for ids in span.known("gpu_other_processes") for each in ids})
    if others:
        ids = ", ".join(str(each) for each in others)
        yield Remark(
            f"{number_of(len(others), 'other process', 'other processes')} used the GPU ({ids}).",
            "Stop what is not needed, or measure on another GPU.",
        )


def _meter(span: _Span) -> Iterator[Remark]:
    assumption = span.latest("meter_assumption")
    if assumption:
        yield Remark(
            f"Energy and power were not measured: they follow from {assumption}, which is an assumption.",
            "Compare them only with others of the same assumption, or name a meter.",
        )


def _idle_power(span: _Span) -> Iterator[Remark]:
    values = span.known("idle_power")
    if len(values) == 2 and abs(values[0] - values[1]) > IDLE_CHANGE * max(values):
        yield Remark(
            f"The machine drew {values[1]:.3g} W without work before, and {values[0]:.3g} W after.",
            "Let it warm up before and keep other work off it: net energy is not to be trusted.",
        )


_RULES: tuple[Callable[[_Span], Iterator[Remark]], ...] = (
    _governor,
    _company,
    _steal,
    _quota,
    _swapping,
    _memory,
    _frequency,
    _heat,
    _gpu_reasons,
    _gpu_temperature,
    _gpu_clock,
    _gpu_company,
    _meter,
    _idle_power,
)


def _gigahertz(value: float) -> str:
    return f"{value / 1e9:.2f} GHz"


def _mebibytes(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"
