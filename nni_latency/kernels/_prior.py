"""The prior: configurations that occur in known networks, and how often."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from nni_latency.documents import DocumentFormat, StrictDocument
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
