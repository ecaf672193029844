# SPDX-License-Identifier: Apache-2.0
"""Checks of objects and results of plugins where they enter the package; errors name the plugin."""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from nni_latency.errors import LatencyError, PluginError, is_int, reason_of

#: Description of valid values, and a function that returns whether a value is valid.
Check = tuple[str, Callable[[Any], bool]]

_PACKAGE = __name__.partition(".")[0]


@contextlib.contextmanager
def naming(origin: str, where: str) -> Iterator[None]:
    """Convert any exception of a plugin's code to a `PluginError` that names it; errors of this package pass.

    Parameters
    ----------
    origin : str
        Description of the object, such as ``estimator 'scaled' of the plugin 'mine'``.
    where : str
        Name of the function or attribute.
    """
    try:
        yield
    except LatencyError:
        raise
    except Exception as error:  # a plugin of others may raise anything
        raise PluginError(f"The {origin} failed in {where!r}: {reason_of(error)}") from error


def check_answer(origin: str, where: str, answer: Any, check: Check | None) -> Any:
    """Return the result of a plugin's code.

    Raises
    ------
    PluginError
        If it is invalid.
    """
    if check is not None and not check[1](answer):
        raise PluginError(f"The {origin} must return {check[0]} from {where!r}. Got {_described(answer)}.")
    return answer


def plugin_origin(kind: str, owner: str, name: str) -> str:
    """Describe an object of a plugin for messages."""
    return f"{kind} {name!r} of the plugin {owner!r}"


def set_origin(made: Any, kind: str, owner: str, name: str) -> None:
    """Store the origin of an object, for `origin_of`."""
    # Frozen dataclasses may implement an interface.
    object.__setattr__(made, "_origin", plugin_origin(kind, owner, name))


def origin_of(made: Any, kind: str) -> str:
    """Describe an object and the plugin that made it; without a plugin, its class."""
    return getattr(made, "_origin", "") or f"{kind} {type(made).__name__!r}"


@dataclass(frozen=True)
class PluginCall:
    """A function of a plugin whose result is checked. Immutable; it can be sent to worker processes.

    Parameters
    ----------
    origin, where : str
        As for `naming`.
    function : callable
        The function.
    check : (str, callable) or None
        Check of its result.
    """

    origin: str
    where: str
    function: Callable[..., Any]
    check: Check | None = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function.

        Raises
        ------
        PluginError
            If it fails with anything but an error of this package, or its result is invalid.
        """
        with naming(self.origin, self.where):
            answer = self.function(*arguments, **options)
        return check_answer(self.origin, self.where, answer, self.check)


@dataclass(frozen=True)
class Guard:
    """Check of a method that plugins override. Immutable.

    Parameters
    ----------
    check : (str, callable) or None
        Check of its result.
    may_raise : bool, default=False
        Whether it may raise any exception, such as a runtime that cannot run a network.
    opens : bool, default=False
        Whether it returns a context manager, which is guarded while it is entered.
    """

    check: Check | None = None
    may_raise: bool = False
    opens: bool = False


class Pluggable:
    """Base of the interfaces that plugins implement.

    A subclass outside of this package has its methods guarded: for an object that a plugin's factory made, what they
    return is checked and what they raise names the plugin. Objects that were not made by a plugin are left alone.
    """

    #: Its kind in messages.
    _kind: ClassVar[str]
    #: Methods that plugins override.
    _guards: ClassVar[Mapping[str, Guard]] = {}
    #: Attributes that it must have.
    _attributes: ClassVar[Mapping[str, Check]] = {}

    #: Description of the object with the plugin that made it; empty without a plugin.
    _origin: str = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] == _PACKAGE:
            return
        for name in cls._guards.keys() & vars(cls).keys():
            function = vars(cls)[name]
            if callable(function):
                setattr(cls, name, _guarded(function, name, cls._guards[name]))

    def adopt(self, owner: str, name: str) -> Self:
        """Check an object that the factory of a plugin made, and store its origin.

        Parameters
        ----------
        owner, name : str
            Names of the plugin and of the registered object.

        Raises
        ------
        PluginError
            If an attribute is missing or invalid.
        """
        self.check_attributes(plugin_origin(self._kind, owner, name))
        if not self._origin:
            set_origin(self, self._kind, owner, name)
        return self

    def check_attributes(self, origin: str = "", which: Mapping[str, Check] | None = None) -> None:
        """Raise `PluginError` unless every attribute is valid."""
        origin = origin or self._origin
        for name, (expected, good) in (self._attributes if which is None else which).items():
            with naming(origin, name):
                missing = not hasattr(self, name)
                value = None if missing else getattr(self, name)
            if missing or not good(value):
                got = "none" if missing else _described(value)
                raise PluginError(f"The {origin} must have the attribute {name!r}: {expected}. Got {got}.")


class PluggableContext(Pluggable):
    """Base of those interfaces that hold resources. A context manager that closes itself."""

    def close(self) -> None:
        """Release the resources; does nothing by default."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def is_text(value: Any) -> bool:
    """Whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_number(value: Any, *, least: float = -math.inf) -> bool:
    """Whether a value is a finite number, and not below `least`.

    >>> is_number(0.5), is_number("0.5"), is_number(True), is_number(-1, least=0)
    (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        return False
    return math.isfinite(value) and float(value) >= least


def instance_of(kind: type[Any]) -> Check:
    """Return the check that a value is an instance of a class."""
    return f"a {kind.__name__}", lambda value: isinstance(value, kind)


#: A context manager.
CONTEXT: Check = ("a context manager", lambda value: hasattr(value, "__enter__"))

#: A name or a description.
TEXT: Check = ("a text that is not empty", is_text)

#: A cost, a time or a share.
NOT_NEGATIVE: Check = ("a number of 0 or more", lambda value: is_number(value, least=0))

#: A flag.
FLAG: Check = ("True or False", lambda value: isinstance(value, bool))

#: A number of things.
COUNT: Check = ("a whole number of 1 or more", lambda value: is_int(value, 1))


def _guarded(function: Callable[..., Any], name: str, guard: Guard) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Pluggable, *arguments: Any, **options: Any) -> Any:
        origin = self._origin
        if not origin:
            return function(self, *arguments, **options)
        if guard.may_raise:
            return check_answer(origin, name, function(self, *arguments, **options), guard.check)
        answer = PluginCall(origin, name, function, guard.check)(self, *arguments, **options)
        return _entered(origin, name, answer) if guard.opens else answer

    return call


@contextlib.contextmanager
def _entered(origin: str, where: str, session: Any) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        with naming(origin, where):
            value = stack.enter_context(session)
        yield value


def _described(value: Any) -> str:
    """Describe a value by its type, and by its representation if that is short."""
    kind = "None" if value is None else type(value).__name__
    short = isinstance(value, (str, int, float)) and len(repr(value)) <= 80
    return f"{value!r} ({kind})" if short else kind
