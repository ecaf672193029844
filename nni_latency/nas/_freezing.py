"""Taking a network out of a supernet together with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.nas._nni import MixedOperation
from nni_latency.spaces import network_of


def freeze_trained(supernet: Any, sample: Mapping[str, Any]) -> nn.Module:
    """Return a network of a supernet, with the weights that it has there, made as the space itself makes it.

    NNI 3.0 takes the weights of an operation whose arguments are searched in a form that its own loading refuses: with
    a bias that the operation does not have, and with numbers that are no weights. Here exactly those weights are loaded
    that the operation has. Parts that a space leaves out of its own networks, but that a supernet has to hold, would
    give other names to the weights, so these are put into a network of the space.

    Parameters
    ----------
    supernet : ModelSpace
        A space that a one-shot strategy has turned into a supernet.
    sample : mapping
        ``{label: choice}``.
    """
    operations = [module for module in supernet.modules() if isinstance(module, MixedOperation)]
    for operation in operations:
        # Instead of the class's method, for this supernet alone.
        operation.__dict__["freeze"] = partial(_freeze_operation, operation)
    try:
        network: nn.Module = supernet.freeze(dict(sample))
    finally:
        for operation in operations:
            operation.__dict__.pop("freeze", None)
    try:
        # What is drawn for weights that are not kept must not change what comes after.
        with torch.random.fork_rng():
            own: nn.Module = network_of(supernet, sample).anew()
    except InvalidValueError:  # of a space that cannot be made again
        return network
    return _moved(network, own)


def _freeze_operation(operation: Any, sample: Mapping[str, Any]) -> nn.Module:
    arguments = {
        **operation.init_arguments,
        **{name: mutable.freeze(sample) for name, mutable in operation.mutable_arguments.items()},
    }
    network: nn.Module = operation.bound_type(**arguments)
    known = network.state_dict()
    found = operation.freeze_weight(**arguments)
    network.load_state_dict({name: found[name] for name in known if found.get(name) is not None}, strict=False)
    return network


def _moved(network: nn.Module, own: nn.Module) -> nn.Module:
    """Put the weights of one network into another of the same parts in the same order; the first where they differ."""
    weights, wanted = network.state_dict(), own.state_dict()
    shapes = [[tuple(value.shape) for value in state.values()] for state in (weights, wanted)]
    if list(weights) == list(wanted) or shapes[0] != shapes[1]:
        return network
    own.load_state_dict(dict(zip(wanted, weights.values(), strict=True)))
    return own.to(next(network.parameters()).device)
