"""From the sum of a new device's costs to an ordinary lookup table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.estimators.transfer._adaptation import Adaptation
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding
from nni_latency.operators import OpSpec, work_of
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, TableLayer
from nni_latency.units import format_percent, number_of

#: The cheapest candidate of a layer costs at least this share of a mean layer.
_LEAST = 0.01

#: The cheapest network costs at least this share of the typical one.
_CHEAPEST = 0.05

#: What a table that was solved for says about itself.
SHARED_OUT = (
    "Whole networks determine the differences within a layer and the cost of all layers together; how the rest is "
    "shared out among layers follows what they compute."
)


def table_of(
    encoding: LayerEncoding,
    hypotheses: Sequence[str],
    adaptation: Adaptation,
    measured: NDArray[np.int64],
    platform: Platform,
) -> LookupTable:
    """Write a new device as a table, with remarks on what it rests on."""
    odds = sorted(zip(adaptation.probabilities.tolist(), hypotheses, strict=True), reverse=True)
    alike = ", ".join(f"{name} ({format_percent(share)})" for share, name in odds[:3] if share > 0.01)
    remarks = (
        f"Transferred: {number_of(len(measured), 'network')} measured on this device; known devices: "
        f"{', '.join(hypotheses[:-2])}.",
        f"Most like: {alike}. An entry's 'n_samples' counts the measured networks that hold it; 0 is inferred.",
        SHARED_OUT,
    )
    costs, unit = adaptation.mean[:-1], adaptation.unit
    return make_table(
        encoding.space,
        platform,
        costs=unit * costs,
        covariance=unit**2 * adaptation.covariance[:-1, :-1],
        constant=unit * float(adaptation.mean[-1]),
        measured=measured,
        remarks=remarks,
    )


def make_table(
    space: LayeredSpace,
    platform: Platform,
    costs: NDArray[np.float64],
    covariance: NDArray[np.float64],
    constant: float,
    measured: NDArray[np.int64],
    remarks: Sequence[str],
) -> LookupTable:
    """Write centred costs as a table.

    Whole networks tell the differences between the candidates of a layer, and what all layers cost together, but not
    how that is shared out among the layers. The cheapest candidate of a layer stands for no more than its
    share of operations says, stem and head for the rest.

    Parameters
    ----------
    space : LayeredSpace
        The layers.
    platform : Platform
        The new device.
    costs : ndarray of shape (n_candidates,)
        Of the candidates of the searched layers, relative to the mean of their layer [s].
    covariance : ndarray of shape (n_candidates, n_candidates)
        Of their errors [s^2].
    constant : float
        Mean latency over the space [s].
    measured : ndarray of int of shape (n_networks, n_layers)
        Networks that were measured on the device.
    remarks : sequence of str
        What the table rests on.
    """
    sizes = [len(layer.choices) for layer in space.searched]
    cuts = np.cumsum(sizes)[:-1]
    columns = [column - column.min() for column in np.split(costs, cuts)]
    deviations = np.split(np.sqrt(np.maximum(np.diag(covariance), 0.0)), cuts)
    rest = constant + sum(float(column.min()) for column in np.split(costs, cuts))
    if rest < _CHEAPEST * constant:
        # No network takes a negative time: what networks differ by is scaled down to leave something for the cheapest.
        factor = (1 - _CHEAPEST) * constant / (constant - rest)
        columns, rest = [column * factor for column in columns], _CHEAPEST * constant
    shares, fixed = _share_out(space, columns, rest)
    counts = [np.bincount(column, minlength=size) for column, size in zip(measured.T, sizes, strict=True)]
    layers, place = [], 0
    for layer in space.layers:
        if layer.searched:
            entries = _entries(layer, columns[place] + shares[place], deviations[place], counts[place])
            place += 1
        else:
            entries = _entries(layer, np.array(fixed[layer.name]), np.zeros(len(layer.choices)), None)
        layers.append(TableLayer(layer.name, layer.choices, entries, layer.searched, layer.default))
    return LookupTable(
        space=space.reference,
        platform=platform,
        layers=tuple(layers),
        input_shape=space.input_shape,
        remarks=tuple(remarks),
    )


def _share_out(
    space: LayeredSpace, columns: Sequence[NDArray[np.float64]], rest: float
) -> tuple[list[float], dict[str, list[float]]]:
    """Share the cost of the cheapest network out: to the cheapest candidate of each layer, and to fixed layers."""
    cheapest = [_works(layer)[int(column.argmin())] for layer, column in zip(space.searched, columns, strict=True)]
    fixed = {layer.name: _works(layer) for layer in space.layers if not layer.searched}
    defaults = [fixed[layer.name][_default(layer)] for layer in space.layers if not layer.searched]
    total = sum(cheapest) + sum(defaults)
    least = _LEAST / len(cheapest)
    floored = [max(least, work / total) if total else 1.0 / len(cheapest) for work in cheapest]
    whole = sum(floored) + sum(work / total for work in defaults) if total else 1.0
    scale = rest / whole
    return [share * scale for share in floored], {
        name: [work / total * scale for work in works] for name, works in fixed.items()
    }


def _works(layer: EncodedLayer) -> list[float]:
    return [_rough_share(op) for op in layer.ops] if layer.ops else [1.0] * len(layer.choices)


def _default(layer: EncodedLayer) -> int:
    return layer.choices.index(layer.default) if layer.default in layer.choices else 0


def _entries(
    layer: EncodedLayer,
    values: NDArray[np.float64],
    deviations: NDArray[np.float64],
    counts: NDArray[np.int64] | None,
) -> dict[str, Entry]:
    return {
        choice: Entry(
            float(values[place]),
            max(0.0, float(values[place] - NORMAL * deviations[place])),
            float(values[place] + NORMAL * deviations[place]),
            0 if counts is None else int(counts[place]),
            0,
            layer.ops[place] if layer.ops else None,
        )
        for place, choice in enumerate(layer.choices)
    }


def _rough_share(op: OpSpec) -> float:
    """Return a rough share of the cost: multiply-adds and bytes in the proportion of usual devices."""
    features, _ = work_of(op)
    return features.macs / 20 + features.memory / 10 + 1e3
