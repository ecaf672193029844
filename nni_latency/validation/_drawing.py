# SPDX-License-Identifier: Apache-2.0
"""Choice of the networks of a validation."""

from __future__ import annotations

import random
from typing import Any, Protocol

from nni_latency.errors import InvalidValueError
from nni_latency.tables import MeasurePlan, NetworkSource


class DrawsNetworks(NetworkSource, Protocol):
    """Interface of a space that draws its networks, such as `nni_latency.spaces.SampledSpace`."""

    def draw(self, n: int, seed: int = 0) -> dict[str, dict[str, Any]]:
        """Draw networks by name."""


def draw_networks(plan: MeasurePlan | DrawsNetworks, n_random: int = 24, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Draw the networks of a validation: the published ones, the extremes, and random ones.

    Parameters
    ----------
    plan : MeasurePlan or DrawsNetworks
        The space. A space that draws its networks only provides random ones.
    n_random : int, default=24
        Number of random networks with uniform choices. A small space may have fewer.
    seed : int, default=0
        Seed of the random networks.

    Returns
    -------
    dict of str to dict
        ``{layer: choice}`` with every layer, by name. Networks named ``all X`` take the choice ``X`` in every layer
        that has it, for every ``X`` that all searched layers have.

    Raises
    ------
    InvalidValueError
        If `n_random` is negative, or there is no network.

    Examples
    --------
    >>> from nni_latency.spaces import FBNetSpace
    >>> list(draw_networks(FBNetSpace(depth=0.25).measure_plan(), 1))[-2:]
    ['all skip', 'random 1']
    """
    if n_random < 0:
        raise InvalidValueError(f"The number of random networks must be >= 0. Got {n_random}.")
    if not isinstance(plan, MeasurePlan):
        return _checked(plan.draw(n_random, seed), n_random)
    fixed = {layer.name: layer.default or "" for layer in plan.layers if not layer.searched}
    found: dict[str, dict[str, str]] = {}
    # Named networks come first, so that in a small space no random one replaces them.
    for name, selection in (*plan.published.items(), *_uniform(plan), *_random(plan, n_random, seed)):
        network = {layer.name: {**fixed, **selection}[layer.name] for layer in plan.layers}
        if network not in found.values():
            found[name] = network
    return _checked(found, n_random)


def _checked(found: dict[str, dict[str, Any]], n_random: int) -> dict[str, dict[str, Any]]:
    if not found and n_random:
        raise InvalidValueError(
            "There is no network to validate with: the table was built from every network of the space. Build it from "
            "fewer networks."
        )
    if not found:
        raise InvalidValueError("There is no network to validate with: ask for at least one random one.")
    return found


def _random(plan: MeasurePlan, count: int, seed: int) -> list[tuple[str, dict[str, str]]]:
    generator = random.Random(f"validation/{seed}")
    return [
        (f"random {index + 1}", {layer.name: generator.choice(list(layer.candidates)) for layer in plan.searched})
        for index in range(count)
    ]


def _uniform(plan: MeasurePlan) -> list[tuple[str, dict[str, str]]]:
    first, *others = plan.searched
    shared = [choice for choice in first.candidates if all(choice in layer.candidates for layer in others)]
    return [(f"all {choice}", {layer.name: choice for layer in plan.searched}) for choice in shared]
