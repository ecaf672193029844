# SPDX-License-Identifier: Apache-2.0
"""NNI's own spaces by name: the classes of ``nni.nas.hub.pytorch``, each with the input that it is made for."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nni_latency.errors import UnknownNameError
from nni_latency.imports import quiet_nni

_HUB = "nni.nas.hub.pytorch"


@dataclass(frozen=True)
class HubSpace:
    """One space of NNI's hub.

    Parameters
    ----------
    class_name : str
        Its class in ``nni.nas.hub.pytorch``.
    input_size : int
        Input image size that it is made for [pixel].
    defaults : mapping
        Arguments that are given unless others are.
    size_argument : str or None
        Argument of the class that says the input size, if there is one.
    """

    class_name: str
    input_size: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    size_argument: str | None = None

    def size_for(self, arguments: Mapping[str, Any]) -> int:
        """Return the input image size [pixel] that the space has with these arguments."""
        if self.size_argument in arguments:
            return int(arguments[str(self.size_argument)])
        return 224 if arguments.get("dataset") == "imagenet" else self.input_size


def _cells(class_name: str) -> HubSpace:
    return HubSpace(class_name, 32, {"dataset": "cifar"})


#: The spaces of NNI's hub by the name under which they are registered.
HUB_SPACES: Mapping[str, HubSpace] = MappingProxyType(
    {
        "proxylessnas": HubSpace("ProxylessNAS", 224),
        "mobilenetv3": HubSpace("MobileNetV3Space", 224),
        "shufflenet": HubSpace("ShuffleNetSpace", 224),
        "autoformer": HubSpace("AutoFormer", 224, size_argument="img_size"),
        "nasbench101": HubSpace("NasBench101", 32),
        "nasbench201": HubSpace("NasBench201", 32),
        "darts": _cells("DARTS"),
        "nasnet": _cells("NASNet"),
        "enas": _cells("ENAS"),
        "amoebanet": _cells("AmoebaNet"),
        "pnas": _cells("PNAS"),
    }
)


def hub_class(name: str) -> type[Any]:
    """Return the class of a space of NNI's hub.

    Raises
    ------
    UnknownNameError
        If the hub has no space of that name.
    """
    if name not in HUB_SPACES:
        raise UnknownNameError.of("space of NNI's hub", name, list(HUB_SPACES))
    with quiet_nni():
        hub = importlib.import_module(_HUB)
    # It prints the matrix of every cell that it makes.
    logging.getLogger(f"{_HUB}.modules.nasbench101").setLevel(logging.WARNING)
    found: type[Any] = getattr(hub, HUB_SPACES[name].class_name)
    return found


def hub_name(kind: type[Any]) -> str | None:
    """Return the name of the hub's space that a class is; None if it is not the hub's own."""
    if not kind.__module__.startswith(f"{_HUB}."):
        return None
    return next((name for name, space in HUB_SPACES.items() if space.class_name == kind.__name__), None)
