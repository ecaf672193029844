"""What plugins may register, and what happens to those that break or clash."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from nni_latency import builtin_plugin
from nni_latency.errors import PluginError, UnknownNameError
from nni_latency.plugins import GROUP, SEPARATE, collect, hookimpl, installed_entry_points, load_registry
from nni_latency.testing import check_plugin

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


@pytest.mark.parametrize("kind", ["estimator", "runtime", "meter", "space", "kernel"])
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
    with pytest.raises(UnknownNameError, match=r"^Unknown estimator 'c'\. There is: a, b\.$"):
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
