"""Which configurations occur in known networks, and which are measured."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from nni_latency.documents import DocumentFormat, StrictDocument
from nni_latency.errors import InvalidValueError
from nni_latency.files import write_atomically
from nni_latency.kernels._catalogue import kernel_types
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._naming import kernel_of
from nni_latency.operators import Trace

_SHIPPED = Path(__file__).with_name("prior.json")

#: Operators that one kernel has at most, a gate apart.
_LONGEST = 3

#: Operators of a gate.
_GATE = 6

#: Ways to choose configurations after the first ones.
Refinement = Literal["uncertain", "finegrained", "prior", "random"]

#: Channels of a configuration near another one, as shares, as nn-Meter has them.
_NEAR = (0.4, 1.2)

#: Channels of a configuration from the prior, as shares of those in a known network.
_AROUND = (0.3, 1.4)

#: How often a configuration from the prior takes its channels as they are, and the rest of its sizes from another one.
_KEPT, _MIXED = 0.25, 0.25

#: How often a draw from the prior is one from anywhere, because networks to come have other sizes.
_ANYWHERE = 0.2

#: Candidates among which those are chosen where a model is uncertain, for each that is chosen.
_POOL = 12

#: Tries to find a configuration that is new.
_TRIES = 40

#: A kernel that is drawn at random is cut down to a share of the largest, between this one and all of it.
_SMALLEST = 1e-3

_CHANNEL_NAMES = ("CIN", "COUT", "CHANNELS", "INNER", "COLUMNS", "ROWS", "TOKENS", "LENGTH")


@dataclass(frozen=True)
class Sampling:
    """How many configurations are measured, and which; the names are nn-Meter's. Immutable.

    Parameters
    ----------
    init_sample_num : int, default=200
        Configurations of each kernel in the beginning, from the prior; of one with fewer than five sizes, in
        proportion fewer.
    finegrained_sample_num : int, default=10
        Configurations added for each whose error is large; half as many as are known at most.
    iteration : int or None, default=None
        How often configurations are added; None for as long as the budget lasts.
    error_threshold : float, default=0.1
        An error is large from here on, as a ratio.
    refinement : {"uncertain", "finegrained", "prior", "random"}, default="uncertain"
        How they are chosen. "uncertain": where trees of a forest disagree and networks spend time. "finegrained":
        around those with large errors, with 0.4 to 1.2 times their channels, as nn-Meter does. "prior": as in the
        beginning. "random": anywhere, in the beginning too.
    seed : int, default=0
        Seed of all draws.
    test_sample_num : int, default=0
        Configurations of each kernel, from the prior, that are measured in the same rounds and never learned from:
        predictors are held to them.

    Raises
    ------
    InvalidValueError
        If a value is out of its range.
    """

    init_sample_num: int = 200
    finegrained_sample_num: int = 10
    iteration: int | None = None
    error_threshold: float = 0.1
    refinement: Refinement = "uncertain"
    seed: int = 0
    test_sample_num: int = 0

    def __post_init__(self) -> None:
        least = {"init_sample_num": 10, "finegrained_sample_num": 1, "iteration": 0, "seed": 0, "test_sample_num": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if name == "iteration" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidValueError(f"The {name!r} of a Sampling must be an int >= {low}. Got {value!r}.")
        if not 0 < self.error_threshold < 1:
            raise InvalidValueError(
                f"The 'error_threshold' of a Sampling must be in (0, 1). Got {self.error_threshold!r}."
            )
        if self.refinement not in ("uncertain", "finegrained", "prior", "random"):
            raise InvalidValueError(
                "The 'refinement' of a Sampling must be uncertain, finegrained, prior or random. "
                f"Got {self.refinement!r}."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Sampler:
    """Draws configurations that were not drawn before. The same calls give the same ones.

    Parameters
    ----------
    prior : Prior
        Configurations that occur in networks.
    seed : int
        Of the draws.
    """

    def __init__(self, prior: Prior, seed: int) -> None:
        self.prior, self._generator = prior, np.random.default_rng(seed)
        self._drawn: set[Kernel] = set()

    def leave_out(self, kernels: Iterable[Kernel]) -> None:
        """Never draw these."""
        self._drawn.update(kernels)

    def random(self, kind: KernelType, count: int) -> list[Kernel]:
        """Draw from all configurations that a type has."""
        return self._new(lambda: draw_random(kind, self._generator), count)

    def from_prior(self, kind: KernelType, count: int) -> list[Kernel]:
        """Draw configurations like those of known networks; at random where none is known."""
        return self._new(self._prior_draw(kind), count)

    def near(self, kind: KernelType, centres: Iterable[Kernel], count: int) -> list[Kernel]:
        """Draw `count` configurations around each centre, with other channels."""
        found: list[Kernel] = []
        for centre in centres:
            found += self._new(lambda kernel=centre: draw_near(kind, kernel, self._generator), count)  # type: ignore[misc]
        return found

    def where(
        self, kinds: Sequence[KernelType], count: int, worth: Callable[[Sequence[Kernel]], np.ndarray[Any, Any]]
    ) -> list[Kernel]:
        """Draw configurations of several kinds from the prior, those preferred that are worth more.

        Parameters
        ----------
        kinds : sequence of KernelType
            Of one group.
        count : int
            How many.
        worth : callable
            Takes kernels, and returns an array of shape (n_kernels,), not negative.
        """
        each = max(1, _POOL * count // len(kinds))
        draws = [self._prior_draw(kind) for kind in kinds]
        pool = [draw() for draw in draws for _ in range(each)]
        pool = list(dict.fromkeys(kernel for kernel in pool if kernel not in self._drawn))
        if not pool:
            return []
        weights = np.maximum(worth(pool), 0.0) + 1e-12
        # The largest of weights to the power of 1/u are a weighted draw without replacement.
        order = np.argsort(-np.log(weights) - self._generator.gumbel(size=len(pool)))
        chosen = [pool[place] for place in order[:count].tolist()]
        self._drawn.update(chosen)
        return chosen

    def _prior_draw(self, kind: KernelType) -> Callable[[], Kernel]:
        known, weights = self.prior.known(kind)
        if not known:
            return lambda: draw_random(kind, self._generator)
        # Rare configurations are drawn more often than they occur, or the same few would be drawn again and again.
        shares = np.sqrt(weights) / np.sum(np.sqrt(weights))

        def draw() -> Kernel:
            if self._generator.random() < _ANYWHERE:
                return draw_random(kind, self._generator)
            return draw_around(kind, known, shares, self._generator)

        return draw

    def _new(self, draw: Callable[[], Kernel], count: int) -> list[Kernel]:
        found: list[Kernel] = []
        for _ in range(_TRIES * count):
            if len(found) == count:
                break
            kernel = draw()
            if kernel not in self._drawn:
                self._drawn.add(kernel)
                found.append(kernel)
        return found


def is_channels(name: str) -> bool:
    """Whether a size is one that a network's width changes."""
    return name.rstrip("0123456789") in _CHANNEL_NAMES


def draw_random(kind: KernelType, generator: np.random.Generator) -> Kernel:
    """Draw from all configurations that a type has, small ones as often as large ones."""
    sizes = {name: domain.draw(generator) for name, domain in kind.domains.items()}
    return kind.snap(sizes, _SMALLEST ** generator.random())


def draw_near(kind: KernelType, centre: Kernel, generator: np.random.Generator) -> Kernel:
    """Draw a configuration with 0.4 to 1.2 times the channels of another one."""
    return kind.snap(_widened(centre, _NEAR, generator))


def draw_around(
    kind: KernelType, known: Sequence[Kernel], shares: np.ndarray[Any, Any], generator: np.random.Generator
) -> Kernel:
    """Draw a configuration like those that are known: as it is, with other channels, or with sizes of another one."""
    first, second = (known[place] for place in generator.choice(len(known), size=2, p=shares))
    how = generator.random()
    sizes = first.sizes if how < _KEPT else _widened(first, _AROUND, generator)
    if how > 1 - _MIXED:
        sizes |= {name: size for name, size in second.sizes.items() if not is_channels(name)}
    return kind.snap(sizes)


def _widened(kernel: Kernel, shares: tuple[float, float], generator: np.random.Generator) -> dict[str, int]:
    return {
        name: round(size * generator.uniform(*shares)) if is_channels(name) else size
        for name, size in kernel.sizes.items()
    }


class PriorDocument(StrictDocument):
    """How often kernels occur in known networks."""

    format: Literal["nni_latency.kernel_prior"]
    version: Literal[1]
    groups: dict[str, dict[str, NonNegativeInt]] = Field(description="by group, how often each kernel occurs")


PRIOR = DocumentFormat(
    "nni_latency.kernel_prior",
    1,
    "prior",
    "a prior of kernels",
    "leave it out to take the one that ships.",
    model=PriorDocument,
)


@dataclass(frozen=True)
class Prior:
    """Configurations that occur in known networks, by group of kernel types. Immutable.

    Parameters
    ----------
    counts : mapping of str to mapping of Kernel to int
        By group, how often each kernel occurs.
    """

    counts: Mapping[str, Mapping[Kernel, int]] = field(default_factory=dict)
    _known: dict[str, tuple[list[Kernel], list[float]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def known(self, kind: KernelType) -> tuple[list[Kernel], list[float]]:
        """Return the configurations from which a type is sampled, each with its weight; none if there are none.

        Those of its group, because the same sizes occur with every activation; or what the type itself brings.
        """
        if kind.known:
            return [kind.snap(sizes) for sizes in kind.known], [1.0] * len(kind.known)
        if kind.name not in self._known:
            found = self.counts.get(kind.group, {})
            kernels, weights = [kind.snap(kernel.sizes) for kernel in found], [float(count) for count in found.values()]
            self._known[kind.name] = kernels, weights
        return self._known[kind.name]

    @classmethod
    def of(cls, networks: Iterable[Trace]) -> Prior:
        """Count the kernels of networks.

        Parameters
        ----------
        networks : iterable of Trace
            Traced by graph, batch size 1.
        """
        found: dict[str, Counter[Kernel]] = {}
        types = kernel_types()
        for network in networks:
            for kernel in divide(network):
                kind = types.get(kernel.kind)
                if kind is not None and set(kernel.sizes) == set(kind.domains):
                    found.setdefault(kind.group, Counter())[kind.snap(kernel.sizes)] += 1
        return cls({group: dict(sorted(items.items(), key=_in_order)) for group, items in sorted(found.items())})

    @functools.cached_property
    def digest(self) -> str:
        """What tells it from other priors."""
        lines = [f"{kernel.key} {count}" for kernels in self.counts.values() for kernel, count in kernels.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> Path:
        """Write it to a JSON file, a line for each configuration."""
        groups = {
            group: {kernel.key: count for kernel, count in kernels.items()} for group, kernels in self.counts.items()
        }
        content = {**PRIOR.head, "groups": groups}
        with PRIOR.writable(str(path)):
            PRIOR.check_content(content)
        write_atomically(Path(path), json.dumps(content, indent=0) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Prior:
        """Read it from its file.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of a newer version.
        """
        return PRIOR.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: PriorDocument) -> Prior:
        return cls(
            {
                group: {Kernel.parse(key): count for key, count in found.items()}
                for group, found in document.groups.items()
            }
        )


def _in_order(item: tuple[Kernel, int]) -> tuple[int, str]:
    return -item[1], item[0].key


@functools.cache
def shipped_prior() -> Prior:
    """Return the prior that ships: FBNet and the spaces of NNI's hub, see ``examples/kernel_prior.py``."""
    return Prior.load(_SHIPPED)


def divide(network: Trace) -> list[Kernel]:
    """Divide a network into kernels, as most runtimes do: what follows alone on an operator is fused where it can be.

    What is no kernel of the catalogue is left out.
    """
    followers = Counter(source for item in network.operators for source in item.sources)
    found: list[Kernel] = []
    place = 0
    while place < len(network.operators):
        kernel, length = _longest(network, place, followers)
        if kernel is not None:
            found.append(kernel)
        place += length
    return found


def _longest(network: Trace, place: int, followers: Mapping[int, int]) -> tuple[Kernel | None, int]:
    """Return the kernel of most operators that begins at a place, and how many they are."""
    gate = [item.op for item in network.operators[place : place + _GATE]]
    kernel = kernel_of(gate) if len(gate) == _GATE else None
    if kernel is not None and kernel.kind == "se_block":
        return kernel, _GATE
    last = place
    for end in range(place + 1, min(place + _LONGEST, len(network.operators))):
        if tuple(network.operators[end].sources) != (last,) or followers.get(last) != 1:
            break
        if kernel_of(_ops(network, place, end + 1)) is None:
            break
        last = end
    return kernel_of(_ops(network, place, last + 1)), last + 1 - place


def _ops(network: Trace, begin: int, end: int) -> Sequence[Any]:
    return [item.op for item in network.operators[begin:end]]
