"""The table from operator kind to feature function, and what has none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nni_latency.errors import UnknownNameError
from nni_latency.operators._composites import COMPOSITES, parts_of
from nni_latency.operators._convolution_features import CONVOLUTIONS
from nni_latency.operators._features import FeatureFunction, Features
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._pointwise_features import ELEMENTWISE
from nni_latency.operators._product_features import PRODUCTS

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


def supported_kinds() -> list[str]:
    """List the operator kinds that have a feature function."""
    return sorted({*_FEATURES, *COMPOSITES})
