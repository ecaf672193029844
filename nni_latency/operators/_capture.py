"""Capture the operators of a module tree with forward hooks, on meta tensors: no computing, no memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators._op_spec import OpSpec


@runtime_checkable
class DescribesItself(Protocol):
    """A block that is measured as one operator and says which."""

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Describe the block for those input shapes."""


def capture_operators(model: nn.Module, example_inputs: Any) -> list[tuple[str, OpSpec]]:
    """List the operators that a forward pass of `model` runs, with their true input shapes.

    A module with a method ``op_spec(*input_shapes)`` is one operator; leaf modules of torch are one each.

    Parameters
    ----------
    model : nn.Module
        The network; it is copied, not changed.
    example_inputs : Tensor or tuple of Tensor
        What the forward pass takes. Only shapes and dtypes matter.

    Returns
    -------
    list of (str, OpSpec)
        Name of the module in the tree and its operator, in the order of execution.

    Raises
    ------
    InvalidValueError
        If the inputs do not fit the network.
    """
    shadow = copy.deepcopy(model).to("meta").eval()
    inputs = freeze_shapes(example_inputs)
    found: list[tuple[str, OpSpec]] = []
    # A module that stands in several places is hooked once, under its first name.
    units = {id(module): (name, module) for name, module in reversed(_units("", shadow))}
    for name, module in units.values():
        module.register_forward_pre_hook(_recorder(name, found))
    try:
        with torch.inference_mode():
            shadow(*inputs)
    except (RuntimeError, TypeError) as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise InvalidValueError(
            f"The example inputs of shape {shapes} do not fit {type(model).__name__}: {error}"
        ) from error
    return found


def freeze_shapes(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Turn example inputs into a tuple of meta tensors of the same shapes and dtypes."""
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if not inputs or not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise InvalidValueError(
            f"The 'example_inputs' must be a tensor or a tuple of tensors. Got {type(example_inputs).__name__}."
        )
    return tuple(torch.empty_like(tensor, device="meta") for tensor in inputs)


def _units(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules that count as one operator each: those that describe themselves, and leaves."""
    children = list(module.named_children())
    if isinstance(module, DescribesItself) or not children:
        return [(prefix, module)]
    return [unit for name, child in children for unit in _units(f"{prefix}.{name}" if prefix else name, child)]


def _recorder(name: str, found: list[tuple[str, OpSpec]]) -> Any:
    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shapes = [tensor.shape for tensor in inputs if isinstance(tensor, torch.Tensor)]
        found.append((name, _describe(module, shapes)))

    return record


def _describe(module: nn.Module, shapes: list[Any]) -> OpSpec:
    if isinstance(module, DescribesItself):
        return module.op_spec(*shapes)
    if isinstance(module, nn.Conv2d):
        return OpSpec.of("conv2d", shapes, **_convolution(module))
    if isinstance(module, nn.Linear):
        return OpSpec.of("linear", shapes, out_features=module.out_features, bias=module.bias is not None)
    return OpSpec.of(_KINDS.get(type(module), type(module).__name__.lower()), shapes)


def _convolution(module: nn.Conv2d) -> dict[str, Any]:
    """Read the attributes; padding and dilation stand only where the window is not a plain 'same'-padded one."""
    attributes: dict[str, Any] = {
        "out_channels": module.out_channels,
        "kernel_size": _one_if_square(module.kernel_size),
        "stride": _one_if_square(module.stride),
        "groups": module.groups,
        "bias": module.bias is not None,
    }
    if set(module.dilation) != {1}:
        attributes["dilation"] = _one_if_square(module.dilation)
    padding = (0, 0) if module.padding == "valid" else module.padding
    spans = [dilation * (size - 1) for dilation, size in zip(module.dilation, module.kernel_size, strict=True)]
    if not isinstance(padding, str) and [2 * side for side in padding] != spans:
        attributes["padding"] = _one_if_square(padding)
    return attributes


def _one_if_square(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    return sizes[0] if len(set(sizes)) == 1 else sizes


_KINDS: dict[type[nn.Module], str] = {
    nn.BatchNorm2d: "batch_norm",
    nn.ReLU: "relu",
    nn.Identity: "identity",
    nn.Dropout: "identity",
}
