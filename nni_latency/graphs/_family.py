"""Families of networks: a published one, and random ones around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import _mobile_networks as mobile
from nni_latency.graphs import _plain_networks as plain
from nni_latency.graphs import _residual_networks as residual
from nni_latency.graphs import _sequence_networks as sequence
from nni_latency.graphs._cell_networks import nasbench201
from nni_latency.graphs._mixed_networks import mixed, mixed_small
from nni_latency.graphs._variation import Variation

_PICTURE = (3, 224, 224)


@dataclass(frozen=True)
class Family:
    """Networks of one kind. Immutable; it reaches other processes by pickle.

    Parameters
    ----------
    name : str
        Such as ``"resnet"``.
    build : callable
        Takes a `Variation`, and makes a network with random weights.
    input_shape : tuple of int, default=(3, 224, 224)
        Without the batch.
    vocabulary : int, optional
        Of inputs that are whole numbers: how many there are.

    Examples
    --------
    >>> from nni_latency.graphs import families
    >>> squeezenet = families()["squeezenet"]
    >>> squeezenet.network(0)(squeezenet.example_inputs()).shape
    torch.Size([1, 1000])
    """

    name: str
    build: Callable[[Variation], nn.Module] = field(compare=False)
    input_shape: tuple[int, ...] = _PICTURE
    vocabulary: int | None = None

    @property
    def summary(self) -> str:
        """The published network and where it is described."""
        return (self.build.__doc__ or "").partition("\n")[0].rstrip(".")

    def network(self, seed: int) -> nn.Module:
        """Make a network, the same one for a seed, in evaluation mode; 0 is the published one.

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

    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        """Return an input that it takes, the same one every time."""
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size, *self.input_shape)
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, shape, generator=generator)
        return torch.randn(shape, generator=generator)


_FAMILIES = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("alexnet", plain.alexnet),
            Family("bert", sequence.bert, (sequence.TEXT_LENGTH,), sequence.VOCABULARY),
            Family("convnext", residual.convnext),
            Family("densenet", residual.densenet),
            Family("efficientnet", mobile.efficientnet),
            Family("googlenet", plain.googlenet),
            Family("mixed", mixed),
            Family("mixed-small", mixed_small, (3, 32, 32)),
            Family("mnasnet", mobile.mnasnet),
            Family("mobilenetv1", mobile.mobilenetv1),
            Family("mobilenetv2", mobile.mobilenetv2),
            Family("mobilenetv3", mobile.mobilenetv3),
            Family("nasbench201", nasbench201, (3, 32, 32)),
            Family("proxylessnas", mobile.proxylessnas),
            Family("resnet", residual.resnet),
            Family("resnet1d", sequence.resnet1d, (1, sequence.SIGNAL_LENGTH)),
            Family("shufflenetv2", mobile.shufflenetv2),
            Family("squeezenet", plain.squeezenet),
            Family("vgg", plain.vgg),
            Family("vit", sequence.vit),
        )
    }
)


def families() -> Mapping[str, Family]:
    """Return all families by name."""
    return _FAMILIES


def find_families(names: Iterable[str]) -> list[Family]:
    """Find families by name, each once; ``"all"`` stands for all.

    Raises
    ------
    UnknownNameError
        If there is none of a name.
    """
    found: dict[str, Family] = {}
    for name in names:
        if name == "all":
            found |= _FAMILIES
        elif name in _FAMILIES:
            found[name] = _FAMILIES[name]
        else:
            raise UnknownNameError(UnknownNameError.of("family", name, sorted(_FAMILIES)))
    return list(found.values())
