# SPDX-License-Identifier: Apache-2.0
"""Contract suites: what every estimator, runtime and plugin must keep, whoever wrote it.

Each check raises `AssertionError` with one sentence that says what is broken; none of them needs pytest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
from torch import nn

from nni_latency.cli import COMMANDS
from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.estimators import Estimate, Estimator, LayerEstimator
from nni_latency.measurement import Fallback, Stage, Subject, time_chain
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import capture_operators
from nni_latency.platforms import Platform
from nni_latency.plugins import GROUP, Registration, collect
from nni_latency.units import check_metric


def check_estimator(estimator: Estimator, model: nn.Module, example_inputs: Any) -> None:
    """Check that an estimator keeps the contract of `Estimator`.

    Parameters
    ----------
    estimator : Estimator
        Whose answers are checked.
    model : nn.Module
        A network that it can cost.
    example_inputs : Tensor or tuple of Tensor
        What the network takes.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    expect(isinstance(estimator, Estimator), f"{type(estimator).__name__} must be a subclass of Estimator.")
    check_metric(estimator.metric)
    expect(isinstance(estimator.platform, Platform), "'platform' must be a Platform.")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    answer = estimator.estimate(model, example_inputs)
    _check_estimate(answer, "estimate")
    _check_unchanged(model, state, modes)
    with ThreadPoolExecutor(2) as pool:
        again = list(pool.map(lambda _: estimator.estimate(model, example_inputs), range(4)))
    expect(all(other == answer for other in again), "estimate must give the same answer again, in every thread.")
    try:
        estimator.estimate(model, "not a tensor")
    except InvalidValueError:
        pass
    else:
        raise AssertionError("estimate must raise InvalidValueError for inputs that are not tensors.")
    if isinstance(estimator, LayerEstimator):
        _check_layers(estimator, model, example_inputs, answer)


def check_runtime(runtime: Runtime, module: nn.Module | None = None, input_shape: Sequence[int] = (1, 3, 8, 8)) -> None:
    """Check that a runtime keeps the contract of `Runtime`.

    Parameters
    ----------
    runtime : Runtime
        What is checked.
    module : nn.Module, optional
        A module that it can run; a small convolution without it. It may be moved and changed.
    input_shape : sequence of int, default=(1, 3, 8, 8)
        Shape of the module's input.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    expect(isinstance(runtime, Runtime), f"{type(runtime).__name__} must be a subclass of Runtime.")
    expect(isinstance(runtime.name, str) and bool(runtime.name), "'name' must be a text that is not empty.")
    expect(runtime.platform.runtime == runtime.name, "'platform.runtime' must be the runtime's 'name'.")
    expect(runtime.platform == runtime.platform, "'platform' must be the same whenever it is read.")
    for flag in ("supports_layer_timing", "portable", "runs_here", "sees_calls", "takes_onnx"):
        value = getattr(runtime, flag)
        expect(isinstance(value, bool), f"{flag!r} must be True or False. Got {value!r}.")
    _check_clock(runtime)
    before = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    with runtime.session():
        inputs = runtime.inputs(input_shape)
        if hasattr(inputs, "shape"):
            shape = tuple(inputs.shape)
            expect(shape == tuple(input_shape), f"inputs must have the shape {tuple(input_shape)}. Got {shape}.")
        build = partial(nn.Conv2d, input_shape[1], 4, 1) if module is None else lambda: module
        subject = Subject("network", build, tuple(input_shape))
        stage = runtime.prepare(subject, inputs)
        expect(callable(stage), "prepare must return something to call.")
        _check_kernels(runtime.fused_operators(subject, inputs))
        _check_time(runtime, stage, inputs, "A run")
        _check_fallbacks(runtime.fallbacks(stage, inputs), runtime.fallbacks(stage, inputs))
        _check_time(runtime, *runtime.reference(), "A run of the reference")
    after = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    expect(before == after, "session must put back torch's number of threads, gradient and inference mode.")


def check_plugin(module: ModuleType) -> None:
    """Check that a plugin loads, registers something usable, and does not clash with what is built in.

    Parameters
    ----------
    module : module
        The module that the entry point names.

    Raises
    ------
    AssertionError
        If the plugin is broken; the message says how.
    """
    point = metadata.EntryPoint("plugin-under-test", module.__name__, GROUP)
    registry = collect([point])
    info = registry.plugins[0]
    expect(info.error is None, f"{module.__name__} does not load: {info.error}.")
    expect(bool(info.registered), f"{module.__name__} registers nothing.")
    builtin = metadata.EntryPoint("builtin", "nni_latency.builtin_plugin", GROUP)
    if module.__name__ != builtin.value:
        try:
            collect([builtin, point])
        except LatencyError as error:
            raise AssertionError(str(error)) from error
    for name, registration in registry.commands.items():
        _check_command(name, registration)
    for kind in ("estimators", "runtimes", "meters", "spaces", "kernels", "remotes", "connections"):
        for registration in getattr(registry, kind).values():
            _check_factory(registration)


def _check_factory(registration: Registration) -> None:
    """Check that a factory can be imported, and that a runtime which takes a place on a device is registered for it."""
    try:
        registration.imported()
        takes_place = registration.kind == "runtime" and "place" in registration.parameters()
    except LatencyError as error:
        raise AssertionError(str(error)) from error
    expect(
        registration.on_devices or not takes_place,
        f"The runtime {registration.name!r} takes a 'place' on a device. Register it with on_devices=True.",
    )


def _check_command(name: str, registration: Registration) -> None:
    """Check that a command can be made, has a name that is free and says in the list of commands what it does."""
    expect(name not in COMMANDS, f"{name!r} is a command of nni-latency already. Choose another name.")
    expect(
        bool(registration.summary),
        f"The factory of the command {name!r} has no docstring. Its first line describes the command in the help.",
    )
    try:
        registration.make()
    except LatencyError as error:
        raise AssertionError(str(error)) from error


def _check_kernels(kernels: object) -> None:
    """Check what a runtime says of its kernels: each has a name, and no operator runs in two of them."""
    if kernels is None:
        return
    pairs = isinstance(kernels, list) and all(isinstance(item, tuple) and len(item) == 2 for item in kernels)
    expect(pairs, f"fused_operators must return None or a list of (kernel, operators). Got {kernels!r}.")
    assert isinstance(kernels, list)
    parts = [part for _, operators in kernels for part in operators]
    texts = all(isinstance(item, str) for item in (*(name for name, _ in kernels), *parts))
    expect(texts, f"fused_operators must name kernels and operators by texts. Got {kernels!r}.")
    expect(len(set(parts)) == len(parts), f"fused_operators must name every operator once. Got {kernels!r}.")


def _check_fallbacks(found: object, again: object) -> None:
    """Check what a runtime says that did not run as it was asked for."""
    good = isinstance(found, tuple) and all(isinstance(item, Fallback) for item in found)
    expect(good, f"fallbacks must return a tuple of Fallback. Got {found!r}.")
    assert isinstance(found, tuple)
    for item in found:
        expect(bool(item.ran), "A Fallback must say where its nodes ran.")
        counts = all(kind and count > 0 for kind, count in item.operators) and bool(item.operators)
        expect(counts, f"A Fallback must name the operators that fell back, and how many of each. Got {item!r}.")
        expect(item.count <= item.n_nodes, f"No more nodes can fall back than a network has. Got {item!r}.")
    places = [item.ran for item in found]
    expect(len(set(places)) == len(places), f"fallbacks must name every place once. Got {places}.")
    expect(found == again, f"fallbacks must say the same of the same network. Got {found!r} and {again!r}.")


def _check_time(runtime: Runtime, stage: Stage, inputs: Any, what: str) -> None:
    seconds = time_chain([stage], inputs, runtime.clock)[0]
    expect(math.isfinite(seconds) and seconds > 0, f"{what} must take a positive, finite time. Got {seconds!r}.")


def _check_layers(estimator: LayerEstimator, model: nn.Module, example_inputs: Any, answer: Estimate) -> None:
    expect(estimator.calibration > 0, f"'calibration' must be positive. Got {estimator.calibration!r}.")
    parts = []
    for name, op in capture_operators(model, example_inputs, estimator.by):
        parts.append(estimator.estimate_op(op))
        _check_estimate(parts[-1], f"estimate_op of {name!r}")
    # An estimator that knows the places of a network, such as a table, may cost one operator by where it stands.
    kind = type(estimator)
    own = (kind._estimate_ops, kind._estimate_traced) == (LayerEstimator._estimate_ops, LayerEstimator._estimate_traced)
    if own and not estimator.beside:
        total = estimator.total(parts)
        expect(
            math.isclose(answer.value, total.value, rel_tol=1e-9),
            f"estimate must be the calibrated sum of its operators, {total.value!r}. Got {answer.value!r}.",
        )
    try:
        estimator.estimate(model)
    except InvalidValueError:
        return
    raise AssertionError("estimate must raise InvalidValueError without 'example_inputs'.")


def _check_estimate(answer: object, what: str) -> None:
    if not isinstance(answer, Estimate):
        raise AssertionError(f"{what} must return an Estimate. Got {type(answer).__name__}.")
    expect(math.isfinite(answer.value) and answer.value > 0, f"{what}: the value must be positive. Got {answer}.")
    expect(math.isfinite(answer.high), f"{what}: the interval must be finite. Got {answer}.")
    named = isinstance(answer.missing, tuple) and all(isinstance(name, str) for name in answer.missing)
    expect(named, f"{what}: 'missing' must be a tuple of str. Got {answer.missing!r}.")


def _check_unchanged(model: nn.Module, state: dict[str, torch.Tensor], modes: list[bool]) -> None:
    same = all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    expect(same, "estimate must not change the model's parameters and buffers.")
    expect(modes == [module.training for module in model.modules()], "estimate must not change the training mode.")


def _check_clock(runtime: Runtime) -> None:
    clock = runtime.clock
    expect(clock.resolution > 0, f"The clock's 'resolution' must be positive. Got {clock.resolution!r}.")
    intervals = clock.intervals([clock.mark() for _ in range(3)])
    good = len(intervals) == 2 and all(math.isfinite(seconds) and seconds >= 0 for seconds in intervals)
    expect(good, f"Three marks must give two times that are not negative. Got {intervals!r}.")


def expect(condition: bool, message: str) -> None:
    """Raise `AssertionError` unless a condition holds."""
    if not condition:
        raise AssertionError(message)
