"""The table from operator kind to feature function, and what is counted of an operator that has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.operators._composites import COMPOSITES, parts_of
from nni_latency.operators._convolution_features import CONVOLUTIONS
from nni_latency.operators._features import (
    FeatureFunction,
    Features,
    elements_of,
    make_features,
    outputs_of,
    size_of,
)
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._pointwise_features import ELEMENTWISE
from nni_latency.operators._product_features import PRODUCTS
from nni_latency.operators._trace import Graph

_FEATURES: dict[str, FeatureFunction] = {**CONVOLUTIONS, **PRODUCTS, **ELEMENTWISE}


@dataclass(frozen=True)
class Counted:
    """What several operators compute together.

    Parameters
    ----------
    features : Features
        Sum over the operators.
    uncounted : tuple of str
        Kinds, each once, of which no feature function knows the work: they add what their shapes say, the elements
        and bytes that they read and write, and no operations.
    """

    features: Features
    uncounted: tuple[str, ...] = ()


def features_of(op: OpSpec) -> Features:
    """Count the features of an operator.

    Parameters
    ----------
    op : OpSpec
        The operator or block.

    Returns
    -------
    Features
        Counts for the whole batch. Of a kind that has no feature function, what its shapes say: elements and bytes
        read and written; `work_of` also says which those are.

    Raises
    ------
    InvalidValueError
        If its kind is known, and its shapes or attributes do not fit it.

    Examples
    --------
    >>> features_of(OpSpec.of("linear", [(1, 1504)], out_features=10, bias=True)).macs
    15040
    >>> features_of(OpSpec.of("mystery", [(2, 3), (4,)], out=(5, 6))).memory
    160
    """
    return sum(map(_count, _parts(op)), Features())


def work_of(op: OpSpec) -> tuple[Features, bool]:
    """Count the work of any operator.

    Returns
    -------
    features : Features
        What it computes and moves. Of what cannot be counted, the elements and bytes read and written, as its shapes
        say.
    counted : bool
        Whether feature functions understand it, and all parts of it.

    Examples
    --------
    >>> features, counted = work_of(OpSpec.of("mystery", [(2, 3), (4,)], out=(5, 6)))
    >>> features.inputs, features.outputs, counted
    (10, 30, False)
    """
    counted = count_operators([op])
    return counted.features, not counted.uncounted


def count_operators(ops: Iterable[OpSpec]) -> Counted:
    """Count operators together, and list the kinds that cannot be counted.

    Examples
    --------
    >>> counted = count_operators([OpSpec.of("relu", [(1, 4)]), OpSpec.of("strange", [(1, 4)])])
    >>> counted.features.flops, counted.features.outputs, counted.uncounted
    (4, 8, ('strange',))
    """
    total = Features()
    uncounted: dict[str, None] = {}
    for op in ops:
        try:
            parts = _parts(op)
        except InvalidValueError:
            parts = [op]
        for part in parts:
            features, counted = _count_anyway(part)
            total += features
            if not counted:
                uncounted[part.kind] = None
    return Counted(total, tuple(uncounted))


def count_graph(graph: Graph) -> Counted:
    """Count the operators of a network together; parameters that several of them take are counted once.

    Parameters
    ----------
    graph : Graph
        As `nni_latency.operators.trace` and `read_onnx` return it. Where it does not say which parameters are the same,
        they are counted at every use.

    Examples
    --------
    >>> from nni_latency.operators import TracedOperator
    >>> linear = OpSpec.of("linear", [(1, 4)], out_features=4)
    >>> twice = TracedOperator("a", linear, parameters=16), TracedOperator("a", linear, (0,), parameters=0)
    >>> found = count_graph(Graph(twice, 2)).features
    >>> found.macs, found.params
    (32, 16)
    """
    counted = count_operators(item.op for item in graph.operators)
    once = [item.parameters for item in graph.operators if item.parameters is not None]
    if len(once) < len(graph.operators):
        return counted
    return replace(counted, features=replace(counted.features, params=sum(once)))


def supported_kinds() -> list[str]:
    """List the operator kinds that have a feature function."""
    return sorted({*_FEATURES, *COMPOSITES})


def _parts(op: OpSpec) -> list[OpSpec]:
    """Take a block apart, or raise `InvalidValueError`."""
    with _fitting(op):
        return parts_of(op)


def _count(op: OpSpec) -> Features:
    """Count an operator that has no parts, or raise `InvalidValueError`."""
    if op.kind not in _FEATURES:
        return _moved(op)
    with _fitting(op):
        return _FEATURES[op.kind](op)


def _count_anyway(op: OpSpec) -> tuple[Features, bool]:
    """Count an operator that has no parts, by its shapes where that is all that is known."""
    try:
        return _count(op), op.kind in _FEATURES
    except InvalidValueError:
        return _moved(op), False


@contextmanager
def _fitting(op: OpSpec) -> Iterator[None]:
    """Name the operator whose attributes are not those of its kind."""
    try:
        yield
    except LatencyError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidValueError(
            f"The shapes and attributes of {op.op_key} do not fit its kind: {reason_of(error)}"
        ) from error


def _moved(op: OpSpec) -> Features:
    """Count what is read and written, which follows from shapes alone."""
    try:
        return make_features(op, outputs_of(op))
    except (InvalidValueError, TypeError, ValueError, AttributeError):
        # Attributes that are no shapes of weights or outputs.
        elements = elements_of(op)
        return Features(memory=2 * size_of(op) * elements, inputs=elements, outputs=elements)
