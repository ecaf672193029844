"""The devices of this machine, by the names torch gives them."""

from __future__ import annotations

from nni_latency.errors import UnknownNameError


def list_devices() -> list[str]:
    """List the devices that this machine can measure on, ``cpu`` first.

    Examples
    --------
    >>> list_devices()[0]
    'cpu'
    """
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def resolve_device(name: str) -> str:
    """Return the full name of a device: ``cuda`` is the first GPU.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.
    """
    full = "cuda:0" if name == "cuda" else name
    if full == "cpu":
        return full
    known = list_devices()
    if full not in known:
        raise UnknownNameError.of("device", name, known)
    return full
