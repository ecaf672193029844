# SPDX-License-Identifier: Apache-2.0
"""Families of networks, and their members as ONNX files without weights."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from joblib import delayed
from torch import nn

from nni_latency.errors import InvalidValueError, UnknownNameError, check_ints
from nni_latency.files import write_atomically
from nni_latency.graphs import _block_networks as blocks
from nni_latency.graphs import _mobile_networks as mobile
from nni_latency.graphs import _picture_networks as pictures
from nni_latency.graphs import _sequence_networks as sequence
from nni_latency.graphs._blocks import Variation
from nni_latency.graphs._mixed_networks import mixed, mixed_small
from nni_latency.graphs._side_by_side import side_by_side
from nni_latency.graphs._streaming_networks import streaming_networks
from nni_latency.graphs._task_networks import task_networks
from nni_latency.operators import export_onnx, without_weights

_IMAGE = (3, 224, 224)


class NetworkFamily(ABC):
    """A source of networks: every seed gives one.

    Attributes
    ----------
    name : str
        Name such as ``"resnet"``.
    """

    name: str

    @property
    @abstractmethod
    def summary(self) -> str:
        """What its networks are, in a line."""

    @abstractmethod
    def onnx(self, seed: int, batch_size: int = 1) -> Any:
        """Return the network of a seed as an ``onnx.ModelProto`` with random weights, always the same."""


@dataclass(frozen=True)
class BlockFamily(NetworkFamily):
    """Networks of random blocks that are written in ONNX, on inputs of any shape; they have no modules. Immutable.

    Parameters
    ----------
    name : str
        Name such as ``"blocks-token"``.
    write : callable
        Takes a seed and a batch size; returns an ``onnx.ModelProto``.

    Examples
    --------
    >>> from nni_latency.graphs import block_families
    >>> model = block_families()["blocks-vector"].onnx(0)
    >>> len(model.graph.input)
    1
    """

    name: str
    write: Callable[[int, int], Any] = field(compare=False)

    @property
    def summary(self) -> str:
        """What its networks are, in a line."""
        return (self.write.__doc__ or "").partition("\n")[0].rstrip(".").removeprefix("Write ")

    def onnx(self, seed: int, batch_size: int = 1) -> Any:
        """Return the network of a seed as an ``onnx.ModelProto`` with random weights, always the same.

        Raises
        ------
        MissingDependencyError
            If the package onnx is not installed.
        """
        return self.write(seed, batch_size)


@dataclass(frozen=True)
class Family(NetworkFamily):
    """A family of networks. Immutable; it is sent to other processes by pickle.

    Parameters
    ----------
    name : str
        Name such as ``"resnet"``.
    build : callable
        Takes a `Variation`; returns a network with random weights.
    input_shape : tuple of int, default=(3, 224, 224)
        Input shape without the batch dimension.
    vocabulary : int, optional
        For integer inputs, their exclusive upper bound.

    Examples
    --------
    >>> from nni_latency.graphs import families
    >>> squeezenet = families()["squeezenet"]
    >>> squeezenet.network(0)(squeezenet.example_inputs()).shape
    torch.Size([1, 1000])
    """

    name: str
    build: Callable[[Variation], nn.Module] = field(compare=False)
    input_shape: tuple[int, ...] = _IMAGE
    vocabulary: int | None = None

    @property
    def summary(self) -> str:
        """Name and reference of the published network."""
        return (self.build.__doc__ or "").partition("\n")[0].rstrip(".")

    def network(self, seed: int) -> nn.Module:
        """Build the network of a seed in evaluation mode, deterministically; seed 0 is the published one.

        Raises
        ------
        InvalidValueError
            If the seed is negative.
        """
        if seed < 0:
            raise InvalidValueError(f"The seed of a network must be >= 0. Got {seed}.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build(Variation(seed, self.name)).eval().requires_grad_(False)

    def onnx(self, seed: int, batch_size: int = 1) -> Any:
        """Return the network of a seed as an ``onnx.ModelProto`` with random weights, always the same.

        Raises
        ------
        MissingDependencyError
            If the package onnx is not installed.
        """
        return export_onnx(self.network(seed), [self.example_inputs(batch_size)]).model

    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        """Return an example input, always the same."""
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size, *self.input_shape)
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, shape, generator=generator)
        return torch.randn(shape, generator=generator)


_FAMILIES = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("alexnet", pictures.alexnet),
            Family("bert", sequence.bert, (sequence.TEXT_LENGTH,), sequence.VOCABULARY),
            Family("convnext", pictures.convnext),
            Family("densenet", pictures.densenet),
            Family("efficientnet", mobile.efficientnet),
            Family("googlenet", pictures.googlenet),
            Family("mixed", mixed),
            Family("mixed-small", mixed_small, (3, 32, 32)),
            Family("mnasnet", mobile.mnasnet),
            Family("mobilenetv1", mobile.mobilenetv1),
            Family("mobilenetv2", mobile.mobilenetv2),
            Family("mobilenetv3", mobile.mobilenetv3),
            Family("nasbench201", pictures.nasbench201, (3, 32, 32)),
            Family("proxylessnas", mobile.proxylessnas),
            Family("resnet", pictures.resnet),
            Family("resnet1d", sequence.resnet1d, (1, sequence.SIGNAL_LENGTH)),
            Family("shufflenetv2", mobile.shufflenetv2),
            Family("squeezenet", pictures.squeezenet),
            Family("vgg", pictures.vgg),
            Family("vit", sequence.vit),
        )
    }
)


_BLOCK_FAMILIES = MappingProxyType(
    {
        family.name: family
        for family in (
            BlockFamily("blocks-large", blocks.large_blocks),
            BlockFamily("blocks-picture", blocks.picture_blocks),
            BlockFamily("blocks-rare", blocks.rare_blocks),
            BlockFamily("blocks-recurrent", blocks.recurrent_blocks),
            BlockFamily("blocks-signal", blocks.signal_blocks),
            BlockFamily("blocks-staged", blocks.staged_blocks),
            BlockFamily("blocks-streaming", streaming_networks),
            BlockFamily("blocks-task", task_networks),
            BlockFamily("blocks-token", blocks.token_blocks),
            BlockFamily("blocks-vector", blocks.vector_blocks),
        )
    }
)


def families() -> Mapping[str, Family]:
    """Return the families of modules by name."""
    return _FAMILIES


def block_families() -> Mapping[str, BlockFamily]:
    """Return the families of random blocks in ONNX by name."""
    return _BLOCK_FAMILIES


def find_families(names: Iterable[str]) -> list[NetworkFamily]:
    """Find families by name, without duplicates: ``"all"`` of modules, or all of random ``"blocks"`` in ONNX.

    Raises
    ------
    UnknownNameError
        If a name is unknown.
    """
    known: dict[str, NetworkFamily] = {**_FAMILIES, **_BLOCK_FAMILIES}
    several: dict[str, Mapping[str, NetworkFamily]] = {"all": _FAMILIES, "blocks": _BLOCK_FAMILIES}
    found: dict[str, NetworkFamily] = {}
    for name in names:
        if name not in known and name not in several:
            raise UnknownNameError.of("family", name, [*sorted(known), *several])
        found |= several[name] if name in several else {name: known[name]}
    return list(found.values())


#: A family, and the seed of a member.
Member = tuple[NetworkFamily, int]


def save_onnx(family: NetworkFamily, seed: int, path: str | Path, batch_size: int = 1) -> Path:
    """Write a member of a family as an ONNX file of a few kB, without its weights.

    Parameters
    ----------
    family : NetworkFamily
        Family of the member.
    seed : int
        Seed of the member; 0 is the published network.
    path : str or Path
        Output file.
    batch_size : int, default=1
        Inputs per run.

    Returns
    -------
    Path
        The file. To run it, fill it with random weights by `nni_latency.operators.onnx_network`.

    Raises
    ------
    MissingDependencyError
        If the package onnx is not installed.
    OutputError
        If the file cannot be written.
    """
    write_atomically(Path(path), without_weights(family.onnx(seed, batch_size)).SerializeToString())
    return Path(path)


def generate_onnx(
    members: Sequence[Member], folder: str | Path, *, batch_size: int = 1, n_jobs: int | None = None
) -> Iterator[Path]:
    """Write members of families, ``FAMILY-SEED.onnx`` each; existing files are kept.

    Parameters
    ----------
    members : sequence of (Family, int)
        Families, and the seeds of their members; see `members_in_turn`.
    folder : str or Path
        Output folder, which is created if necessary.
    batch_size : int, default=1
        Inputs per run.
    n_jobs : int, optional
        Parallel processes, as in joblib.

    Yields
    ------
    Path
        Every file in order, once it is written.

    Raises
    ------
    MissingDependencyError, OutputError
        As for `save_onnx`.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / onnx_name(family, seed) for family, seed in members]
    there = [path.is_file() for path in paths]
    calls = (
        delayed(save_onnx)(family, seed, path, batch_size)
        for (family, seed), path, is_there in zip(members, paths, there, strict=True)
        if not is_there
    )
    made = side_by_side(calls, n_jobs)
    for path, is_there in zip(paths, there, strict=True):
        yield path if is_there else next(made)


def members_in_turn(members: Sequence[NetworkFamily], count: int, first_seed: int = 1) -> list[Member]:
    """Return the first members of all families, then the second of all, and so on.

    After an interruption, the members written or measured thus cover all families.

    Parameters
    ----------
    members : sequence of Family
        The families.
    count : int
        Number of members of each family.
    first_seed : int, default=1
        Seed of the first member of every family; 0 is the published network.

    Raises
    ------
    InvalidValueError
        If the count is not positive.
    """
    check_ints("networks", {"count": count}, count=1)
    return [(family, seed) for seed in range(first_seed, first_seed + count) for family in members]


def onnx_name(family: NetworkFamily, seed: int) -> str:
    """Return the file name of a member."""
    return f"{family.name}-{seed:05}.onnx"


def generated_files(folder: str | Path) -> list[Path]:
    """Return the files in a folder that are named like members of families."""
    names = "|".join(re.escape(family.name) for family in find_families(["all", "blocks"]))
    pattern = re.compile(rf"(?:{names})-\d{{5,}}\.onnx")
    return sorted(path for path in Path(folder).glob("*.onnx") if pattern.fullmatch(path.name))
