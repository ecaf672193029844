# SPDX-License-Identifier: Apache-2.0
"""The shapes of the FBNet space, its published networks, and architectures by name. Without torch and NNI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, UnknownNameError, check_ints, listed
from nni_latency.files import is_file, naming, readable
from nni_latency.tables import MeasurePlan
from nni_latency.units import number_of, whole_number

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
    # As github.com/jh88/fbnet, from which a table of a Raspberry Pi 4 comes.
    "cifar10": Preset(1, (1, 2, 2, 1, 1, 1, 1), 32, 10),
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
        ``imagenet``, ``cifar`` or ``cifar10``.
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
        check_ints("FBNetSpace", vars(self), input_size=1, num_classes=1, head_channels=1)
        for name in ("width", "depth"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value <= 8):
                raise InvalidValueError(f"The {name!r} of FBNetSpace must be a number in (0, 8]. Got {value!r}.")
            object.__setattr__(self, name, float(value))

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


def parse_architecture(text: str, plan: MeasurePlan) -> dict[str, str]:
    """Read an architecture of a space.

    Parameters
    ----------
    text : str
        The name of a published network; indices or names of the candidates separated by commas, one per searched
        layer; or the path of a saved NNI sample (JSON).
    plan : MeasurePlan
        The space's plan.

    Returns
    -------
    dict of str to str
        ``{layer: choice}`` for every layer of the plan, the fixed ones included.

    Raises
    ------
    InvalidValueError
        If the text is none of these, or does not fit the space.

    Examples
    --------
    >>> from nni_latency.spaces import FBNetSpace
    >>> plan = FBNetSpace(depth=0.25).measure_plan()
    >>> parse_architecture("8,k3_e1,2,skip,4,5,6", plan)["layer3"]
    'skip'
    """
    if text.lower() in PUBLISHED_NETWORKS:
        return _published(text.lower(), plan)
    if is_file(text):
        with naming(text):
            return complete_selection(read_saved(text), plan)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(plan.searched):
        raise InvalidValueError(
            f"An architecture must be a published network ({', '.join(PUBLISHED_NETWORKS)}), the file of a saved "
            f"sample, or {number_of(len(plan.searched), 'index or name', 'indices or names')} separated by commas. "
            f"Got {_shorten(text)!r}."
        )
    chosen = {layer.name: part for layer, part in zip(plan.searched, parts, strict=True)}
    return complete_selection(chosen, plan)


def complete_selection(sample: dict[str, Any], plan: MeasurePlan) -> dict[str, str]:
    """Check a sample against a plan, turn indices into names and add the fixed layers.

    Raises
    ------
    InvalidValueError
        If it lacks a layer, or has a layer or a choice that the plan does not have.
    """
    unknown = [str(name) for name in sample if name not in {layer.name for layer in plan.layers}]
    if unknown:
        raise InvalidValueError(f"The architecture has labels that the space does not have: {listed(unknown)}.")
    selection = {}
    for layer in plan.layers:
        if layer.name not in sample and layer.searched:
            raise InvalidValueError(f"The architecture has no choice for {layer.name!r}.")
        selection[layer.name] = _choice(layer.name, str(sample.get(layer.name, layer.default)), list(layer.candidates))
    return selection


def _choice(layer: str, text: str, names: list[str]) -> str:
    if text in names:
        return text
    number = whole_number(text)
    if number is not None and number < len(names):
        return names[number]
    raise InvalidValueError(
        f"The choice of {layer!r} must be one of {', '.join(names)}, or an index up to {len(names) - 1}. Got {text!r}."
    )


def published_selections(plan: MeasurePlan) -> dict[str, dict[str, str]]:
    """Return the published networks of the FBNet space that have as many layers as the plan."""
    heads = next(layer for layer in plan.layers if layer.name == "head").candidates
    found = {}
    for name, network in PUBLISHED_NETWORKS.items():
        if len(plan.searched) == len(network.choices):
            chosen = {layer.name: choice for layer, choice in zip(plan.searched, network.choices, strict=True)}
            head = str(network.head_channels)
            found[name] = complete_selection({**chosen, **({"head": head} if head in heads else {})}, plan)
    return found


def _published(name: str, plan: MeasurePlan) -> dict[str, str]:
    if name not in plan.published:
        raise InvalidValueError(
            f"The network {name!r} has {number_of(len(PUBLISHED_NETWORKS[name].choices), 'layer')} of the full FBNet "
            f"space; {plan.space} has {len(plan.searched)}."
        )
    return dict(plan.published[name])


def read_saved(path: str | Path) -> dict[str, Any]:
    """Read a saved sample, a JSON object of labels and choices; `InvalidValueError` for any other file."""
    with readable(path, "a saved sample", InvalidValueError):
        sample = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(sample, dict):
            raise InvalidValueError(
                f"The saved sample {str(path)!r} must be an object of labels and choices. Got {type(sample).__name__}."
            )
        return sample


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
