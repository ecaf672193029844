# SPDX-License-Identifier: Apache-2.0
"""What plugins may register, and what happens to those that break or clash."""

from __future__ import annotations

import contextlib
import re
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import torch
from registries import use_registry
from torch import nn

from nni_latency import builtin_plugin
from nni_latency.errors import MissingEntryError, PluginError, UnknownNameError
from nni_latency.estimators import Estimate, LayerEstimator, NetworkEstimator
from nni_latency.kernels import Domain, KernelType
from nni_latency.loading import load_estimator, load_kernel_types, load_meter, load_runtime
from nni_latency.measurement import LocalBench, Meter, Protocol, Subject
from nni_latency.platforms import Platform
from nni_latency.plugins import GROUP, SEPARATE, collect, hookimpl, installed_entry_points, load_registry
from nni_latency.spaces import FBNetSpace, make_space
from nni_latency.tables import measure_plan_of
from nni_latency.testing import FakeRuntime, check_plugin

_ROOT = Path(__file__).parents[1]

_BUILTIN = metadata.EntryPoint("builtin", "nni_latency.builtin_plugin", GROUP)


@pytest.fixture
def plugin(monkeypatch):
    """Make a module with the given hooks importable, and return its entry point."""

    def make(name, point=None, **hooks):
        module = ModuleType(name)
        for hook, function in hooks.items():
            setattr(module, hook, hookimpl(function))
        monkeypatch.setitem(sys.modules, name, module)
        return metadata.EntryPoint(point or name, name, GROUP)

    return make


def _estimators(*names):
    def register_estimators(register):
        for name in names:
            register(name, lambda argument: argument)

    return register_estimators


def _broken(register):
    register("half", print)
    raise ZeroDivisionError("on purpose")


def test_builtin_plugin_keeps_the_contract():
    check_plugin(builtin_plugin)


def test_builtin_plugin_registers_what_the_package_brings():
    registry = collect([_BUILTIN])
    assert "table" in registry.estimators
    assert "torch" in registry.runtimes
    assert "fbnet" in registry.spaces


@pytest.mark.parametrize(
    "kind", ["estimator", "runtime", "meter", "space", "kernel", "remote", "connection", "command"]
)
def test_every_hook_registers_its_kind(plugin, kind):
    def register_one(register):
        register("one", dict)

    registry = collect([plugin("mine", **{f"register_{kind}s": register_one})])
    registration = registry.find(kind, "one")
    assert (registration.name, registration.factory, registration.owner) == ("one", dict, "mine")
    assert registry.plugins[0].hooks == (f"register_{kind}s",)
    assert registry.plugins[0].registered == ("one",)


def test_find_lists_what_there_is(plugin):
    registry = collect([plugin("mine", register_estimators=_estimators("b", "a"))])
    with pytest.raises(UnknownNameError, match=r"^Unknown estimator 'c'\. Available: a, b\.$"):
        registry.find("estimator", "c")


def test_find_mentions_plugins_that_broke(plugin):
    registry = collect([plugin("bad", register_estimators=_broken)])
    with pytest.raises(UnknownNameError, match=r"did not load: bad \(register_estimators: ZeroDivisionError: on"):
        registry.find("estimator", "c")


def test_plugin_whose_hook_raises_registers_nothing_and_the_rest_work(plugin):
    points = [plugin("bad", register_estimators=_broken), plugin("good", register_estimators=_estimators("a"))]
    registry = collect(points)
    assert list(registry.estimators) == ["a"]
    assert [info.error for info in registry.plugins] == ["register_estimators: ZeroDivisionError: on purpose", None]


def test_plugin_that_can_not_be_imported_is_reported_and_the_rest_work(plugin):
    missing = metadata.EntryPoint("gone", "no_such_module_at_all", GROUP)
    registry = collect([missing, plugin("good", register_estimators=_estimators("a"))])
    assert list(registry.estimators) == ["a"]
    (broken,) = [info for info in registry.plugins if info.error]
    assert broken.name == "gone"
    assert "ModuleNotFoundError" in broken.error


def test_plugin_whose_functions_are_not_marked_is_reported(plugin):
    unmarked = plugin("unmarked")
    sys.modules["unmarked"].register_estimators = _estimators("a")
    (info,) = collect([unmarked]).plugins
    assert (info.hooks, info.registered) == ((), ())
    assert info.error == "it has no function that is marked as a hook with nni_latency.hookimpl"


@pytest.mark.parametrize(("kind", "name"), SEPARATE)
def test_what_a_plugin_of_the_checkout_registers_is_named_with_its_folder(kind, name):
    with pytest.raises(UnknownNameError, match=rf"Unknown {kind} '{name}'.* pip install \./plugins/\w+$") as caught:
        collect([_BUILTIN]).find(kind, name)
    folder = _ROOT / str(caught.value).rpartition("./")[2]
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    assert f'register("{name}"' in sources


def test_every_plugin_of_the_checkout_is_known_by_its_folder():
    assert {path.parent.name for path in _ROOT.glob("plugins/*/setup.cfg")} == set(SEPARATE.values())


def test_plugin_with_an_unknown_hook_is_reported_and_the_rest_work(plugin):
    odd = plugin("odd", register_everything=_estimators("x"))
    registry = collect([odd, plugin("good", register_estimators=_estimators("a"))])
    assert list(registry.estimators) == ["a"]
    (broken,) = [info for info in registry.plugins if info.error]
    assert (broken.name, "register_everything" in broken.error) == ("odd", True)


def test_plugin_with_a_wrong_argument_is_reported(plugin):
    def register_estimators(registry):
        registry("a", dict)

    registry = collect([plugin("odd", register_estimators=register_estimators)])
    assert "PluginValidationError" in registry.plugins[0].error


def test_clash_names_both_owners(plugin):
    points = [plugin(name, register_estimators=_estimators("same")) for name in ("one", "two")]
    with pytest.raises(PluginError, match=r"Two plugins register the estimator 'same': 'one' and 'two'\. Uninstall"):
        collect(points)


def test_plugin_that_registers_a_name_twice_clashes_with_itself(plugin):
    with pytest.raises(PluginError, match=r"'same': 'one' and 'one'"):
        collect([plugin("one", register_estimators=_estimators("same", "same"))])


def test_one_name_may_stand_for_things_of_two_kinds(plugin):
    registry = collect([plugin("one", register_estimators=_estimators("x"), register_spaces=_estimators("x"))])
    assert registry.find("space", "x").owner == registry.find("estimator", "x").owner == "one"


def test_second_plugin_of_one_name_is_reported_and_the_first_works(plugin):
    points = [
        plugin("one", point="mine", register_estimators=_estimators("a")),
        plugin("two", point="mine", register_estimators=_estimators("b")),
    ]
    registry = collect(points)
    assert list(registry.estimators) == ["a"]
    assert [bool(info.error) for info in registry.plugins] == [False, True]
    assert "'mine'" in registry.plugins[1].error


def test_second_entry_point_of_one_module_is_reported_and_the_first_works(plugin):
    points = [
        plugin("one", point="mine", register_estimators=_estimators("a")),
        metadata.EntryPoint("again", "one", GROUP),
    ]
    registry = collect(points)
    assert list(registry.estimators) == ["a"]
    assert [(info.name, bool(info.error)) for info in registry.plugins] == [("mine", False), ("again", True)]


def test_installed_plugins_begin_with_the_builtin_one(monkeypatch):
    monkeypatch.delenv("NNI_LATENCY_PLUGINS")
    assert installed_entry_points()[0].name == "builtin"


def test_environment_narrows_the_plugins_of_others(monkeypatch):
    own = metadata.entry_points(group=GROUP, name="builtin")
    others = [metadata.EntryPoint(name, "x", GROUP) for name in ("a", "b", "c")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: [*others, *own])
    monkeypatch.setenv("NNI_LATENCY_PLUGINS", "c, a")
    assert [point.name for point in installed_entry_points()] == ["builtin", "a", "c"]


def test_registry_is_loaded_once():
    assert load_registry() is load_registry()


def test_registry_can_not_be_changed():
    with pytest.raises(TypeError, match=r"does not support item assignment"):
        load_registry().estimators["mine"] = None  # type: ignore[index]


# What crosses a hook ----------------------------------------------------------------------------------------------

_PLATFORM = Platform("board", "torch", "fp32", 1)


class _Bare(NetworkEstimator):
    """An estimator that is right, but for what a test takes away from it."""

    metric = "latency"
    platform = _PLATFORM

    def __init__(self, answer=None):
        self.answer = answer

    def estimate(self, model, example_inputs=None):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class _Operators(LayerEstimator):
    metric = "latency"
    platform = _PLATFORM

    def estimate_op(self, op):
        return 0.5


def _changed(base, **attributes):
    """Make a class that has other attributes than its base, as a plugin defines one."""
    return type(base.__name__, (base,), {"__module__": __name__, **attributes})


def _without(base, name):
    def missing(self):
        raise AttributeError(name)

    return _changed(base, **{name: property(missing)})


@pytest.fixture
def registered(plugin, monkeypatch):
    """Register one factory by a plugin of the name ``theirs``, and make that the registry of the package."""

    def make(kind, factory):
        def hook(register):
            register("it", factory)

        registry = collect([_BUILTIN, plugin("theirs", **{f"register_{kind}s": hook})])
        use_registry(monkeypatch, registry)
        return registry

    return make


@pytest.mark.parametrize(
    ("name", "factory", "message"),
    [
        (3, dict, r"the name of an estimator must be a text .*Got 3$"),
        (None, dict, r"the name of an estimator must be a text .*Got None$"),
        ("", dict, r"the name of an estimator must be a text .*Got ''$"),
        ("a:b", dict, r"the name of an estimator must be a text .*Got 'a:b'$"),
        ("a", 3, r"the factory of 'a' must be something to call, or its name 'module:name'\. Got 3$"),
        ("a", "json.loads", r"the factory of 'a' must be something to call, or .*Got 'json\.loads'$"),
    ],
)
def test_registering_what_is_no_name_or_factory_breaks_that_plugin_alone(plugin, name, factory, message):
    odd = plugin("odd", register_estimators=lambda register: register(name, factory))
    registry = collect([odd, plugin("good", register_estimators=_estimators("b"))])
    assert list(registry.estimators) == ["b"]
    assert re.search(message, registry.plugins[0].error)


def test_options_of_other_kinds_are_refused(plugin):
    odd = plugin("odd", register_estimators=lambda register: register("a", dict, on_devices=True))
    (info,) = collect([odd]).plugins
    assert info.error.endswith("register() has no option 'on_devices' for an estimator")


def test_named_factory_is_imported_on_first_use(registered):
    registered("estimator", f"{__name__}:_Bare")
    assert load_estimator("it:5").answer == "5"
    for kind, load in (("estimator", load_estimator), ("runtime", load_runtime)):
        registered(kind, "surely_absent:Made")
        with pytest.raises(PluginError, match=r"'theirs' failed to make 'it': ModuleNotFoundError: .*'surely_absent'"):
            load("it")


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("estimator", "an Estimator"),
        ("runtime", "a Runtime"),
        ("meter", "a Meter"),
        ("kernel", "a K"),
        ("remote", "a Remote"),
        ("connection", "a Connection"),
        ("command", r"a click\.Command"),
    ],
)
def test_factory_that_makes_something_else_is_named_for_every_kind(registered, kind, made):
    registration = registered(kind, lambda *arguments, **options: 0.5).find(kind, "it")
    with pytest.raises(PluginError, match=rf"^The plugin 'theirs' must make {made}.* for 'it'\. Got float\.$"):
        registration.make()


def test_factory_without_a_signature_is_named(registered):
    registered("meter", iter)
    with pytest.raises(PluginError, match=r"The plugin 'theirs' registers 'it' with a factory whose parameters"):
        load_meter("it:5")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_without(_Bare, "metric"), r"attribute 'metric': one of latency, .*Got none"),
        (_without(_Bare, "platform"), r"attribute 'platform': a nni_latency\.Platform\. Got none"),
        (_changed(_Bare, metric="speed"), r"attribute 'metric': one of latency, .*Got 'speed' \(str\)"),
        (_changed(_Bare, metric=["latency"]), r"attribute 'metric': .*Got list"),
        (_changed(_Bare, platform="board.torch.fp32.t1"), r"a nni_latency\.Platform\. Got 'board\.torch\.fp32\.t1'"),
        (_changed(_Bare, platform=property(lambda self: {}["a"])), r"failed in 'platform': KeyError: 'a'"),
        (_changed(_Bare, batch=0), r"attribute 'batch': a whole number of 1 or more\. Got 0"),
        (_changed(_Operators, by="line"), r"attribute 'by': one of .*Got 'line'"),
        (_changed(_Operators, calibration="1"), r"attribute 'calibration': a number above 0\. Got '1'"),
    ],
)
def test_estimator_of_a_plugin_with_a_wrong_attribute_is_named(registered, kind, message):
    registered("estimator", lambda argument: kind())
    with pytest.raises(PluginError, match=rf"^The estimator 'it' of the plugin 'theirs' .*{message}"):
        load_estimator("it")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (0.5, r"must return an Estimate from 'estimate'\. Got 0\.5 \(float\)\."),
        (None, r"must return an Estimate from 'estimate'\. Got None\."),
        (KeyError("conv"), r"failed in 'estimate': KeyError: 'conv'"),
        (ValueError("no such shape"), r"failed in 'estimate': ValueError: no such shape"),
        (RuntimeError(), r"failed in 'estimate': RuntimeError"),
    ],
)
def test_estimator_of_a_plugin_with_a_wrong_answer_is_named(registered, answer, message):
    registered("estimator", lambda argument: _Bare(answer))
    with pytest.raises(PluginError, match=rf"^The estimator 'it' of the plugin 'theirs' {message}"):
        load_estimator("it").estimate(nn.Identity(), torch.zeros(1))


def test_estimator_of_a_plugin_is_named_for_its_operators_and_for_many_networks(registered):
    registered("estimator", lambda argument: _Operators())
    with pytest.raises(PluginError, match=r"'theirs' must return an Estimate from 'estimate_op'\. Got 0\.5"):
        load_estimator("it").estimate(nn.Sequential(nn.ReLU()), torch.zeros(1, 3))
    whole = _changed(_Bare, estimate_all=lambda self, networks: 0.5)
    registered("estimator", lambda argument: whole())
    with pytest.raises(PluginError, match=r"'theirs' must return a list of Estimate from 'estimate_all'"):
        load_estimator("it").estimate_all([])


def test_estimator_that_is_right_or_refuses_by_an_error_of_the_package_speaks_for_itself(registered):
    estimate = Estimate(1.0, 0.5, 2.0)
    registered("estimator", lambda argument: _Bare(MissingEntryError("Not measured.") if argument else estimate))
    assert load_estimator("it").estimate(None) is estimate
    with pytest.raises(MissingEntryError, match=r"^Not measured\.$"):
        load_estimator("it:1").estimate(None)


def test_estimator_that_no_plugin_made_raises_what_it_raises():
    with pytest.raises(KeyError, match="conv"):
        load_estimator(_Bare(KeyError("conv"))).estimate(None)


class _Nameless(FakeRuntime):
    def __init__(self, latency_of):
        super().__init__(latency_of)
        self.name = ""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Nameless, r"attribute 'name': a text that is not empty\. Got ''"),
        (_changed(FakeRuntime, platform="board"), r"attribute 'platform': a nni_latency\.Platform\. Got 'board'"),
        (_changed(FakeRuntime, clock=3), r"attribute 'clock': a clock with .*Got 3"),
        (_changed(FakeRuntime, sees_calls="yes"), r"attribute 'sees_calls': True or False\. Got 'yes'"),
        (_changed(FakeRuntime, least_runs=0), r"attribute 'least_runs': a whole number of 1 or more\. Got 0"),
    ],
)
def test_runtime_of_a_plugin_with_a_wrong_attribute_is_named(registered, kind, message):
    registered("runtime", lambda device, **options: kind(lambda op: 0.5))
    with pytest.raises(PluginError, match=rf"^The runtime 'it' of the plugin 'theirs' must have the {message}"):
        load_runtime("it")


def _fails(*arguments):
    raise KeyError("driver")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session": lambda self: 3}, r"must return a context manager from 'session'\. Got 3"),
        ({"session": _fails}, r"failed in 'session': KeyError: 'driver'"),
        ({"session": lambda self: _broken_session()}, r"failed in 'session': ZeroDivisionError: inside"),
        ({"prepare": lambda self, subject, inputs: 3}, r"must return something to call from 'prepare'\. Got 3"),
        ({"reference": lambda self: 3}, r"must return a pair of something to call and what it takes from 'reference'"),
        ({"fallbacks": lambda self, stage, value: ["cpu"]}, r"must return a tuple of Fallback from 'fallbacks'"),
        ({"fallbacks": _fails}, r"failed in 'fallbacks': KeyError: 'driver'"),
        ({"time_calls": lambda self, stage, value: [None]}, r"must return a list of times \[s\] from 'time_calls'"),
    ],
)
def test_runtime_of_a_plugin_with_a_wrong_answer_is_named(registered, changes, message):
    kind = _changed(FakeRuntime, **changes)
    registered("runtime", lambda device, **options: kind(lambda op: 0.5))
    subject = Subject("relu", nn.ReLU, (1, 3))
    protocol = Protocol(n_warmup=1, n_run=1)
    with (
        pytest.raises(PluginError, match=rf"^The runtime 'it' of the plugin 'theirs' {message}"),
        LocalBench(load_runtime("it"), protocol, calls=True) as bench,
    ):
        bench.admit(subject)
        bench.visit([subject.key])


@contextlib.contextmanager
def _broken_session():
    raise ZeroDivisionError("inside")
    yield


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "heat"}, r"must have the attribute 'metric': one of latency, .*Got 'heat'"),
        ({"resolution": "fine"}, r"must have the attribute 'resolution': a number of 0 or more\. Got 'fine'"),
        ({"period": -1.0}, r"must have the attribute 'period': a number of 0 or more\. Got -1\.0"),
        ({"stop": lambda self: "5 J"}, r"must return a number from 'stop'\. Got '5 J'"),
        ({"stop": _fails}, r"failed in 'stop': KeyError: 'driver'"),
        ({"start": _fails}, r"failed in 'start': KeyError: 'driver'"),
        ({"observations": lambda self: 3}, r"must return a mapping from 'observations'\. Got 3"),
        ({"session": _fails}, r"failed in 'session': KeyError: 'driver'"),
    ],
)
def test_meter_of_a_plugin_that_is_wrong_is_named(registered, changes, message):
    usual = {"metric": "energy", "resolution": 0.0, "start": lambda self: None, "stop": lambda self: 1.0}
    kind = _changed(Meter, **{**usual, **changes})
    registered("meter", lambda device: kind())
    subject = Subject("relu", nn.ReLU, (1, 3))
    with (
        pytest.raises(PluginError, match=rf"^The meter 'it' of the plugin 'theirs' {message}"),
        LocalBench(FakeRuntime(lambda op: 0.5), Protocol(n_warmup=1, n_run=1), meters=[load_meter("it")]) as bench,
    ):
        bench.admit(subject)
        bench.visit([subject.key])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, r"must be a KernelType of the name 'it'\. Got 'other'"),
        ({"domains": {"CIN": 3}}, r"must be a mapping of names to Domain"),
        ({"build": 3}, r"must be a function\. Got 3"),
        ({"build": lambda sizes: 3}, r"must return a module from 'build'\. Got 3"),
        ({"build": _fails}, r"failed in 'build': KeyError: 'driver'"),
        ({"input_shapes": lambda sizes: 3}, r"must return shapes of the inputs, .* from 'input_shapes'\. Got 3"),
        ({"operators": lambda shapes, sizes: [3]}, r"must return a tuple of OpSpec from 'operators'\. Got list"),
    ],
)
def test_kernel_of_a_plugin_that_is_wrong_is_named(registered, changes, message):
    usual = {
        "name": "it",
        "domains": {"CIN": Domain(1, 8)},
        "input_shapes": lambda sizes: [(1, sizes["CIN"])],
        "build": lambda sizes: nn.ReLU(),
    }
    registered("kernel", lambda: KernelType(**{**usual, **changes}))
    with pytest.raises(PluginError, match=rf"kernel 'it' of the plugin 'theirs' {message}"):
        load_kernel_types()["it"].snap({})


def test_space_of_a_plugin_that_is_wrong_is_named(registered):
    registered("space", lambda **arguments: nn.ReLU())
    with pytest.raises(PluginError, match=r"^The plugin 'theirs' must make an NNI model space for 'it'\. Got ReLU\.$"):
        make_space("it")
    for plan, message in (
        (lambda batch_size: 3, r"must return a MeasurePlan from 'measure_plan'\. Got 3"),
        (_fails, r"failed in 'measure_plan': KeyError: 'driver'"),
    ):
        space = FBNetSpace(depth=0.25)
        space.measure_plan = plan
        registered("space", lambda _made=space, **arguments: _made)
        with pytest.raises(PluginError, match=rf"^The space 'it' of the plugin 'theirs' {message}"):
            measure_plan_of(make_space("it"))
