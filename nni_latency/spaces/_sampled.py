"""`SampledSpace`: a space whose networks are drawn and measured whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nni_latency.spaces._finding import reference_of
from nni_latency.spaces._networks import example_inputs_of, network_of
from nni_latency.spaces._samples import Sample, canonical, draw_samples
from nni_latency.tables import SpaceReference

#: Networks that are timed in every round.
_REFERENCES = 4

#: Added to the seed, so that what is drawn to check a table is not what it was measured with.
_OFFSET = 1_000_003


@dataclass(frozen=True)
class SampledSpace:
    """A space whose networks are drawn, as `nni_latency.tables.measure_networks` takes it.

    Parameters
    ----------
    model_space : ModelSpace
        Any space.
    input_shape : tuple of int
        Shape of the networks' input, batch first.
    known : sequence of mapping, default=()
        Samples that a table was measured with. Reference networks are among them; none of them is drawn.
    """

    model_space: Any = field(repr=False)
    input_shape: tuple[int, ...]
    known: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @classmethod
    def of(cls, model_space: Any, batch_size: int = 1, input_size: int | None = None) -> SampledSpace:
        """Use the input that a space is made for, or another image size."""
        return cls(model_space, tuple(example_inputs_of(model_space, batch_size, input_size).shape))

    @cached_property
    def space(self) -> SpaceReference:
        """Which space it is."""
        return reference_of(self.model_space)

    @property
    def reference(self) -> Mapping[str, Any]:
        """The first of the reference networks."""
        return self.references[0]

    @cached_property
    def references(self) -> tuple[Mapping[str, Any], ...]:
        """Four networks that are fixed for the space: of those known, spread over them, or else drawn."""
        known = list(self.known) or draw_samples(self.model_space, _REFERENCES)
        places = dict.fromkeys(place * len(known) // _REFERENCES for place in range(_REFERENCES))
        return tuple(known[place] for place in places)

    def network_of(self, selection: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a builder of a network; it can be sent to another process."""
        return network_of(self.model_space, selection)

    def draw(self, n: int, seed: int = 0) -> dict[str, Sample]:
        """Draw networks that no table was measured with, ``random 1`` and so on; a small space may have fewer."""
        known = {canonical(sample) for sample in self.known}
        drawn = draw_samples(self.model_space, n + len(known), seed + _OFFSET)
        new = [sample for sample in drawn if canonical(sample) not in known][:n]
        return {f"random {index + 1}": sample for index, sample in enumerate(new)}
