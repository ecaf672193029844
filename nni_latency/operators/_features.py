"""`Features`: what an operator computes, and what the feature functions of all kinds share.

Multiply-adds and FLOPs are two numbers here and never share a name: a multiply-add is two floating-point operations,
and normalisation, activation, addition and pooling are floating-point operations without any multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

from nni_latency.operators._op_spec import OpSpec, Shape

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1}
_BYTES |= {"uint8": 1, "bool": 1}


@dataclass(frozen=True)
class Features:
    """What an operator computes, counted without running it.

    Parameters
    ----------
    macs : int
        Multiply-adds of convolutions and matrix products (what papers often print as "FLOPs").
    flops : int
        Floating-point operations: two a multiply-add, plus those of all other operators.
    acts : int
        ACTS: output elements of the convolutions.
    inp : int
        INP: input elements of the convolutions.
    params : int
        Parameters.
    memory : int
        Bytes read and written once: inputs, outputs and parameters [byte].
    inputs, outputs : int
        Input and output elements of every operator, convolution or not.
    """

    macs: int = 0
    flops: int = 0
    acts: int = 0
    inp: int = 0
    params: int = 0
    memory: int = 0
    inputs: int = 0
    outputs: int = 0

    def __add__(self, other: Features) -> Features:
        """Add feature by feature."""
        return Features(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


FeatureFunction = Callable[[OpSpec], Features]


def make_features(
    op: OpSpec, outputs: int, *, macs: int = 0, other_flops: int = 0, params: int = 0, convolution: bool = False
) -> Features:
    """Make the features of an operator that reads its inputs and parameters once and writes its outputs once.

    Parameters
    ----------
    op : OpSpec
        The operator.
    outputs : int
        Elements that it writes.
    macs : int, default=0
        Multiply-adds.
    other_flops : int, default=0
        Floating-point operations besides those of the multiply-adds.
    params : int, default=0
        Parameters.
    convolution : bool, default=False
        Whether inputs and outputs count as INP and ACTS.
    """
    inputs = inputs_of(op)
    return Features(
        macs=macs,
        flops=2 * macs + other_flops,
        acts=outputs if convolution else 0,
        inp=inputs if convolution else 0,
        params=params,
        memory=size_of(op) * (inputs + outputs + params),
        inputs=inputs,
        outputs=outputs,
    )


def inputs_of(op: OpSpec) -> int:
    """Return the elements of all inputs."""
    return sum(math.prod(shape) for shape in op.input_shapes)


def out_shape_of(op: OpSpec) -> Shape:
    """Return the shape of the output: the attribute ``out``, which stands where it is not that of the first input."""
    out = op.get("out")
    if out is None:
        return op.input_shapes[0] if op.input_shapes else ()
    return (out,) if isinstance(out, int) else tuple(out)


def outputs_of(op: OpSpec) -> int:
    """Return the elements of the output."""
    return math.prod(out_shape_of(op))


def weights_of(op: OpSpec) -> list[Shape]:
    """Return the shapes of the parameters, which stand in the attribute ``weights`` as ``"48x16+48"``."""
    text = op.get("weights")
    return [tuple(map(int, shape.split("x"))) for shape in text.split("+") if shape] if text else []


def params_of(op: OpSpec) -> int:
    """Return the parameters."""
    return sum(math.prod(shape) for shape in weights_of(op))


def size_of(op: OpSpec) -> int:
    """Return the size of an element [byte]."""
    return _BYTES.get(op.dtype, 4)


def spread(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """Return an attribute for every dimension, which is one number where all are equal."""
    return (value,) * dimensions if isinstance(value, int) else tuple(value)
