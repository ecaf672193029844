# SPDX-License-Identifier: Apache-2.0
"""Invented devices: costs of candidates that follow what they compute, each device in another way."""

from __future__ import annotations

import numpy as np

N_LAYERS, N_CHOICES = 6, 4

SPACE = {f"layer{layer}": [f"op{choice}" for choice in range(N_CHOICES)] for layer in range(N_LAYERS)}


def draw(count, seed=0):
    """Draw networks."""
    return np.random.default_rng(seed).integers(0, N_CHOICES, (count, N_LAYERS))


def costs_of(seed, mood=0.0):
    """Make up the costs of a device [s], (n_layers, n_choices): what all have in common, and what is its own."""
    common, own = np.random.default_rng(1), np.random.default_rng(100 + seed)
    shared = common.uniform(1, 3, (N_LAYERS, N_CHOICES)) * np.arange(1, N_CHOICES + 1)
    other = common.uniform(1, 4, (N_LAYERS, N_CHOICES))
    costs = (1 - mood) * shared / shared.mean() + mood * other / other.mean()
    return 1e-3 * own.uniform(0.5, 2) * (costs + 0.03 * own.normal(size=costs.shape))


def latencies_of(costs, networks, noise=0.0, seed=0):
    """Add up the costs of networks, with relative noise."""
    sums = 1e-3 + costs[np.arange(N_LAYERS), networks].sum(axis=1)
    return sums * (1 + noise * np.random.default_rng(seed).normal(size=len(sums)))


def known_devices(networks, noise=0.005):
    """Return the latencies of five devices."""
    return {
        f"device {seed}": latencies_of(costs_of(seed, mood), networks, noise, seed)
        for seed, mood in enumerate((0.0, 0.2, 0.5, 0.8, 1.0))
    }
