"""What has to be said of a network before its cost is: that it has one, and in which precision it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sized

from nni_latency.errors import InvalidValueError
from nni_latency.operators._feature_table import work_of
from nni_latency.operators._op_spec import OpSpec

#: Precisions of platforms, by the element types of networks.
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}

#: Share of a network's work from which on an element type counts.
_ENOUGH = 0.1


def require_operators(operators: Sized, name: str) -> None:
    """Raise `InvalidValueError` if a network has no operators, such as one that only reshapes."""
    if not len(operators):
        raise InvalidValueError(f"{name!r} has no operators: nothing in it takes time.")


def precision_remarks(ops: Iterable[OpSpec], precision: str) -> tuple[str, ...]:
    """Say of a network which of its work is in other element types than those of a platform.

    Parameters
    ----------
    ops : iterable of OpSpec
        Its operators.
    precision : str
        Of the platform. With fp32 networks one in single precision is meant; with others the runtime converts one.

    Returns
    -------
    tuple of str
        At most one remark, without a full stop.

    Examples
    --------
    >>> half = OpSpec.of("linear", [(1, 8)], dtype="float16", out_features=8, bias=False)
    >>> precision_remarks([half], "fp32"), precision_remarks([half], "fp16")
    (('the network computes in float16: it is answered as one in fp32',), ())
    """
    work: Counter[str] = Counter()
    for op in ops:
        features, _ = work_of(op)
        work[op.dtype] += features.flops + features.inputs + features.outputs + features.params
    other = [
        dtype
        for dtype, amount in work.items()
        if dtype in _PRECISIONS
        and _PRECISIONS[dtype] not in (precision, "fp32")
        and amount >= _ENOUGH * sum(work.values())
    ]
    if not other:
        return ()
    return (f"the network computes in {' and '.join(sorted(other))}: it is answered as one in {precision}",)
