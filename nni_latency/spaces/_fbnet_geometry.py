"""The shapes of the FBNet space: stages, layers, candidates and published networks. Knows neither torch nor NNI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.errors import InvalidValueError, UnknownNameError

#: The nine candidates of every searched layer, in the order of their indices.
CANDIDATES: tuple[str, ...] = (
    "k3_e1",
    "k3_e1_g2",
    "k3_e3",
    "k3_e6",
    "k5_e1",
    "k5_e1_g2",
    "k5_e3",
    "k5_e6",
    "skip",
)

#: Channels and blocks of the seven searched stages (arXiv:1812.03443, table 1).
STAGES: tuple[tuple[int, int], ...] = ((16, 1), (24, 4), (32, 4), (64, 4), (112, 4), (184, 4), (352, 1))
STEM_CHANNELS = 16
HEAD_CHANNELS = 1504


@dataclass(frozen=True)
class Preset:
    """Strides and usual sizes of one configuration of the space."""

    stem_stride: int
    stage_strides: tuple[int, ...]
    input_size: int
    num_classes: int


PRESETS: dict[str, Preset] = {
    "imagenet": Preset(2, (1, 2, 2, 2, 1, 2, 1), 224, 1000),
    "cifar": Preset(1, (1, 1, 2, 2, 1, 2, 1), 32, 100),
}


@dataclass(frozen=True)
class SearchedLayer:
    """Shape of one searched layer."""

    name: str
    in_channels: int
    out_channels: int
    stride: int
    input_size: int


@dataclass(frozen=True)
class CandidateShape:
    """What the name of a candidate says."""

    kernel_size: int
    expansion: int
    groups: int


@dataclass(frozen=True)
class FBNetGeometry:
    """One configuration of the space, with everything that follows from it.

    Parameters
    ----------
    preset : str
        ``imagenet`` or ``cifar``.
    input_size, num_classes, head_channels : int
        Input image size [pixel], classes, channels before the classifier.
    width : float
        Factor on all channels, rounded to a multiple of 8.
    depth : float
        Factor on the blocks of every stage, rounded, at least one.
    """

    preset: str
    input_size: int
    num_classes: int
    width: float
    depth: float
    head_channels: int

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UnknownNameError.of("preset", self.preset, list(PRESETS))
        for name in ("input_size", "num_classes", "head_channels"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidValueError(f"The {name!r} of FBNetSpace must be an int >= 1. Got {value!r}.")
        for name in ("width", "depth"):
            value = getattr(self, name)
            if not 0 < value <= 8:
                raise InvalidValueError(f"The {name!r} of FBNetSpace must be a number in (0, 8]. Got {value!r}.")

    @property
    def stem_channels(self) -> int:
        """Channels of the first convolution."""
        return scale_channels(STEM_CHANNELS, self.width)

    @property
    def layers(self) -> tuple[SearchedLayer, ...]:
        """The searched layers, in order."""
        preset = PRESETS[self.preset]
        size = -(-self.input_size // preset.stem_stride)
        channels = self.stem_channels
        layers: list[SearchedLayer] = []
        for (stage_channels, blocks), stage_stride in zip(STAGES, preset.stage_strides, strict=True):
            out = scale_channels(stage_channels, self.width)
            for block in range(max(1, round(blocks * self.depth))):
                stride = stage_stride if block == 0 else 1
                layers.append(SearchedLayer(f"layer{len(layers)}", channels, out, stride, size))
                channels, size = out, -(-size // stride)
        return tuple(layers)

    @property
    def final(self) -> tuple[int, int]:
        """Channels and side of what the head receives."""
        last = self.layers[-1]
        return last.out_channels, -(-last.input_size // last.stride)


def scale_channels(channels: int, width: float) -> int:
    """Scale a number of channels and round it to a multiple of 8, at least 8.

    >>> scale_channels(112, 0.5), scale_channels(352, 1.0)
    (56, 352)
    """
    return channels if width == 1 else max(8, int(channels * width + 4) // 8 * 8)


def parse_candidate(name: str) -> CandidateShape | None:
    """Read a candidate's name such as ``k5_e1_g2``; None for ``skip``."""
    if name == "skip":
        return None
    kernel, expansion, *groups = name.split("_")
    return CandidateShape(int(kernel[1:]), int(expansion[1:]), int(groups[0][1:]) if groups else 1)


@dataclass(frozen=True)
class PublishedNetwork:
    """A network that its authors published: the searched layers, and the channels of the head."""

    choices: tuple[str, ...]
    head_channels: int


def _network(layers: str, head_channels: int) -> PublishedNetwork:
    return PublishedNetwork(tuple(layers.replace("/", " ").split()), head_channels)


_A = (
    "skip / k3_e3 k3_e1 skip skip / k5_e6 k3_e3 k5_e1 k3_e3 / k5_e6 k5_e3 k5_e1_g2 k5_e6 "
    "/ k3_e6 k5_e1_g2 k5_e3 k3_e1_g2 / k5_e6 k5_e6 k5_e3 k5_e6 / k5_e6"
)
_B = (
    "k3_e1 / k3_e6 k5_e1 k3_e1 k3_e1 / k5_e6 k5_e3 k3_e6 k5_e6 / k5_e6 k5_e1 skip k5_e3 "
    "/ k5_e6 k3_e1 k5_e1 k5_e3 / k5_e6 k5_e1 k5_e6 k5_e6 / k3_e6"
)
_C = (
    "k3_e1 / k3_e6 skip k3_e1 k3_e1 / k5_e6 k5_e3 k5_e6 k3_e6 / k5_e6 k5_e3 k5_e6 k5_e6 "
    "/ k5_e6 k5_e6 k5_e6 k5_e3 / k5_e6 k5_e6 k5_e6 k5_e6 / k3_e6"
)

#: The networks on the release page of FBNet, for the full space of 22 layers.
PUBLISHED_NETWORKS: dict[str, PublishedNetwork] = {
    "fbnet-a": _network(_A, 1504),
    "fbnet-b": _network(_B, 1984),
    "fbnet-b1": _network(_B, 1504),
    "fbnet-c": _network(_C, 1984),
    "fbnet-c1": _network(_C, 1504),
}


def head_variants(head_channels: int, layers: Sequence[SearchedLayer]) -> list[int]:
    """List the head widths that a table measures: the space's own, and in the full space the published ones."""
    published = {network.head_channels for network in PUBLISHED_NETWORKS.values()}
    full = len(layers) == sum(blocks for _, blocks in STAGES) and layers[-1].out_channels == STAGES[-1][0]
    return sorted({head_channels, *published}) if full else [head_channels]
