# SPDX-License-Identifier: Apache-2.0
"""Safe reader of pickled plain values: interprets the few instructions needed for numbers in lists, executes nothing.

A pickle is a program: it names functions, and unpickling calls them. This reader never imports a name. The few names
that numpy writes for arrays and numbers have handlers in this module; any other name or instruction is an error.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import FileFormatError

#: Names with a handler, under every module in which numpy has had them.
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_KNOWN = {
    **{(module, "_reconstruct"): "array" for module in _ARRAY_MODULES},
    **{(module, "scalar"): "scalar" for module in _ARRAY_MODULES},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("collections", "OrderedDict"): "dict",
}

#: Maximum nesting of lists and dictionaries.
_DEEPEST = 20

#: Format characters of `struct` for numpy's numbers.
_NUMBERS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q", "u4": "I"}


@dataclass(frozen=True)
class _Name:
    """A name with a handler, in place of the function."""

    meaning: str


@dataclass
class _Type:
    """The data type of an array."""

    code: str
    order: str = "<"


@dataclass(eq=False)
class PlainArray:
    """Stands for an array: its shape and its items in row-major order."""

    shape: tuple[int, ...] = ()
    items: list[Any] = field(default_factory=list)


class _Mark:
    """Start of a group of values on the stack."""


def read_plain_pickle(data: bytes) -> Any:
    """Return the content of a pickle: None, booleans, numbers, text, bytes, lists, tuples, dictionaries, arrays.

    Raises
    ------
    FileFormatError
        If it is truncated, or contains anything else. Nothing is executed.

    Examples
    --------
    >>> import pickle
    >>> read_plain_pickle(pickle.dumps([{"skip": 1.5}]))
    [{'skip': 1.5}]
    """
    try:
        value = _Machine().run(data)
        _check_plain(value, _DEEPEST, set())
        return value
    except FileFormatError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, ArithmeticError, struct.error) as error:
        raise FileFormatError(f"its pickle is not whole or not plain ({type(error).__name__})") from error


def _check_plain(value: Any, depth: int, done: set[int]) -> None:
    """Raise `ValueError` if a value is not plain, or contains itself."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)) or id(value) in done:
        return
    if not isinstance(value, (list, tuple, dict, PlainArray)) or not depth:
        raise ValueError("a value that no table needs")
    items = value.items if isinstance(value, PlainArray) else value
    for item in [*items, *items.values()] if isinstance(items, dict) else items:
        _check_plain(item, depth - 1, done)
    done.add(id(value))


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for instruction, argument, _ in pickletools.genops(data):
            name = instruction.name
            if name == "STOP":
                return self._pop()
            if name in _PUSH:
                self.stack.append(argument)
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in _IGNORED:
                raise FileFormatError(
                    f"its pickle holds the instruction {name}, which no table needs; nothing was executed"
                )
        raise ValueError("no end")

    def _pop(self) -> Any:
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise ValueError("a mark where a value should be")
        return value

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        values: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def name(self, module: Any, name: Any) -> None:
        """Push a name that has a handler."""
        meaning = _KNOWN.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if meaning is None:
            raise FileFormatError(
                f"its pickle asks for {str(module)[:60]}.{str(name)[:60]}, which no table needs; nothing was executed"
            )
        self.stack.append(_Name(meaning))

    def call(self, _argument: Any) -> None:
        """Call the handler of a name."""
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something else than a name")
        self.stack.append(_HANDLERS[function.meaning](*arguments))

    def build(self, _argument: Any) -> None:
        """Set the state of an array or a data type."""
        state, target = self._pop(), self.stack[-1]
        if isinstance(target, _Type):
            target.order = str(state[1])
        elif isinstance(target, PlainArray):
            _, shape, kind, _, items = state
            if not (isinstance(kind, _Type) and kind.code in ("O8", "O", "O4") and isinstance(items, list)):
                raise ValueError("an array of something else than values")
            target.shape, target.items = tuple(map(int, shape)), items
        else:
            raise ValueError("a state for something else than an array")

    def append(self, values: list[Any]) -> None:
        """Append to the list on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("no list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Set keys of the dictionary on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise ValueError("no dictionary")
        for key, value in _pairs(values):
            if not isinstance(key, (str, int)):
                raise ValueError("a key that is no text")
            target[key] = value

    def keep(self, place: Any) -> None:
        """Memoize the value on top of the stack."""
        self.memory[len(self.memory) if place is None else place] = self.stack[-1]

    def take(self, count: int) -> None:
        """Pop values and push them as a tuple."""
        values = [self._pop() for _ in range(count)]
        self.stack.append(tuple(values[::-1]))


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def _array(kind: Any, *_rest: Any) -> PlainArray:
    if kind != _Name("ndarray"):
        raise ValueError("an array of another class")
    return PlainArray()


def _dtype(code: Any, *_rest: Any) -> _Type:
    if not isinstance(code, str) or len(code) > 8:
        raise ValueError("a type that is no plain one")
    return _Type(code)


def _scalar(kind: Any, data: Any) -> Any:
    if not isinstance(kind, _Type) or not isinstance(data, bytes):
        raise ValueError("a number without a type")
    order = ">" if kind.order == ">" else "<"
    return struct.unpack(f"{order}{_NUMBERS[kind.code]}", data)[0]


def _encode(text: Any, coding: Any) -> bytes:
    if not isinstance(text, str) or coding != "latin1":
        raise ValueError("bytes in another coding")
    return text.encode("latin-1")


def _dict(*arguments: Any) -> dict[Any, Any]:
    if arguments:
        raise ValueError("a dictionary made of something")
    return {}


_HANDLERS: dict[str, Callable[..., Any]] = {
    "array": _array,
    "dtype": _dtype,
    "scalar": _scalar,
    "encode": _encode,
    "dict": _dict,
}

_IGNORED = {"PROTO", "FRAME"}

#: Instructions that push their argument.
_PUSH = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"),
    *("UNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "BINBYTES8", "SHORT_BINBYTES"),
}

_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "MARK": lambda machine, _: machine.stack.append(_Mark()),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_TUPLE": lambda machine, _: machine.take(0),
    "TUPLE1": lambda machine, _: machine.take(1),
    "TUPLE2": lambda machine, _: machine.take(2),
    "TUPLE3": lambda machine, _: machine.take(3),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "LIST": lambda machine, _: machine.stack.append(machine.since_mark()),
    "DICT": lambda machine, _: machine.stack.append(dict(_pairs(machine.since_mark()))),
    "APPEND": lambda machine, _: machine.append([machine._pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "PUT": lambda machine, place: machine.keep(int(place)),
    "BINPUT": lambda machine, place: machine.keep(place),
    "LONG_BINPUT": lambda machine, place: machine.keep(place),
    "MEMOIZE": lambda machine, _: machine.keep(None),
    "GET": lambda machine, place: machine.stack.append(machine.memory[int(place)]),
    "BINGET": lambda machine, place: machine.stack.append(machine.memory[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memory[place]),
    "GLOBAL": lambda machine, name: machine.name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*[machine._pop(), machine._pop()][::-1]),
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
