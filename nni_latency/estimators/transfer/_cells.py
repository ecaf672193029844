# SPDX-License-Identifier: Apache-2.0
"""`CellEncoding`: cells of NAS-Bench-201 as features."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.regression import one_hot

#: Name of the predefined space of cells.
CELLS = "nasbench201"

#: Operators of an edge by the names in the benchmark's strings, in the order of their indices.
_CELL_OPERATORS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")

#: Edges in the order of the strings: from which node to which.
_CELL_EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))

#: The same operators by the names of NNI's hub.
_OTHER_NAMES = {"conv_1x1": "nor_conv_1x1", "conv_3x3": "nor_conv_3x3"}

#: Lengths of an edge by operator, under which the longest path from input to output is a feature.
_CELL_LENGTHS = ((0, 1, 1, 1, 1), (0, 0, 1, 1, 0), (0, 0, 0, 1, 0), (0, 0, 1, 1, 1))

_CELL_TERM = re.compile(r"(?P<op>\w+)~(?P<node>\d)")


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
