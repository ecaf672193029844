"""The table from operator kind to feature function, and what has none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nni_latency.errors import UnknownNameError
from nni_latency.operators._composites import COMPOSITES, parts_of
from nni_latency.operators._convolution_features import CONVOLUTIONS
from nni_latency.operators._features import FeatureFunction, Features
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
        Sum over the operators that can be counted.
    uncounted : tuple of str
        Kinds of the others, each once.
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
        Counts for the whole batch.

    Raises
    ------
    UnknownNameError
        If the kind has no feature function: never a silent zero.

    Examples
    --------
    >>> features_of(OpSpec.of("linear", [(1, 1504)], out_features=10, bias=True)).macs
    15040
    """
    parts = parts_of(op)
    if parts != [op]:
        return sum(map(features_of, parts), Features())
    if op.kind not in _FEATURES:
        raise UnknownNameError.of("operator kind", op.kind, supported_kinds())
    return _FEATURES[op.kind](op)


def count_operators(ops: Iterable[OpSpec]) -> Counted:
    """Count operators together, and list the kinds that cannot be counted.

    Examples
    --------
    >>> counted = count_operators([OpSpec.of("relu", [(1, 4)]), OpSpec.of("strange", [(1, 4)])])
    >>> counted.features.flops, counted.uncounted
    (4, ('strange',))
    """
    total = Features()
    uncounted: dict[str, None] = {}
    for part in (part for op in ops for part in parts_of(op)):
        try:
            total += features_of(part)
        except UnknownNameError:
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
