# SPDX-License-Identifier: Apache-2.0
"""Conversion of an `OpSpec` to a module, for operators whose key is complete."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so
from torch import nn

from nni_latency.errors import UnknownNameError, first_line, listed
from nni_latency.operators._features import given_shapes, learned_shapes
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._tracing import run_traced

#: Attributes for outputs and weights, which are not function arguments.
_NO_ARGUMENTS = ("out", "weights", "inplace", "learned")


def build_operator(op: OpSpec) -> nn.Module:
    """Build a module that computes an operator, with new weights.

    Parameters
    ----------
    op : OpSpec
        A convolution, a linear layer, a normalisation, an activation, pooling, arithmetic, concatenation, a matrix
        product, a reduction, or another function without weights whose arguments the spec names.

    Returns
    -------
    nn.Module
        Takes the operator's inputs as positional arguments, except parameters, which it owns (see `given_shapes`).

    Raises
    ------
    UnknownNameError
        If the spec is incomplete, which is checked by tracing the built module.

    Examples
    --------
    >>> build_operator(OpSpec.of("linear", [(1, 4)], out_features=2, bias=True))
    Linear(in_features=4, out_features=2, bias=True)
    """
    try:
        made = _builder(op)(op)
        module = (_Learned(made, op) if op.get("learned") else made).to(getattr(torch, op.dtype)).eval()
        inputs = tuple(torch.empty(shape, dtype=getattr(torch, op.dtype), device="meta") for shape in given_shapes(op))
        flow, _ = run_traced(copy.deepcopy(module).to("meta"), inputs, {}, "graph")
        built = list(flow.operators)
    except UnknownNameError:
        raise
    except Exception as error:  # an external key may have any content
        reason = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error).rstrip(".")
        raise UnknownNameError(f"The operator {op.op_key} cannot be built from its key: {reason}.") from error
    if built != [op]:
        raise UnknownNameError(f"The operator {op.op_key} cannot be built from its key: {_difference(op, built)}.")
    return module


def _difference(op: OpSpec, built: Sequence[OpSpec]) -> str:
    """Say what is superfluous in a key, by what the module built from it computes."""
    found = ", ".join(other.op_key for other in built) or "nothing"
    if len(built) == 1 and (built[0].kind, built[0].input_shapes) == (op.kind, op.input_shapes):
        used = dict(built[0].attributes)
        superfluous = [name for name, _ in op.attributes if name not in used]
        if superfluous and not set(superfluous).intersection(_NO_ARGUMENTS):
            return f"leave out {listed(map(repr, superfluous), most=None)}. Expected: {found}"
    return f"that gives {found}"


#: Torch functions that may be called with the arguments of a key. An allow list, because keys come from files and some
#: torch functions are unsafe.
_FUNCTIONS = frozenset(
    {
        *(
            "celu",
            "elu",
            "gelu",
            "glu",
            "hardshrink",
            "hardsigmoid",
            "hardswish",
            "hardtanh",
            "leaky_relu",
            "logsigmoid",
        ),
        *(
            "mish",
            "relu",
            "relu6",
            "selu",
            "sigmoid",
            "silu",
            "softplus",
            "softshrink",
            "softsign",
            "tanh",
            "tanhshrink",
        ),
        *("softmax", "log_softmax", "softmin", "normalize"),
        *(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)),
        *("bmm", "matmul", "maximum", "minimum", "scaled_dot_product_attention"),
        *("abs", "ceil", "clamp", "cos", "cumsum", "erf", "exp", "floor", "log", "max", "min", "neg", "norm"),
        *("reciprocal", "round", "rsqrt", "sin", "sqrt", "square", "argmax", "argmin"),
        *("interpolate", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "roll", "flip"),
    }
)


class _Call(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class _Learned(nn.Module):
    """Runs an operator with parameters among its inputs."""

    def __init__(self, operator: nn.Module, op: OpSpec) -> None:
        super().__init__()
        self.operator = operator
        self.shapes = op.input_shapes
        own = [None if shape is None else nn.Parameter(torch.ones(shape)) for shape in learned_shapes(op)]
        self.places = [parameter is not None for parameter in own]
        self.own = nn.ParameterList(parameter for parameter in own if parameter is not None)

    def forward(self, *given: torch.Tensor) -> Any:
        rest, own = iter(given), iter(self.own)
        inputs = [
            self._stretched(next(own), shape) if learned else next(rest)
            for learned, shape in zip(self.places, self.shapes, strict=True)
        ]
        return self.operator(*inputs)

    @staticmethod
    def _stretched(parameter: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return parameter.expand(shape) if shape else parameter.reshape(())


def _builder(op: OpSpec) -> Callable[[OpSpec], nn.Module]:
    if op.kind in _BUILDERS:
        return _BUILDERS[op.kind]
    if op.get("weights") is None and op.kind in _FUNCTIONS:
        return _plain
    raise UnknownNameError(f"The operator {op.op_key} cannot be built from its key alone.")


def _function(kind: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(F, kind, None) or getattr(torch, kind)
    return found


def _plain(op: OpSpec) -> nn.Module:
    """Call a torch function with the named arguments of the spec; numbered ones are positional."""
    given: dict[str, Any] = {name: value for name, value in op.attributes if name not in _NO_ARGUMENTS}
    numbered = [given.pop(name) for name in sorted(given) if name.startswith("arg") and name[3:].isdecimal()]
    if op.get("inplace"):
        return _Call(_in_place(op.kind, numbered, given))
    if op.kind == "flip" and isinstance(given.get("dims"), int):
        given["dims"] = (given["dims"],)
    function = _function(op.kind)
    return _Call(lambda *inputs: function(*inputs, *numbered, **given))


def _in_place(kind: str, numbered: list[Any], given: dict[str, Any]) -> Callable[..., Any]:
    method = f"{kind}_"
    if hasattr(torch.Tensor, method):
        return lambda first, *others: getattr(first, method)(*others, *numbered, **given)
    function = getattr(F, kind)
    return lambda *inputs: function(*inputs, *numbered, **given, inplace=True)


def _arithmetic(op: OpSpec) -> nn.Module:
    """Compute with two tensors, or with a tensor and a number."""
    name = f"{op.kind}_" if op.get("inplace") else op.kind
    if len(op.input_shapes) == 1:
        return _Call(lambda first: getattr(first, name)(2.0))
    return _Call(lambda first, second: getattr(first, name)(second))


def _together(op: OpSpec) -> nn.Module:
    function, dim = getattr(torch, op.kind), op.get("dim", 0)
    return _Call(lambda *inputs: function(inputs, dim=dim) if "dim" in dict(op.attributes) else function(inputs))


def _reduction(op: OpSpec) -> nn.Module:
    function = getattr(torch, op.kind)
    given = {name: value for name, value in op.attributes if name not in _NO_ARGUMENTS}
    return _Call(lambda inputs: function(inputs, **given))


def _convolution(op: OpSpec) -> nn.Module:
    dimensions = len(op.input_shapes[0]) - 2
    dilation, window = _sizes(op.get("dilation", 1), dimensions), _sizes(op["kernel_size"], dimensions)
    spans = [gap * (size - 1) for gap, size in zip(dilation, window, strict=True)]
    same: Any = "same" if any(span % 2 for span in spans) else tuple(span // 2 for span in spans)
    made: nn.Module = getattr(nn, f"Conv{dimensions}d")(
        op.input_shapes[0][1],
        op["out_channels"],
        window,
        stride=op["stride"],
        padding=op.get("padding", same),
        dilation=dilation,
        groups=op["groups"],
        bias=bool(op["bias"]),
    )
    return made


def _transposed(op: OpSpec) -> nn.Module:
    names = ("stride", "padding", "output_padding", "dilation")
    given = {name: op[name] for name in names if op.get(name) is not None}
    made: nn.Module = getattr(nn, f"ConvTranspose{len(op.input_shapes[0]) - 2}d")(
        op.input_shapes[0][1],
        op["out_channels"],
        op["kernel_size"],
        groups=op["groups"],
        bias=bool(op["bias"]),
        **given,
    )
    return made


def _linear(op: OpSpec) -> nn.Module:
    return nn.Linear(op.input_shapes[0][-1], op["out_features"], bias=bool(op["bias"]))


def _batch_norm(op: OpSpec) -> nn.Module:
    shape = op.input_shapes[0]
    options = {name: bool(op[name]) for name in ("affine", "bias") if op.get(name) is not None}
    made: nn.Module = getattr(nn, f"BatchNorm{max(1, len(shape) - 2)}d")(shape[1], **options)
    return made


def _layer_norm(op: OpSpec) -> nn.Module:
    shape = _sizes(op["normalized_shape"], 1)
    return nn.LayerNorm(list(shape), elementwise_affine=op.get("weights") is not None, bias=_has_bias(op))


def _group_norm(op: OpSpec) -> nn.Module:
    channels, affine = op.input_shapes[0][1], op.get("weights") is not None
    return nn.GroupNorm(op["num_groups"], channels, affine=affine, **({} if _has_bias(op) else {"bias": False}))


def _instance_norm(op: OpSpec) -> nn.Module:
    """Normalise every channel of every image; without weights, a layer with known statistics is built."""
    if op.get("weights") is None:
        return _plain(op)
    shape = op.input_shapes[0]
    options = {} if _has_bias(op) else {"bias": False}
    made: nn.Module = getattr(nn, f"InstanceNorm{len(shape) - 2}d")(shape[1], affine=True, **options)
    return made


def _has_bias(op: OpSpec) -> bool:
    """Return whether a normalisation has a bias, the default."""
    return op.get("weights") is None or "+" in str(op["weights"])


def _sizes(value: Any, dimensions: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * dimensions


_BUILDERS: dict[str, Callable[[OpSpec], nn.Module]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow"), _arithmetic),
    **dict.fromkeys(("cat", "stack"), _together),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std"), _reduction),
    "linear": _linear,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
}
