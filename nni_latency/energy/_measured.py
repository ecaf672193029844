# SPDX-License-Identifier: Apache-2.0
"""Operators and networks with measured time and energy, from CSV tables."""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nni_latency.errors import FileFormatError, is_int, reason_of
from nni_latency.operators import OpSpec, capture_operators

#: Columns to read.
_COLUMNS = ("operator", "input_shape", "latency_s", "energy_mj")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class MeasuredOperator:
    """An operator with its time and energy. Immutable.

    Parameters
    ----------
    op : OpSpec
        The operator.
    seconds : float
        Time of one run in a loop [s].
    joules : float
        Energy of one run [J], gross.
    """

    op: OpSpec
    seconds: float
    joules: float

    @property
    def watts(self) -> float:
        """Mean power [W]."""
        return self.joules / self.seconds


@dataclass(frozen=True)
class MeasuredNetworkEnergy:
    """A whole network with its time and energy. Immutable.

    Parameters
    ----------
    name : str
        The network.
    input_shape : tuple of int
        Batch first.
    seconds, joules : float
        Time [s] and energy [J] of one run.
    """

    name: str
    input_shape: Shape
    seconds: float
    joules: float


def read_operators(path: str | Path) -> list[MeasuredOperator]:
    """Read operators measured by ml-operator-profiling, or any table with the same columns.

    ``operator`` is the ``repr`` of a torch module and ``input_shape`` the shape of its input; no code of it is
    executed. Repeated measurements are merged to their medians.

    Parameters
    ----------
    path : str or Path
        CSV with the columns ``operator``, ``input_shape``, ``latency_s`` and ``energy_mj``.

    Raises
    ------
    FileFormatError
        If the file or a column is missing, or a row is invalid.
    """
    found: dict[OpSpec, list[tuple[float, float]]] = {}
    for line, row in _rows(path):
        try:
            op = _operator(row["operator"], _shape(row["input_shape"]))
        except Exception as error:  # a module may raise anything about its arguments and its input
            raise FileFormatError(
                f"{path}, line {line}: {row['operator']!r} on {row['input_shape']!r} is no operator of torch: "
                f"{reason_of(error).rstrip('.')}."
            ) from error
        found.setdefault(op, []).append(_costs(path, line, row))
    return [MeasuredOperator(op, *(float(value) for value in np.median(costs, axis=0))) for op, costs in found.items()]


def read_networks(path: str | Path) -> list[MeasuredNetworkEnergy]:
    """Read whole networks from the same columns; ``operator`` is the name of the network.

    Raises
    ------
    FileFormatError
        If the file or a column is missing, or a row is invalid.
    """
    found = []
    for line, row in _rows(path):
        try:
            shape = _shape(row["input_shape"])
        except (ValueError, SyntaxError) as error:
            raise FileFormatError(f"{path}, line {line}: {row['input_shape']!r} is no shape.") from error
        found.append(MeasuredNetworkEnergy(row["operator"], shape, *_costs(path, line, row)))
    return found


def _rows(path: str | Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise FileFormatError(f"{path} has no column {', '.join(missing)}.")
            for line, row in enumerate(reader, 2):
                if any(row[name] is None for name in _COLUMNS):
                    raise FileFormatError(f"{path}, line {line}: it has fewer fields than the first line.")
                yield line, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error


def _costs(path: str | Path, line: int, row: Mapping[str, str]) -> tuple[float, float]:
    try:
        seconds, joules = float(row["latency_s"]), float(row["energy_mj"]) * 1e-3
    except (TypeError, ValueError):
        seconds = joules = math.nan
    if not (0 < seconds < math.inf and 0 < joules < math.inf):
        raise FileFormatError(f"{path}, line {line}: time and energy must be positive numbers.")
    return seconds, joules


def _shape(text: str) -> Shape:
    shape = ast.literal_eval(text)
    if not (isinstance(shape, tuple) and shape and all(is_int(size, 1) for size in shape)):
        raise ValueError(f"{text!r} is no shape")
    return shape


def _operator(text: str, shape: Shape) -> OpSpec:
    """Convert the ``repr`` of a module to the operator that a trace would contain."""
    call = ast.parse(text.strip(), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise ValueError("it is no call")
    name = call.func.id
    values = [_literal(item) for item in call.args]
    given = {item.arg or "": _literal(item.value) for item in call.keywords}
    kind: Any = getattr(nn, name, None)
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        return _traced(kind, values, given, shape)
    # A module of another package, such as torchvision's StochasticDepth.
    return OpSpec.of(_snake(name), [shape], **{key: value for key, value in given.items() if value is not None})


def _traced(kind: type[nn.Module], values: list[Any], given: dict[str, Any], shape: Shape) -> OpSpec:
    """Trace a torch module on an input without computation."""
    with torch.device("meta"):
        module = kind(*values, **given)
        found = capture_operators(module, torch.empty(shape))
    if len(found) != 1:
        raise ValueError(f"{kind.__name__} is not one operator")
    return found[0][1]


def _literal(node: ast.expr) -> Any:
    """Return a literal; a bare word, as in ``mode=row``, becomes a string."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _snake(name: str) -> str:
    """Convert a module name to the name of torch's function.

    >>> _snake("GELU"), _snake("LayerNorm"), _snake("StochasticDepth")
    ('gelu', 'layer_norm', 'stochastic_depth')
    """
    if name.isupper() or name in ("SiLU", "ReLU", "ReLU6"):
        return name.lower()
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
