# SPDX-License-Identifier: Apache-2.0
"""Encodings of architectures as features, by layer or as cells."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nni_latency.documents import RECORD, Operator
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, form_of, parts_of, work_of
from nni_latency.regression import one_hot
from nni_latency.tables import LookupTable, MeasurePlan, SpaceReference, measure_plan_of
from nni_latency.units import number_of

#: Number of architectures to estimate centre and scale of the features if a space is too large to enumerate.
_SAMPLE = 2048

#: Operators of an edge by the names in the benchmark's strings, in the order of their indices.
_CELL_OPERATORS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")

#: Edges in the order of the strings: from which node to which.
_CELL_EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))

#: The same operators by the names of NNI's hub.
_OTHER_NAMES = {"conv_1x1": "nor_conv_1x1", "conv_3x3": "nor_conv_3x3"}

#: Lengths of an edge by operator, under which the longest path from input to output is a feature.
_CELL_LENGTHS = ((0, 1, 1, 1, 1), (0, 0, 1, 1, 0), (0, 0, 0, 1, 0), (0, 0, 1, 1, 1))

_CELL_TERM = re.compile(r"(?P<op>\w+)~(?P<node>\d)")

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

#: Name of the predefined space of cells.
CELLS = "nasbench201"


class Encoding(ABC):
    """Regression features of a space: features of its architectures, and prior covariances of their weights.

    Immutable. Features are centred over the space. Each part models one kind of shared cost as a covariance of the
    features' weights, scaled such that the resulting cost has unit variance over the space.
    """

    #: Whether the cost is a sum over layers, so that it can be written as a table.
    additive: bool = False

    def __init__(self, choices: Mapping[str, Sequence[Any]]) -> None:
        self.choices = {str(label): tuple(map(str, values)) for label, values in choices.items()}
        if not self.choices or not all(self.choices.values()):
            raise InvalidValueError(f"A space needs labels with at least one choice each. Got {self.choices}.")

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the space, in order."""
        return tuple(self.choices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Choices per label."""
        return tuple(len(values) for values in self.choices.values())

    @abstractmethod
    def raw_features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return features before centring, (n, n_features)."""

    @abstractmethod
    def raw_parts(self) -> dict[str, NDArray[np.float64]]:
        """Return the covariances by name, (n_features, n_features), before scaling."""

    def features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return centred features, (n, n_features)."""
        centred: NDArray[np.float64] = self.raw_features(indices) - self.centre
        return centred

    def indices(self, architectures: Any) -> NDArray[np.int64]:
        """Check architectures and return the indices of their choices, (n, n_labels).

        Parameters
        ----------
        architectures : array-like of int of shape (n, n_labels), or list of mappings
            Indices of the choices, or ``{label: choice}`` each.

        Raises
        ------
        InvalidValueError
            If they do not belong to the space.
        """
        if isinstance(architectures, Sequence) and architectures and isinstance(architectures[0], Mapping):
            architectures = [self._from_sample(row, sample) for row, sample in enumerate(architectures)]
        try:
            array = np.asarray(architectures)
        except ValueError as error:
            raise InvalidValueError(f"The 'architectures' must be as long as each other: {error}.") from error
        if array.ndim != 2 or array.shape[1] != len(self.labels) or array.dtype.kind not in "iu":
            raise InvalidValueError(
                f"The 'architectures' must be an int array of shape (n, {len(self.labels)}), an index for each of "
                f"{_listed(self.labels)}. Got {array.dtype} of shape {array.shape}."
            )
        return self._checked(array.astype(np.int64))

    def draw(self, count: int, seed: int) -> NDArray[np.int64]:
        """Draw architectures with uniform choices, (count, n_labels)."""
        generator = np.random.default_rng(seed)
        return np.stack([generator.integers(0, size, count) for size in self.sizes], axis=1)

    @cached_property
    def parts(self) -> dict[str, NDArray[np.float64]]:
        """Scaled covariances by name, without those under which all architectures cost the same."""
        sample = self.features(self._sample)
        moment = sample.T @ sample / len(sample)
        scales = {name: float((part * moment).sum()) for name, part in self.raw_parts().items()}
        return {name: part / scales[name] for name, part in self.raw_parts().items() if scales[name] > 1e-12}

    @cached_property
    def stack(self) -> NDArray[np.float64]:
        """The scaled covariances of all parts, (n_parts, n_features, n_features)."""
        return np.stack(list(self.parts.values()))

    @cached_property
    def centre(self) -> NDArray[np.float64]:
        """Mean of the features over the space, (n_features,)."""
        mean: NDArray[np.float64] = self.raw_features(self._sample).mean(axis=0)
        return mean

    @cached_property
    def _sample(self) -> NDArray[np.int64]:
        if np.prod(np.array(self.sizes, dtype=np.float64)) <= 8 * _SAMPLE:
            grids = np.meshgrid(*(np.arange(size) for size in self.sizes), indexing="ij")
            return np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
        return self.draw(_SAMPLE, 0)

    def _checked(self, array: NDArray[np.int64]) -> NDArray[np.int64]:
        for (label, values), column in zip(self.choices.items(), array.T, strict=True):
            wrong = np.flatnonzero((column < 0) | (column >= len(values)))
            if len(wrong):
                raise InvalidValueError(
                    f"Architecture {wrong[0]} is outside the space: its index of {label!r} must be in "
                    f"[0, {len(values) - 1}]. Got {column[wrong[0]]}."
                )
        return array

    def _from_sample(self, row: int, sample: Mapping[str, Any]) -> list[int]:
        found = []
        for label, values in self.choices.items():
            if str(sample.get(label)) not in values:
                raise InvalidValueError(
                    f"Architecture {row} is outside the space: its choice of {label!r} must be one of "
                    f"{', '.join(values)}. Got {sample.get(label)!r}."
                )
            found.append(values.index(str(sample[label])))
        return found


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{labels[0]} ... {labels[-1]}"


class CellEncoding(Encoding):
    """A cell of four nodes and six edges with five operators each [1]_.

    Features are the count of each operator in the cell, the operator of each edge, both again without edges on no path
    from input to output, which a compiler removes, and the length of the longest path. On most devices, the counts
    determine the cost; the other features cover the rest.

    Parameters
    ----------
    choices : mapping of str to sequence of str, optional
        Labels of the six edges with their operators, in the order of the benchmark's strings.

    References
    ----------
    .. [1] X. Dong, Y. Yang, "NAS-Bench-201: Extending the Scope of Reproducible Neural Architecture Search",
       ICLR 2020. arXiv:2001.00326

    Examples
    --------
    >>> cell = CellEncoding()
    >>> cell.indices(["|avg_pool_3x3~0|+|none~0|skip_connect~1|+|none~0|none~1|nor_conv_3x3~2|"]).tolist()
    [[4, 0, 1, 0, 0, 3]]
    """

    def __init__(self, choices: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__(choices or {f"{start}_{end}": _CELL_OPERATORS for start, end in _CELL_EDGES})
        self._order = np.array(
            [[_CELL_OPERATORS.index(plain_name(name)) for name in row] for row in self.choices.values()]
        )

    def indices(self, architectures: Any) -> NDArray[np.int64]:
        """Check cells, given as strings, indices or samples, and return the indices of their choices, (n, 6)."""
        if isinstance(architectures, str):
            architectures = [architectures]
        array = np.asarray(architectures) if not isinstance(architectures, np.ndarray) else architectures
        if array.ndim == 1 and array.dtype.kind in "UOT" and len(array) and isinstance(array[0], str):
            return np.array([self._from_string(row, str(text)) for row, text in enumerate(array)], dtype=np.int64)
        return super().indices(architectures)

    def raw_features(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return counts, edges, both without dead edges, and longest paths, (n, 75)."""
        ops = np.take_along_axis(self._order, indices.T, axis=1).T
        alive = _alive(ops)
        edges, live = one_hot(ops, (5,) * 6), one_hot(np.where(alive, ops, 0), (5,) * 6)
        counts, live_counts = (part.reshape(len(ops), 6, 5).sum(axis=1) for part in (edges, live))
        paths = np.stack([_longest(ops, np.array(lengths)) for lengths in _CELL_LENGTHS], axis=1)
        dead = np.logical_not(alive.any(axis=1))
        return np.hstack([counts, edges, live_counts, live, dead.reshape(-1, 1), paths]).astype(np.float64)

    def raw_parts(self) -> dict[str, NDArray[np.float64]]:
        """Return one part for each kind of features."""
        widths = {"counts": 5, "edges": 30, "live counts": 5, "live edges": 35}
        parts, start = {}, 0
        for name, width in widths.items():
            weights = np.zeros(sum(widths.values()))
            weights[start : start + width] = 1.0
            parts[name], start = np.diag(weights), start + width
        return parts

    def _from_string(self, row: int, text: str) -> list[int]:
        terms = [(match["op"], int(match["node"])) for match in _CELL_TERM.finditer(text)]
        names = [plain_name(name) for name, _ in terms]
        if [node for _, node in terms] != [start for start, _ in _CELL_EDGES] or not set(names) <= set(_CELL_OPERATORS):
            raise InvalidValueError(
                f"Architecture {row} is not a cell of NAS-Bench-201: expected '|op~0|+|op~0|op~1|+|op~0|op~1|op~2|' "
                f"with the operators {', '.join(_CELL_OPERATORS)}. Got {text[:80]!r}."
            )
        return [
            list(order).index(_CELL_OPERATORS.index(name))
            for order, name in zip(self._order.tolist(), names, strict=True)
        ]


def plain_name(name: str) -> str:
    """Return the benchmark's name of an operator."""
    return _OTHER_NAMES.get(name, name)


def is_cell(choices: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether labels and choices are those of a cell of NAS-Bench-201."""
    rows = [{plain_name(str(name)) for name in row} for row in choices.values()]
    return len(rows) == len(_CELL_EDGES) and all(row == set(_CELL_OPERATORS) for row in rows)


def _alive(ops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each edge lies on a path from input to output, (n, 6)."""
    fed, used = np.zeros((len(ops), 4), dtype=bool), np.zeros((len(ops), 4), dtype=bool)
    fed[:, 0], used[:, 3] = True, True
    for edge, (start, end) in enumerate(_CELL_EDGES):
        fed[:, end] |= fed[:, start] & (ops[:, edge] != 0)
    for edge, (start, end) in reversed(list(enumerate(_CELL_EDGES))):
        used[:, start] |= used[:, end] & (ops[:, edge] != 0)
    return np.stack(
        [(ops[:, i] != 0) & fed[:, start] & used[:, end] for i, (start, end) in enumerate(_CELL_EDGES)], axis=1
    )


def _longest(ops: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the length of the longest path from input to output, -1 without one, (n,)."""
    reach = np.full((len(ops), 4), -np.inf)
    reach[:, 0] = 0.0
    for edge, (start, end) in enumerate(_CELL_EDGES):
        step = np.where(ops[:, edge] != 0, reach[:, start] + lengths[ops[:, edge]], -np.inf)
        reach[:, end] = np.maximum(reach[:, end], step)
    return np.where(np.isfinite(reach[:, 3]), reach[:, 3], -1.0)


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
