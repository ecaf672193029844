# SPDX-License-Identifier: Apache-2.0
"""`LayerEncoding`: networks as sums over layers; and `encoding_of`, the encoding of any space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nni_latency.documents import RECORD, Operator
from nni_latency.errors import InvalidValueError
from nni_latency.estimators.transfer._cells import CELLS, CellEncoding, is_cell
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.operators import OpSpec, form_of, parts_of, work_of
from nni_latency.regression import one_hot
from nni_latency.tables import LookupTable, MeasurePlan, SpaceReference, measure_plan_of
from nni_latency.units import number_of

#: Possible bottlenecks of an operator, with their columns in `_amounts`; they differ between devices.
_CAUSES = {
    "work": (0, 1, 2),
    "grouped work": (2,),
    "depthwise work": (1,),
    "traffic": (3, 4, 5),
    "parameters": (6,),
    "launches": (7, 8),
    "rearrangements": (9,),
}

#: Columns among `_amounts` of the multiply-adds of convolutions by form; all others are in the first.
_WORK_COLUMNS = {"depthwise": 1, "grouped": 2}

#: Length scale of the cost of an operator, in natural logarithms of amounts.
_SMOOTHNESS = 1.5

_CONVOLUTIONS = ("conv2d", "linear")


@dataclass(frozen=True)
class EncodedLayer:
    """One layer of a space, as far as its costs are concerned.

    Parameters
    ----------
    name : str
        Label of the layer.
    choices : tuple of str
        Candidates in the order of their indices.
    ops : tuple of OpSpec or None
        Their operators, where they are known.
    searched : bool, default=True
        Whether the space chooses.
    default : str or None
        Candidate of a fixed layer.
    """

    name: str
    choices: Annotated[tuple[str, ...], Field(min_length=1)]
    ops: tuple[Operator, ...] | None = None
    searched: bool = True
    default: str | None = None

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        if self.ops is not None and len(self.ops) != len(self.choices):
            raise InvalidValueError(
                f"layer {self.name!r} has {number_of(len(self.choices), 'choice')} and "
                f"{number_of(len(self.ops), 'operator')}"
            )


@dataclass(frozen=True)
class LayeredSpace:
    """Layers of a space, and the reference to the space.

    Parameters
    ----------
    reference : SpaceReference
        Its name and arguments.
    input_shape : tuple of int
        Shape of the network's input, batch first.
    layers : tuple of EncodedLayer
        From the input to the output.
    """

    reference: SpaceReference
    input_shape: tuple[int, ...]
    layers: tuple[EncodedLayer, ...] = field(default_factory=tuple)

    @classmethod
    def of_plan(cls, plan: MeasurePlan) -> LayeredSpace:
        """Create the layers from a plan."""
        layers = (
            EncodedLayer(
                layer.name,
                tuple(layer.candidates),
                tuple(candidate.op for candidate in layer.candidates.values()),
                layer.searched,
                layer.default,
            )
            for layer in plan.layers
        )
        return cls(plan.space, plan.input_shape, tuple(layers))

    @classmethod
    def of_table(cls, table: LookupTable) -> LayeredSpace:
        """Create the layers from a table; operators are kept for layers where all are known."""
        table.check_layers("A transfer")
        layers = []
        for layer in table.layers:
            found = [layer.entries[choice].op if choice in layer.entries else None for choice in layer.choices]
            ops = tuple(op for op in found if op is not None)
            complete = ops if len(ops) == len(layer.choices) else None
            layers.append(EncodedLayer(layer.name, layer.choices, complete, layer.searched, layer.default))
        return cls(table.space, table.input_shape, tuple(layers))

    @classmethod
    def of_choices(cls, choices: Mapping[str, Sequence[Any]], reference: SpaceReference | None = None) -> LayeredSpace:
        """Create the layers from labels with their choices, without operators."""
        layers = (EncodedLayer(str(label), tuple(map(str, values))) for label, values in choices.items())
        return cls(reference or SpaceReference("unknown"), (1,), tuple(layers))

    @property
    def searched(self) -> tuple[EncodedLayer, ...]:
        """The searched layers, in order."""
        return tuple(layer for layer in self.layers if layer.searched)


class LayerEncoding(Encoding):
    """Networks whose cost is a sum over layers: one feature for every candidate of every layer.

    Candidates have correlated costs if their operators have the same amount of some work, are of similar size in all
    respects, or share a name; in addition, each has an individual cost. Identities are only similar by name.

    Parameters
    ----------
    space : LayeredSpace
        The layers.
    """

    additive = True

    def __init__(self, space: LayeredSpace) -> None:
        super().__init__({layer.name: layer.choices for layer in space.searched})
        self.space = space

    def raw_features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return one column for every candidate, (n, n_candidates)."""
        return one_hot(indices, self.sizes)

    @cached_property
    def centre(self) -> NDArray[np.float64]:
        """Share of the networks of the space that have each candidate."""
        return np.concatenate([np.full(size, 1.0 / size) for size in self.sizes])

    def raw_parts(self) -> dict[str, NDArray[np.float64]]:
        """Return the prior covariances of candidates."""
        layers = np.repeat(np.arange(len(self.sizes)), self.sizes)
        names = np.array([name for values in self.choices.values() for name in values])
        same_layer = (layers[:, None] == layers).astype(np.float64)
        parts = {}
        amounts = self._amounts
        if amounts is not None:
            for name, columns in _CAUSES.items():
                chosen = amounts[:, columns]
                parts[name] = chosen @ chosen.T
            places = np.log1p(3 * amounts)
            distances = ((places[:, None] - places[None]) ** 2).sum(axis=-1)
            parts["similarity"] = np.exp(-distances / (2 * _SMOOTHNESS**2))
            busy = amounts[:, 7] > 0
            parts["layer"] = same_layer * np.outer(busy, busy)
        parts["choice"] = (names[:, None] == names).astype(np.float64)
        parts["own"] = np.eye(len(names))
        # Only differences within a layer are observable, so only they have a prior.
        centring = np.eye(len(names)) - same_layer / np.repeat(self.sizes, self.sizes)
        return {name: centring @ part @ centring for name, part in parts.items()}

    @cached_property
    def _amounts(self) -> NDArray[np.float64] | None:
        """Amounts of every candidate by column, relative to the mean; None for unknown operators."""
        if any(layer.ops is None for layer in self.space.searched):
            return None
        stacked = np.array([_amounts(op) for layer in self.space.searched for op in layer.ops or (None,)])
        scaled: NDArray[np.float64] = stacked / np.maximum(stacked.mean(axis=0), 1e-300)
        return scaled


def _amounts(op: OpSpec | None) -> list[float]:
    """Count cost drivers: dense, depthwise and grouped multiply-adds, traffic, parameters, number of operators."""
    row = [0.0] * 10
    for part in [] if op is None else parts_of(op):
        found, _ = work_of(part)
        if part.kind == "identity":
            continue
        row[_WORK_COLUMNS.get(form_of(part) or "", 0)] += found.macs
        row[3] += found.acts
        row[4] += found.inp
        row[5] += found.memory - 4 * found.params
        row[6] += found.params
        row[7] += 1
        row[8] += part.kind in _CONVOLUTIONS
        row[9] += not found.flops and not found.macs
    return row


def encoding_of(space: Any, architectures: Any = None) -> Encoding:
    """Return the encoding of a space.

    Parameters
    ----------
    space : object
        An `Encoding`; a model space with a measure plan, a plan or a table; NNI labels with their choices, as a mapping
        or a model space; ``"nasbench201"``; or None to infer it from the architectures.
    architectures : array-like, optional
        For a `space` of None: strings are cells of NAS-Bench-201, columns of ints are layers with choices up to the
        highest index.

    Raises
    ------
    InvalidValueError
        If the space is of another type.
    """
    if isinstance(space, Encoding):
        return space
    if isinstance(space, str) and space.lower().replace("-", "") == CELLS:
        return CellEncoding()
    if isinstance(space, LookupTable):
        return LayerEncoding(LayeredSpace.of_table(space))
    if isinstance(space, LayeredSpace):
        return LayerEncoding(space)
    if isinstance(space, MeasurePlan):
        return LayerEncoding(LayeredSpace.of_plan(space))
    if hasattr(space, "measure_plan"):
        return LayerEncoding(LayeredSpace.of_plan(measure_plan_of(space)))
    if hasattr(space, "simplify"):
        choices = {label: list(mutable.values) for label, mutable in space.simplify().items()}
        return _of_choices(choices, SpaceReference.of_class(type(space)))
    if isinstance(space, Mapping):
        return _of_choices(space, None)
    if space is None:
        return _of_architectures(architectures)
    raise InvalidValueError(
        "The 'space' must be a model space, a measure plan, a mapping of labels to choices, 'nasbench201' or None. "
        f"Got {space!r}."
    )


def _of_choices(choices: Mapping[str, Any], reference: SpaceReference | None) -> Encoding:
    if is_cell(choices):
        return CellEncoding(choices)
    return LayerEncoding(LayeredSpace.of_choices(choices, reference))


def _of_architectures(architectures: Any) -> Encoding:
    array = np.asarray(architectures)
    if array.ndim == 1 and len(array) and isinstance(array[0], str):
        return CellEncoding()
    if array.ndim != 2 or not array.size or array.dtype.kind not in "iu" or array.min() < 0:
        raise InvalidValueError(
            "Without a 'space' the architectures must be an int array of shape (n, n_layers) with indices >= 0, or "
            f"cells of NAS-Bench-201 as strings. Got {array.dtype} of shape {array.shape}."
        )
    highest = array.max(axis=0).tolist()
    return _of_choices({f"layer{place}": range(top + 1) for place, top in enumerate(highest)}, None)
