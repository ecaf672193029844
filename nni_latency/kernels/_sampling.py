# SPDX-License-Identifier: Apache-2.0
"""Sampling of kernel configurations: the prior from known networks, and the choice of configurations to measure."""

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
from nni_latency.errors import InvalidValueError, check_ints
from nni_latency.files import write_atomically
from nni_latency.kernels._catalogue import kernel_types
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._naming import kernel_of
from nni_latency.operators import Trace

_SHIPPED = Path(__file__).with_name("prior.json")

#: Most operators of one kernel, other than a gate.
_LONGEST = 3

#: Number of operators of a gate.
_GATE = 6

#: Strategies for choosing configurations after the initial ones.
Refinement = Literal["uncertain", "finegrained", "prior", "random"]

#: Range of the channels near another configuration, as ratios; the values of nn-Meter.
_NEAR = (0.4, 1.2)

#: Range of the channels of a configuration from the prior, as ratios to those in a known network.
_AROUND = (0.3, 1.4)

#: Probabilities that a configuration from the prior keeps its channels, and that it takes its other sizes from another.
_KEPT, _MIXED = 0.25, 0.25

#: Probability that a draw from the prior is uniform instead, because future networks have other sizes.
_ANYWHERE = 0.2

#: Size of the pool of candidates, per configuration to choose from it by uncertainty.
_POOL = 12

#: Maximum number of attempts per new configuration.
_TRIES = 40

#: Lower bound of the random share of the size limits to which a random kernel is shrunk.
_SMALLEST = 1e-3

_CHANNEL_NAMES = ("CIN", "COUT", "CHANNELS", "INNER", "COLUMNS", "ROWS", "TOKENS", "LENGTH")


@dataclass(frozen=True)
class Sampling:
    """Number and choice of the configurations to measure, with the parameter names of nn-Meter. Immutable.

    Parameters
    ----------
    init_sample_num : int, default=200
        Initial configurations of each kernel, from the prior; for one with fewer than five sizes, proportionally fewer.
    finegrained_sample_num : int, default=10
        Configurations added for each one with a large error; at most half the number of known ones.
    iteration : int or None, default=None
        Number of iterations that add configurations; None for as many as the budget allows.
    error_threshold : float, default=0.1
        Relative error above which an error is large.
    refinement : {"uncertain", "finegrained", "prior", "random"}, default="uncertain"
        Strategy of the choice. "uncertain": where the trees of a forest disagree and networks spend time.
        "finegrained": near those with large errors, with 0.4 to 1.2 times their channels, as in nn-Meter. "prior": like
        the initial ones. "random": uniformly, for the initial ones too.
    seed : int, default=0
        Seed of all random draws.
    test_sample_num : int, default=0
        Configurations of each kernel, from the prior, that are measured in the same rounds and excluded from training:
        the test set of the predictors.

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
        least = {"init_sample_num": 10, "finegrained_sample_num": 1, "seed": 0, "test_sample_num": 0}
        if self.iteration is not None:
            least["iteration"] = 0
        check_ints("a Sampling", vars(self), **least)
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
    """Samples configurations without repetition. Deterministic for a given sequence of calls."""

    def __init__(self, prior: Prior, seed: int) -> None:
        self.prior, self._generator = prior, np.random.default_rng(seed)
        self._drawn: set[Kernel] = set()

    def leave_out(self, kernels: Iterable[Kernel]) -> None:
        """Exclude kernels from all draws."""
        self._drawn.update(kernels)

    def random(self, kind: KernelType, count: int) -> list[Kernel]:
        """Draw from all configurations of a type."""
        return self._new(lambda: draw_random(kind, self._generator), count)

    def from_prior(self, kind: KernelType, count: int) -> list[Kernel]:
        """Draw configurations similar to those of known networks; at random if there are none."""
        return self._new(self._prior_draw(kind), count)

    def near(self, kind: KernelType, centres: Iterable[Kernel], count: int) -> list[Kernel]:
        """Draw `count` configurations near each centre, with other channels."""
        found: list[Kernel] = []
        for centre in centres:
            found += self._new(lambda kernel=centre: draw_near(kind, kernel, self._generator), count)  # type: ignore[misc]
        return found

    def where(
        self, kinds: Sequence[KernelType], count: int, worth: Callable[[Sequence[Kernel]], np.ndarray[Any, Any]]
    ) -> list[Kernel]:
        """Draw `count` configurations of the kinds of one group from the prior.

        They are weighted by `worth`, which takes kernels and returns nonnegative numbers, of shape (n_kernels,).
        """
        each = max(1, _POOL * count // len(kinds))
        draws = [self._prior_draw(kind) for kind in kinds]
        pool = [draw() for draw in draws for _ in range(each)]
        pool = list(dict.fromkeys(kernel for kernel in pool if kernel not in self._drawn))
        if not pool:
            return []
        weights = np.maximum(worth(pool), 0.0) + 1e-12
        # Gumbel top-k: a weighted draw without replacement.
        order = np.argsort(-np.log(weights) - self._generator.gumbel(size=len(pool)))
        chosen = [pool[place] for place in order[:count].tolist()]
        self._drawn.update(chosen)
        return chosen

    def _prior_draw(self, kind: KernelType) -> Callable[[], Kernel]:
        known, weights = self.prior.known(kind)
        if not known:
            return lambda: draw_random(kind, self._generator)
        # Flatten the distribution, so that the same few frequent configurations are not drawn repeatedly.
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
    """Whether a size scales with the width of a network."""
    return name.rstrip("0123456789") in _CHANNEL_NAMES


def draw_random(kind: KernelType, generator: np.random.Generator) -> Kernel:
    """Draw from all configurations of a type, uniformly on a logarithmic scale of size."""
    sizes = {name: domain.draw(generator) for name, domain in kind.domains.items()}
    return kind.snap(sizes, _SMALLEST ** generator.random())


def draw_near(kind: KernelType, centre: Kernel, generator: np.random.Generator) -> Kernel:
    """Draw a configuration with 0.4 to 1.2 times the channels of another one."""
    return kind.snap(_widened(centre, _NEAR, generator))


def draw_around(
    kind: KernelType, known: Sequence[Kernel], shares: np.ndarray[Any, Any], generator: np.random.Generator
) -> Kernel:
    """Draw a configuration similar to known ones: unchanged, with other channels, or with some sizes of another one."""
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
        Number of occurrences of each kernel, by group.
    """

    counts: Mapping[str, Mapping[Kernel, int]] = field(default_factory=dict)
    _known: dict[str, tuple[list[Kernel], list[float]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def known(self, kind: KernelType) -> tuple[list[Kernel], list[float]]:
        """Return the configurations around which a type is sampled, with their weights; empty if there are none.

        They are those of its group, because the same sizes occur with every activation; or those of the type itself.
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
        """Count the kernels of networks, which are traced by graph at batch size 1."""
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
        """Identifies the prior."""
        lines = [f"{kernel.key} {count}" for kernels in self.counts.values() for kernel, count in kernels.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> Path:
        """Write the prior to a JSON file, one line per configuration."""
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
        """Read a prior from its file.

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
    """Return the shipped prior: FBNet and the spaces of NNI's hub, see ``examples/kernel_prior.py``."""
    return Prior.load(_SHIPPED)


def divide(network: Trace) -> list[Kernel]:
    """Divide a network into kernels by the fusion of most runtimes: an only reader is fused to its source if possible.

    Operators that form no kernel of the catalogue are skipped.
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
    """Return the longest kernel that begins at an operator, and its number of operators."""
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
