# SPDX-License-Identifier: Apache-2.0
"""Plugins: what a package may register, and the manager that collects it.

A plugin is a module with functions marked `hookimpl`, named in the entry-point group ``nni_latency``::

    from nni_latency import hookimpl

    @hookimpl
    def register_estimators(register):
        register("mine", make_estimator)          # make_estimator(argument) -> Estimator

What the package itself brings is registered through the same hooks.
"""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import Any, Protocol

import click
import pluggy

import nni_latency.devices as devices
import nni_latency.estimators as estimators
import nni_latency.kernels as kernels
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
from nni_latency.errors import LatencyError, PluginError, UnknownNameError, reason_of

GROUP = "nni_latency"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

#: What plugins of this project register that are installed apart, by kind and name: the folder in ``plugins/``.
SEPARATE = {
    ("estimator", "roofline"): "nni_latency_roofline",
    ("estimator", "service"): "nni_latency_service",
    ("kernel", "ghost_module"): "nni_latency_ghost",
    ("meter", "cpu-energy"): "nni_latency_cpu_energy",
    ("remote", "farm"): "nni_latency_farm",
    ("runtime", "litert"): "nni_latency_litert",
    ("runtime", "ncnn"): "nni_latency_ncnn",
    ("runtime", "onnxruntime"): "nni_latency_onnxruntime",
    ("runtime", "openvino"): "nni_latency_openvino",
    ("runtime", "tensorrt"): "nni_latency_tensorrt",
    ("runtime", "torch-fx"): "nni_latency_fx",
}


class Register(Protocol):
    """Called with a name and a factory."""

    def __call__(
        self, name: str, factory: Callable[..., Any] | str, *, on_devices: bool = False, runs_networks: bool = False
    ) -> None:
        """Register something.

        Parameters
        ----------
        name : str
            Under which it is found.
        factory : callable or str
            What makes it, such as a class; or the name of that, such as ``my_package:MyRuntime``, which is imported on
            first use. A command may be given itself; the first line of the docstring of what makes one is shown by
            ``--help``, which does not call it.
        on_devices : bool, default=False
            Of a runtime: whether it measures on other devices, too, and its factory takes their ``place``.
        runs_networks : bool, default=False
            Of a command: whether it runs networks of the user. Such a command runs in a process that is watched, so
            that a network that crashes or never returns ends with one sentence.
        """


class HookSpecs:
    """What a plugin may implement."""

    @hookspec
    def register_estimators(self, register: Register) -> None:
        """Register estimators: ``register(name, factory)``, ``factory(argument: str) -> Estimator``."""

    @hookspec
    def register_runtimes(self, register: Register) -> None:
        """Register runtimes: ``register(name, factory)``, ``factory(device, *, threads, precision) -> Runtime``."""

    @hookspec
    def register_meters(self, register: Register) -> None:
        """Register meters: ``register(name, factory)``, ``factory(device, argument="") -> Meter``."""

    @hookspec
    def register_spaces(self, register: Register) -> None:
        """Register model spaces: ``register(name, factory)``, ``factory(**arguments) -> ModelSpace``."""

    @hookspec
    def register_kernels(self, register: Register) -> None:
        """Register kernels: ``register(name, factory)``, ``factory() -> KernelType``."""

    @hookspec
    def register_remotes(self, register: Register) -> None:
        """Register remote machines: ``register(name, factory)``, ``factory(address, on_wait) -> Remote``."""

    @hookspec
    def register_connections(self, register: Register) -> None:
        """Register connections to devices: ``register(name, factory)``, ``factory(address) -> Connection``."""

    @hookspec
    def register_commands(self, register: Register) -> None:
        """Register commands of ``nni-latency``: ``register(name, factory)``, ``factory() -> click.Command``."""


#: What a factory must make, by the kind of what is registered: how it is called, and its class. Classes are looked up
#: late, so that a list of plugins imports none of them. A space is checked where NNI is known.
_MADE: Mapping[str, tuple[str, Callable[[], type[Any]]]] = {
    "estimator": ("an Estimator", lambda: estimators.Estimator),
    "runtime": ("a Runtime", lambda: runtimes.Runtime),
    "meter": ("a Meter", lambda: measurement.Meter),
    "kernel": ("a KernelType", lambda: kernels.KernelType),
    "remote": ("a Remote", lambda: measurement.Remote),
    "connection": ("a Connection", lambda: devices.Connection),
    "command": ("a click.Command", lambda: click.Command),
}


@dataclass(frozen=True)
class Registration:
    """One registered thing and the plugin that brought it.

    Parameters
    ----------
    name : str
        Under which it is registered.
    factory : callable or str
        Makes it, or the name of what does.
    owner : str
        Name of the plugin.
    kind : {"estimator", "runtime", "meter", "space", "kernel", "remote", "connection", "command"}
        What it makes.
    on_devices, runs_networks : bool
        As for `Register`.
    """

    name: str
    factory: Callable[..., Any] | str
    owner: str
    kind: str
    on_devices: bool = False
    runs_networks: bool = False

    @property
    def summary(self) -> str:
        """What the factory does, as the first line of its docstring says; for a command, its own short help."""
        if isinstance(self.factory, click.Command):
            return self.factory.get_short_help_str(limit=100)
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]

    def make(self, *arguments: Any, **options: Any) -> Any:
        """Call the factory, and check what it makes.

        Raises
        ------
        PluginError
            If it fails with anything but an error of this package, or makes something else than it must; the message
            names the plugin.
        """
        try:
            factory = self.imported()
            # A command is itself callable, and calling it would run it.
            made = factory if isinstance(factory, click.Command) else factory(*arguments, **options)
        except LatencyError:
            raise
        except Exception as error:  # a plugin of others may raise anything
            raise self._failed(error) from error
        if self.kind not in _MADE:
            return made
        what, base = _MADE[self.kind]
        if not isinstance(made, base()):
            raise self.makes_no(what, made)
        return made if self.kind == "command" else made.adopt(self.owner, self.name)

    def makes_no(self, what: str, made: object) -> PluginError:
        """Return the error of a factory that made something else."""
        return PluginError(f"The plugin {self.owner!r} must make {what} for {self.name!r}. Got {type(made).__name__}.")

    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Return what the factory takes, by name.

        Raises
        ------
        PluginError
            If it cannot be imported, or that cannot be found out, as of some classes that are written in C.
        """
        factory = self.imported()
        try:
            return inspect.signature(factory).parameters
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"The plugin {self.owner!r} registers {self.name!r} with a factory whose parameters cannot be found "
                f"out: {error}. Register a function."
            ) from error

    def imported(self) -> Callable[..., Any]:
        """Return the factory; import it where its name was registered.

        Raises
        ------
        PluginError
            If it cannot be imported.
        """
        if not isinstance(self.factory, str):
            return self.factory
        try:
            found: Callable[..., Any] = pkgutil.resolve_name(self.factory)
        except LatencyError:
            raise
        except Exception as error:  # a plugin of others may raise anything
            raise self._failed(error) from error
        return found

    def _failed(self, error: Exception) -> PluginError:
        return PluginError(f"The plugin {self.owner!r} failed to make {self.name!r}: {reason_of(error)}")


@dataclass(frozen=True)
class PluginInfo:
    """One plugin: its name, the distribution it came with, the hooks it implements, and what broke it, if anything."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Registry:
    """Everything that is registered. Immutable.

    Parameters
    ----------
    estimators, runtimes, meters, spaces, kernels, remotes, connections, commands : mapping of str to Registration
        By name.
    plugins : tuple of PluginInfo
        Who registered it, broken plugins included.
    """

    estimators: Mapping[str, Registration] = field(default_factory=dict)
    runtimes: Mapping[str, Registration] = field(default_factory=dict)
    meters: Mapping[str, Registration] = field(default_factory=dict)
    spaces: Mapping[str, Registration] = field(default_factory=dict)
    kernels: Mapping[str, Registration] = field(default_factory=dict)
    remotes: Mapping[str, Registration] = field(default_factory=dict)
    connections: Mapping[str, Registration] = field(default_factory=dict)
    commands: Mapping[str, Registration] = field(default_factory=dict)
    plugins: tuple[PluginInfo, ...] = ()

    @property
    def runtimes_on_devices(self) -> list[str]:
        """Names of the runtimes that measure on other devices, too."""
        return sorted(name for name, runtime in self.runtimes.items() if runtime.on_devices)

    def find(self, kind: str, name: str, known: Sequence[str] | None = None) -> Registration:
        """Return one registration by the kind's singular (``estimator``, ...) and its name.

        Raises
        ------
        UnknownNameError
            If there is none; the message lists what there is, or the names that are given as `known`, and plugins that
            broke.
        """
        found: Mapping[str, Registration] = getattr(self, f"{kind}s")
        if name in found:
            return found[name]
        error = UnknownNameError.of(kind, name, sorted(found if known is None else known))
        folder = SEPARATE.get((kind, name))
        if folder and not any(plugin.distribution == folder for plugin in self.plugins):
            error = UnknownNameError(f"{error} It is a plugin; from a checkout: pip install ./plugins/{folder}")
        broken = [f"{plugin.name} ({plugin.error})" for plugin in self.plugins if plugin.error]
        raise UnknownNameError(f"{error} Plugins that did not load: {'; '.join(broken)}.") if broken else error


_HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("register_"))


def make_manager(
    entry_points: list[metadata.EntryPoint],
) -> tuple[pluggy.PluginManager, list[metadata.EntryPoint], list[PluginInfo]]:
    """Make a plugin manager: hook specifications, then the plugins that load.

    Parameters
    ----------
    entry_points : list of EntryPoint
        Plugins, the package's own first.

    Returns
    -------
    manager : pluggy.PluginManager
        With every plugin that loads.
    loaded : list of EntryPoint
        Those plugins.
    broken : list of PluginInfo
        Those that do not, each with its reason.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(HookSpecs)
    loaded, broken = [], []
    for point in entry_points:
        plugin = None
        try:
            plugin = _load_new(manager, point)
            manager.register(plugin, point.name)
            manager.check_pending()
            loaded.append(point)
        except Exception as error:  # a plugin of others may raise anything; the rest must still work
            if plugin is not None and manager.is_registered(plugin):
                manager.unregister(plugin)
            broken.append(_info(point, error=reason_of(error)))
    return manager, loaded, broken


def _load_new(manager: pluggy.PluginManager, point: metadata.EntryPoint) -> Any:
    """Import a plugin; refuse one whose name or module another plugin has already, and leave that one in place."""
    plugin = point.load()
    if manager.has_plugin(point.name):
        raise PluginError(f"another plugin has the name {point.name!r} already")
    if manager.is_registered(plugin):
        raise PluginError(f"the plugin {manager.get_name(plugin)!r} is the same module, {point.value}")
    return plugin


def collect(entry_points: list[metadata.EntryPoint]) -> Registry:
    """Load plugins and gather what their hooks register.

    Raises
    ------
    PluginError
        If two plugins register one name; the message names both.
    """
    manager, loaded, broken = make_manager(entry_points)
    found: dict[str, dict[str, Registration]] = {hook: {} for hook in _HOOKS}
    infos = []
    for point in loaded:
        mine, error = _call_hooks(manager, point.name, manager.get_plugin(point.name))
        for hook, registrations in mine.items():
            for registration in registrations:
                _add(found[hook], registration)
        registered = tuple(item.name for registrations in mine.values() for item in registrations)
        infos.append(_info(point, tuple(mine), registered, error))
    kinds = {hook.removeprefix("register_"): MappingProxyType(items) for hook, items in found.items()}
    return Registry(**kinds, plugins=(*infos, *broken))


def load_registry() -> Registry:
    """Return everything that is registered by installed plugins; loaded once for each set of them."""
    return _load_registry(tuple(installed_entry_points()))


def installed_entry_points() -> list[metadata.EntryPoint]:
    """List the installed plugins, the package's own first.

    ``NNI_LATENCY_PLUGINS=a,b`` narrows those of others to the ones named; empty, to none.
    """
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: (not _is_own(point), point.name))
    wanted = os.environ.get("NNI_LATENCY_PLUGINS")
    if wanted is None:
        return points
    names = {name.strip() for name in wanted.split(",")}
    return [point for point in points if _is_own(point) or point.name in names]


@functools.lru_cache(maxsize=8)
def _load_registry(entry_points: tuple[metadata.EntryPoint, ...]) -> Registry:
    return collect(list(entry_points))


def _is_own(point: metadata.EntryPoint) -> bool:
    return point.dist is not None and point.dist.name.replace("-", "_") == GROUP


def _call_hooks(
    manager: pluggy.PluginManager, name: str, plugin: Any
) -> tuple[dict[str, list[Registration]], str | None]:
    """Let one plugin register; one that raises registers nothing at all."""
    others = [other for other in manager.get_plugins() if other is not plugin]
    implemented = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
    mine: dict[str, list[Registration]] = {hook: [] for hook in _HOOKS if hook in implemented}
    if not mine:
        return {}, "it has no function that is marked as a hook with nni_latency.hookimpl"
    for hook, registrations in mine.items():
        register = _Registering(name, hook.removeprefix("register_").removesuffix("s"), registrations)
        try:
            manager.subset_hook_caller(hook, remove_plugins=others)(register=register)
        except Exception as error:  # a plugin of others may raise anything; the rest must still work
            return {}, f"{hook}: {reason_of(error)}"
    return mine, None


#: What `register` takes besides, by kind.
_OPTIONS = {"runtime": "on_devices", "command": "runs_networks"}


@dataclass(frozen=True)
class _Registering:
    """The `Register` that a hook is called with."""

    owner: str
    kind: str
    registrations: list[Registration]

    def __call__(self, name: str, factory: Callable[..., Any] | str, **options: bool) -> None:
        if not isinstance(name, str) or not name or set(name) & set(":/\\ \n") or name.endswith(".json"):
            raise PluginError(
                f"the name of {_article(self.kind)} must be a text that does not look like a path and has no ':' or "
                f"' ', as in register('mine', factory). Got {name!r}"
            )
        # The help of a command shows the docstring of its factory.
        if not (callable(factory) or (isinstance(factory, str) and ":" in factory and self.kind != "command")):
            what = "something to call" if self.kind == "command" else "something to call, or its name 'module:name'"
            raise PluginError(f"the factory of {name!r} must be {what}. Got {factory!r}")
        wrong = options.keys() - {_OPTIONS.get(self.kind)}
        if wrong:
            raise PluginError(f"register() has no option {min(wrong)!r} for {_article(self.kind)}")
        self.registrations.append(Registration(name, factory, self.owner, self.kind, **options))


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _add(found: dict[str, Registration], new: Registration) -> None:
    old = found.get(new.name)
    if old is not None:
        raise PluginError(
            f"Two plugins register the {new.kind} {new.name!r}: {old.owner!r} and {new.owner!r}. "
            "Uninstall one of them, or load only the plugins that NNI_LATENCY_PLUGINS names."
        )
    found[new.name] = new


def _info(
    point: metadata.EntryPoint,
    hooks: tuple[str, ...] = (),
    registered: tuple[str, ...] = (),
    error: str | None = None,
) -> PluginInfo:
    name, version = (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "")
    return PluginInfo(point.name, name, version, hooks, registered, error)
