# SPDX-License-Identifier: Apache-2.0
"""The contract suites find what they should: each test breaks one rule."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from types import ModuleType

import click
import pytest
import torch
from torch import nn
from whole_network import WholeNetwork

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, Estimator, LayerEstimator
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.platforms import Platform
from nni_latency.plugins import hookimpl
from nni_latency.testing import FakeClock, FakeRuntime, check_estimator, check_plugin, check_runtime

_INPUTS = torch.zeros(1, 3, 4, 4)


def _model():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())


class _Good(LayerEstimator):
    metric = "latency"
    platform = Platform("pi")
    answer = Estimate(1.0, 0.5, 2.0)

    def estimate_op(self, op):
        return self.answer


class _Trainer(WholeNetwork):
    def estimate(self, model, example_inputs=None):
        answer = super().estimate(model, example_inputs)
        model.train(not model.training)
        return answer


class _Writer(WholeNetwork):
    def estimate(self, model, example_inputs=None):
        answer = super().estimate(model, example_inputs)
        with torch.no_grad():
            model[0].weight += 1
        return answer


class _Fickle(WholeNetwork):
    def __init__(self):
        super().__init__()
        self.count = itertools.count(1)

    def estimate(self, model, example_inputs=None):
        return dataclasses.replace(super().estimate(model, example_inputs), high=1.0 + next(self.count))


class _Trusting(WholeNetwork):
    def estimate(self, model, example_inputs=None):
        return Estimate(1.0, 1.0, 1.0)


class _Bare(WholeNetwork):
    def estimate(self, model, example_inputs=None):
        return 1.0


class _Shapeless(_Good):
    def estimate(self, model, example_inputs=None):
        return super().estimate(model, _INPUTS if example_inputs is None else example_inputs)


class _Unsummed(_Good):
    def estimate(self, model, example_inputs=None):
        return dataclasses.replace(super().estimate(model, example_inputs), value=2.5)


@pytest.mark.parametrize("make", [_Good, WholeNetwork])
def test_check_estimator_accepts_a_good_one(make):
    check_estimator(make(), _model(), _INPUTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_Trainer, r"must not change the training mode"),
        (_Writer, r"must not change the model's parameters"),
        (_Fickle, r"must give the same answer again"),
        (_Trusting, r"must raise InvalidValueError for inputs that are not tensors"),
        (_Bare, r"must return an Estimate\. Got float"),
        (_Shapeless, r"must raise InvalidValueError without 'example_inputs'"),
        (_Unsummed, r"must be the calibrated sum of its operators, 3\.0\. Got 2\.5"),
    ],
)
def test_check_estimator_finds_a_broken_rule(make, message):
    with pytest.raises(AssertionError, match=message):
        check_estimator(make(), _model(), _INPUTS)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Estimate(0.0, 0.0, 0.0), r"the value must be positive"),
        (Estimate(math.inf, 0.0, math.inf), r"the value must be positive"),
        (Estimate(1.0, 0.5, math.inf), r"the interval must be finite"),
        (Estimate(1.0, 1.0, 1.0, ["x"]), r"'missing' must be a tuple of str"),
    ],
)
def test_check_estimator_finds_a_senseless_answer(answer, message):
    class Senseless(WholeNetwork):
        def estimate(self, model, example_inputs=None):
            return answer

    with pytest.raises(AssertionError, match=message):
        check_estimator(Senseless(), _model(), _INPUTS)


def test_check_estimator_refuses_another_class():
    with pytest.raises(AssertionError, match=r"object must be a subclass of Estimator"):
        check_estimator(object(), _model(), _INPUTS)


def test_check_estimator_refuses_an_unknown_metric():
    class Fast(WholeNetwork):
        metric = "speed"

    with pytest.raises(InvalidValueError, match=r"Got 'speed'"):
        check_estimator(Fast(), _model(), _INPUTS)


def test_check_estimator_refuses_a_calibration_that_is_no_factor():
    class Lost(_Good):
        calibration = 0.0

        def estimate(self, model, example_inputs=None):
            self.check = super().estimate(model, example_inputs)
            return Estimate(3.0, 3.0, 3.0)

    with pytest.raises(AssertionError, match=r"'calibration' must be positive"):
        check_estimator(Lost(), _model(), _INPUTS)


class _Misnamed(FakeRuntime):
    name = "other"

    @property
    def platform(self):
        return Platform("pi", "fake")


class _WrongShape(FakeRuntime):
    def inputs(self, like):
        return super().inputs((*like, 1))


class _Backwards(FakeClock):
    def intervals(self, marks):
        return [-1.0 for _ in marks[1:]]


class _Uncounted(FakeClock):
    def intervals(self, marks):
        return [0.0 for _ in marks]


class _Leaking(TorchEager):
    def session(self):
        torch.set_num_threads(torch.get_num_threads() + 1)
        return super().session()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _Misnamed(lambda _op: 1.0), r"'platform\.runtime' must be the runtime's 'name'"),
        (lambda: _WrongShape(lambda _op: 1.0), r"inputs must have the shape \(1, 3, 8, 8\)\. Got \(1, 3, 8, 8, 1\)"),
        (lambda: FakeRuntime(lambda _op: 1.0, clock=_Backwards()), r"must give two times that are not negative"),
        (lambda: FakeRuntime(lambda _op: 1.0, clock=_Uncounted()), r"must give two times"),
        (lambda: FakeRuntime(lambda _op: 1.0, clock=FakeClock(resolution=0.0)), r"'resolution' must be positive"),
        (lambda: FakeRuntime(lambda _op: math.inf), r"must take a positive, finite time"),
        (object, r"object must be a subclass of Runtime"),
    ],
)
def test_check_runtime_finds_a_broken_rule(make, message):
    with pytest.raises(AssertionError, match=message):
        check_runtime(make())


def test_check_runtime_finds_threads_that_leak():
    before = torch.get_num_threads()
    try:
        with pytest.raises(AssertionError, match=r"must put back torch's number of threads"):
            check_runtime(_Leaking("cpu"))
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def make_plugin(monkeypatch):
    def make(**hooks):
        module = ModuleType("plugin_to_check")
        for hook, function in hooks.items():
            setattr(module, hook, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return make


def _registering(*names, factory=Estimator):
    @hookimpl
    def register_estimators(register):
        for name in names:
            register(name, factory)

    return register_estimators


def test_check_plugin_accepts_a_good_one(make_plugin):
    check_plugin(make_plugin(register_estimators=_registering("mine")))


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (_registering(), r"plugin_to_check registers nothing"),
        (_registering("table"), r"Two plugins register the estimator 'table': 'builtin' and 'plugin-under-test'"),
        (_registering("a:b"), r"does not look like a path and has no ':' or ' ', .* Got 'a:b'"),
        (_registering("t.json"), r"does not look like a path"),
        (_registering(""), r"does not look like a path"),
        (_registering(3), r"name of an estimator must be a text .*Got 3\b"),
        (_registering("mine", factory=3), r"the factory of 'mine' must be something to call, or its name .* Got 3"),
        (_registering("mine", factory="json:laods"), r"failed to make 'mine': AttributeError: .*laods"),
    ],
)
def test_check_plugin_finds_a_broken_rule(make_plugin, hook, message):
    with pytest.raises(AssertionError, match=message):
        check_plugin(make_plugin(register_estimators=hook))


def test_check_plugin_finds_a_runtime_that_hides_its_adapter(make_plugin):
    @hookimpl
    def register_runtimes(register):
        register("mine", lambda device, *, place=None: None)

    with pytest.raises(AssertionError, match=r"'mine' takes a 'place' on a device\. Register it with on_devices=True"):
        check_plugin(make_plugin(register_runtimes=register_runtimes))


def test_check_plugin_finds_unmarked_hooks(make_plugin):
    with pytest.raises(AssertionError, match=r"it has no function that is marked as a hook with nni_latency\.hookimpl"):
        check_plugin(make_plugin(register_estimators=lambda register: register("mine", dict)))


def test_check_plugin_finds_a_hook_that_raises(make_plugin):
    @hookimpl
    def register_estimators(register):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(AssertionError, match=r"does not load: register_estimators: ZeroDivisionError: on purpose"):
        check_plugin(make_plugin(register_estimators=register_estimators))


def _adding(name, factory):
    @hookimpl
    def register_commands(register):
        register(name, factory)

    return register_commands


def _hello():
    """Say hello."""
    return click.Command("hello")


def _says_nothing():
    return click.Command("hello")


def _no_command():
    """Say nothing."""
    return print


@pytest.mark.parametrize("factory", [_hello, click.Group("hello", help="Say hello.")])
def test_check_plugin_accepts_commands(make_plugin, factory):
    check_plugin(make_plugin(register_commands=_adding("hello", factory)))


@pytest.mark.parametrize(
    ("name", "factory", "message"),
    [
        ("show", _hello, r"'show' is a command of nni-latency already"),
        ("hello", _says_nothing, r"The factory of the command 'hello' has no docstring"),
        ("hello", _no_command, r"must make a click\.Command for 'hello'\. Got builtin_function_or_method"),
        ("say hello", _hello, r"name of a command must be a text .*Got 'say hello'"),
    ],
)
def test_check_plugin_finds_a_broken_command(make_plugin, name, factory, message):
    with pytest.raises(AssertionError, match=message):
        check_plugin(make_plugin(register_commands=_adding(name, factory)))
