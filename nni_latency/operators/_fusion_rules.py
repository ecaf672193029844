"""`FusionRules`: which operators one runtime runs as one kernel, and how that is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.operators._families import family_of
from nni_latency.operators._op_spec import OpSpec
from nni_latency.platforms import RUNTIME_FACT, Platform


@dataclass(frozen=True)
class FusionTimes:
    """What two neighbours take apart and together. Immutable.

    Parameters
    ----------
    before, last, together : float
        Latency of the operators before the last one, of the last one, and of all in one network; what the runtime adds
        to every run is taken off [s].
    margin : float, default=0.0
        How far `share` may be off, by the intervals of the latencies.
    """

    before: float
    last: float
    together: float
    margin: float = 0.0

    @property
    def share(self) -> float:
        """What is saved together, as a share of the shorter one; 0 where that is too short to be measured."""
        shorter = min(self.before, self.last)
        return (self.before + self.last - self.together) / shorter if shorter > 0 else 0.0

    @property
    def clear(self) -> bool:
        """Whether the share lies on one side of a half, its margin included.

        Above it the margin must be a half at most, too: of many shares that are looked at again and again, one that is
        far off would else be taken for a saving.
        """
        above = self.share - self.margin > 0.5 and self.margin <= 0.5
        return above or self.share + self.margin < 0.5


@dataclass(frozen=True)
class FusionRule:
    """Whether an operator runs in one kernel with the operators before it. Immutable.

    Parameters
    ----------
    kinds : tuple of str
        Kinds or families (`family_of`) of operators that follow each other, two or more: the rule is about the last
        one, where the kernel ends with those before it.
    fused : bool
        Whether it runs in their kernel.
    shared : bool, default=False
        Whether it does so too where the result before it is read elsewhere as well.
    folds : bool, default=False
        Whether the last one becomes part of the weights of those before it, as batch normalisation does: what follows
        is then judged as if it were not there.
    times : FusionTimes, optional
        What was measured.
    source : str, default=""
        How else it is known, such as what the runtime's own model says.

    Examples
    --------
    >>> FusionRule(("conv2d", "relu"), True, times=FusionTimes(4e-4, 1e-4, 4e-4)).name
    'conv2d + relu'
    """

    kinds: tuple[str, ...]
    fused: bool
    shared: bool = False
    folds: bool = False
    times: FusionTimes | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if len(self.kinds) < 2 or not all(self.kinds):
            raise InvalidValueError(
                f"A fusion rule must name two kinds of operators or more, such as conv2d and relu. Got {self.kinds!r}."
            )

    @property
    def name(self) -> str:
        """The kinds, as a person writes them."""
        return " + ".join(self.kinds)


@dataclass(frozen=True, repr=False)
class FusionRules:
    """What one runtime runs as one kernel. Immutable.

    Parameters
    ----------
    platform : Platform
        Where it was found out; the rules are those of its runtime, in its version.
    rules : tuple of FusionRule, default=()
        One for every sequence of kinds that is known.
    constant : float, default=0.0
        What the runtime adds to every run of a network [s].
    failures : mapping of str to str, optional
        Sequences of kinds that could not be tried, and why.
    campaign : str, optional
        The measuring campaign in the database from which they are derived.
    plain : tuple of str, default=()
        Kinds of operators that do not work in the memory layout that the runtime computes convolutions in: their input
        is brought out of it, and their result back into it.
    blocks : mapping of str to int, optional
        Kinds that work in that layout only where all of their inputs consist of whole blocks of so many channels.

    Raises
    ------
    InvalidValueError
        If two rules are of the same kinds.

    Examples
    --------
    >>> rules = FusionRules(Platform("cpu"), (FusionRule(("conv2d", "relu"), True),))
    >>> conv = OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=1, stride=1, groups=1, bias=True)
    >>> rules.find([conv], OpSpec.of("relu", [(1, 4, 8, 8)])).fused
    True
    """

    platform: Platform
    rules: tuple[FusionRule, ...] = ()
    constant: float = 0.0
    failures: Mapping[str, str] = field(default_factory=dict)
    campaign: str | None = None
    plain: tuple[str, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self._by_kinds) != len(self.rules):
            twice = next(rule.name for rule in self.rules if self._by_kinds[rule.kinds] is not rule)
            raise InvalidValueError(f"There must be one fusion rule for a sequence of kinds. Got two for {twice}.")

    def __repr__(self) -> str:
        return f"FusionRules({self.platform.id}, {len(self.fused)} of {len(self.rules)} fused)"

    @property
    def runtime(self) -> str:
        """Name of the runtime."""
        return self.platform.runtime

    @property
    def fused(self) -> tuple[FusionRule, ...]:
        """The rules that say that operators run in one kernel."""
        return tuple(rule for rule in self.rules if rule.fused)

    @property
    def unclear(self) -> tuple[FusionRule, ...]:
        """The rules that were measured and rest on too little."""
        return tuple(rule for rule in self.rules if rule.times is not None and not rule.times.clear)

    @cached_property
    def _by_kinds(self) -> dict[tuple[str, ...], FusionRule]:
        return {rule.kinds: rule for rule in self.rules}

    @cached_property
    def _longest(self) -> int:
        return max((len(rule.kinds) for rule in self.rules), default=0)

    def find(self, before: Sequence[OpSpec], last: OpSpec) -> FusionRule | None:
        """Return the rule for an operator behind others: the longest there is, and a family before its kind.

        Parameters
        ----------
        before : sequence of OpSpec
            What the kernel ends with, without what was folded into weights.
        last : OpSpec
            The operator that may run in it.
        """
        for length in range(min(len(before), self._longest - 1), 0, -1):
            names = [_names(op) for op in (*before[-length:], last)]
            for kinds in itertools.product(*names):
                if kinds in self._by_kinds:
                    return self._by_kinds[kinds]
        return None

    def layout_of(self, ops: Sequence[OpSpec], before: bool | None) -> bool | None:
        """Say whether operators of one kernel work in the memory layout of convolutions.

        Parameters
        ----------
        ops : sequence of OpSpec
            Of the kernel.
        before : bool or None
            In which layout its input comes; None where nobody knows.

        Returns
        -------
        bool or None
            That of the input, where they work in any.
        """
        if any(map(self._is_plain, ops)):
            return False
        return True if ops[0].kind.startswith("conv2d") else before

    def _is_plain(self, op: OpSpec) -> bool:
        names = _names(op)
        if not set(names).isdisjoint(self.plain):
            return True
        block = max((self.blocks.get(name, 1) for name in names), default=1)
        return any(shape[1] % block for shape in op.input_shapes if len(shape) > 1)

    def check_runtime(self, platform: Platform) -> None:
        """Raise `MismatchError` if the rules are not those of a platform's runtime, its precision and its version.

        Parameters
        ----------
        platform : Platform
            Where networks are to be divided into kernels; the device may be another one.
        """
        mine, asked = _runtime_of(self.platform), _runtime_of(platform)
        if any(one and other and one != other for one, other in zip(mine, asked, strict=True)):
            raise MismatchError(
                f"The fusion rules are those of the runtime {_written(mine)}, not of {_written(asked)}: "
                "another runtime makes other kernels. Find out its own with: nni-latency learn kernels --fusion all"
            )


def _runtime_of(platform: Platform) -> tuple[str, str, str]:
    """Return name, precision and version of a runtime; the version is empty where nobody knows it."""
    facts = platform.facts
    return platform.runtime, platform.precision, str(facts.get(f"{RUNTIME_FACT}version", facts.get("torch", "")))


def _written(runtime: tuple[str, str, str]) -> str:
    name, precision, version = runtime
    return f"{name} {version} in {precision}" if version else f"{name} in {precision}"


#: Kinds that compute what another one does, under whose name a rule is looked for, too.
_SAME = {
    **dict.fromkeys(("hardtanh", "clamp"), "relu6"),
    **dict.fromkeys(("concat", "concatenate"), "cat"),
    "multiply": "mul",
    "global_average_pool": "adaptive_avg_pool2d",
}


def _names(op: OpSpec) -> tuple[str, ...]:
    """Name an operator in all ways that a rule may, the narrowest first."""
    return tuple(dict.fromkeys((family_of(op), op.kind, _SAME.get(op.kind, op.kind))))


def reads_whole(op: OpSpec, numbers: int) -> bool:
    """Whether an operator may read a result of so many numbers as it is: not a part of it, and not spread over more."""
    sizes = [math.prod(shape) for shape in op.input_shapes]
    return numbers in sizes and (op.kind in _JOINING or numbers == max(sizes))


#: Kinds whose inputs may differ in size without being spread over each other.
_JOINING = frozenset(("cat", "concat", "concatenate", "stack", "matmul", "bmm"))
