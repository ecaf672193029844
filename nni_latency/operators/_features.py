# SPDX-License-Identifier: Apache-2.0
"""`Features`: the work of an operator, and helpers of the feature functions.

Multiply-adds and FLOPs are separate quantities with separate names: a multiply-add is two floating-point operations,
and normalisation, activation, addition and pooling are floating-point operations without any multiply-add.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from nni_latency.errors import InvalidValueError
from nni_latency.operators._op_spec import OpSpec, Shape
from nni_latency.units import number_of

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1}
_BYTES |= {"uint8": 1, "bool": 1, "qint8": 1, "quint8": 1, "complex64": 8, "complex128": 16}

_SHAPE = re.compile(r"(\d{1,18}(x\d{1,18})*)?")


@dataclass(frozen=True)
class Features:
    """Work of an operator, counted without running it.

    Parameters
    ----------
    macs : int
        Multiply-adds of convolutions and matrix products (what papers often print as "FLOPs").
    flops : int
        Floating-point operations: two per multiply-add, plus those of all other operators.
    acts : int
        ACTS: output elements of the convolutions.
    inp : int
        INP: input elements of the convolutions.
    params : int
        Parameters of layers and of other functions, such as a learned scale.
    memory : int
        Bytes read and written once: inputs, outputs and parameters [byte].
    inputs, outputs : int
        Input and output elements of every operator, convolution or not; parameters are not inputs.
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
        return Features(**{name: count + getattr(other, name) for name, count in vars(self).items()})


FeatureFunction = Callable[[OpSpec], Features]


def make_features(
    op: OpSpec,
    outputs: int,
    *,
    macs: int = 0,
    other_flops: int = 0,
    params: int | None = None,
    convolution: bool = False,
) -> Features:
    """Create the features of an operator that reads inputs and parameters once and writes outputs once.

    Parameters
    ----------
    op : OpSpec
        The operator.
    outputs : int
        Output elements.
    macs : int, default=0
        Multiply-adds.
    other_flops : int, default=0
        Floating-point operations besides the multiply-adds.
    params : int, optional
        Parameters of a layer; by default those in the attribute ``weights``. Inputs that are parameters are added.
    convolution : bool, default=False
        Whether inputs and outputs count as INP and ACTS.
    """
    inputs, parameters = inputs_of(op), params_of(op) if params is None else params + learned_of(op)
    return Features(
        macs=macs,
        flops=2 * macs + other_flops,
        acts=outputs if convolution else 0,
        inp=inputs if convolution else 0,
        params=parameters,
        memory=size_of(op) * (inputs + outputs + parameters),
        inputs=inputs,
        outputs=outputs,
    )


def inputs_of(op: OpSpec) -> int:
    """Return the number of elements of all inputs that are not parameters."""
    return sum(math.prod(shape) for shape in given_shapes(op))


def elements_of(op: OpSpec) -> int:
    """Return the number of elements of all inputs, including parameters."""
    return sum(math.prod(shape) for shape in op.input_shapes)


def learned_shapes(op: OpSpec) -> tuple[Shape | None, ...]:
    """Return the shape of the parameter for every input that is one, otherwise None.

    The shapes are stored in the attribute ``learned``, separated by ``+``: ``"+8x1x1"`` if the second input is a
    parameter.

    Raises
    ------
    InvalidValueError
        If the attribute is malformed, or does not have a place for every input.
    """
    text = op.get("learned")
    if text is None:
        return (None,) * len(op.input_shapes)
    places = str(text).split("+")
    if len(places) != len(op.input_shapes) or not all(map(_SHAPE.fullmatch, places)):
        raise InvalidValueError(
            f"The attribute 'learned' of {op.op_key} must have the shape of a parameter, or nothing, for each of its "
            f"{number_of(len(op.input_shapes), 'input')}, with a '+' between them. Got {text!r}."
        )
    return tuple(tuple(map(int, place.split("x"))) if place else None for place in places)


def given_shapes(op: OpSpec) -> tuple[Shape, ...]:
    """Return the shapes of the inputs that are not parameters: the inputs of a call.

    Examples
    --------
    >>> given_shapes(OpSpec.of("mul", [(1, 8, 4, 4), (8, 1, 1)], learned="+8x1x1"))
    ((1, 8, 4, 4),)
    """
    if op.get("learned") is None:
        return op.input_shapes
    return tuple(shape for shape, own in zip(op.input_shapes, learned_shapes(op), strict=True) if own is None)


def learned_of(op: OpSpec) -> int:
    """Return the number of elements of the inputs that are parameters; batch broadcasts count once."""
    if op.get("learned") is None:
        return 0
    return sum(math.prod(own) for own in learned_shapes(op) if own is not None)


def out_shape_of(op: OpSpec) -> Shape:
    """Return the shape of the output: the attribute ``out``, or by default the shape of the first input."""
    out = op.get("out")
    if out is None:
        return op.input_shapes[0] if op.input_shapes else ()
    return (out,) if isinstance(out, int) else tuple(out)


def outputs_of(op: OpSpec) -> int:
    """Return the number of output elements."""
    return math.prod(out_shape_of(op))


def weights_of(op: OpSpec) -> list[Shape]:
    """Return the shapes of the parameters, stored in the attribute ``weights`` as ``"48x16+48"``.

    Raises
    ------
    InvalidValueError
        If the attribute is malformed.
    """
    shapes = str(op.get("weights") or "").split("+")
    if not all(map(_SHAPE.fullmatch, shapes)):
        raise InvalidValueError(
            f"The attribute 'weights' of {op.op_key[:80]} must be shapes such as '48x16+48'. Got {op['weights']!r}."
        )
    return [tuple(map(int, shape.split("x"))) for shape in shapes if shape]


def params_of(op: OpSpec) -> int:
    """Return the number of parameters, in the attribute ``weights`` and among the inputs."""
    return sum(math.prod(shape) for shape in weights_of(op)) + learned_of(op)


def size_of(op: OpSpec) -> int:
    """Return the size of an element [byte]."""
    return _BYTES.get(op.dtype, 4)


def spread(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """Return an attribute for every dimension; a single number applies to all."""
    return (value,) * dimensions if isinstance(value, int) else tuple(value)
