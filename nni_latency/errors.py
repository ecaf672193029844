# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package: one root, one class per kind of mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

#: Names in a list that a message gives at most.
LISTED = 8


class LatencyError(Exception):
    """Root of every error that this package raises on purpose.

    The command line and the service catch this class alone: its message is one sentence for a person,
    and the exit code is 2.
    """


class InvalidValueError(LatencyError, ValueError):
    """Raised when an argument or a field of a file has a value that is not allowed."""


class UnknownNameError(LatencyError, LookupError):
    """Raised when a space, an estimator, a device, ... of that name does not exist; the message lists what there is."""

    @classmethod
    def of(cls, kind: str, name: object, known: list[str]) -> UnknownNameError:
        """Make the error for `name`, which is not one of the `known` things of that `kind`; of many, the closest."""
        close = difflib.get_close_matches(str(name)[:100], known, LISTED) or known[:LISTED]
        first, most = (known, None) if len(known) <= 2 * LISTED else (close, len(close))
        listing = listed([*first, *(item for item in known if item not in first)], most=most)
        return cls(f"Unknown {kind} {name!r}. Available: {listing or 'none'}.")


class MismatchError(LatencyError, ValueError):
    """Raised when two things that must agree do not: platforms, spaces, batch sizes, metrics."""


class MissingEntryError(LatencyError, LookupError):
    """Raised when a table lacks candidates that were asked for; the message names them."""


class FileFormatError(LatencyError, ValueError):
    """Raised when a file is not a table that this version reads: truncated, altered, of another kind or newer."""


class OutputError(LatencyError, OSError):
    """Raised when a result cannot be written where it should go."""


class BusyError(LatencyError, RuntimeError):
    """Raised when another process holds the file or the device that this one needs for itself."""


class UnreachableTargetError(LatencyError, ValueError):
    """Raised when no network of the space meets the target; the message gives the reachable range."""


class MissingDependencyError(LatencyError, ImportError):
    """Raised when an optional package is needed and not installed; the message names the command that installs it."""


class PluginError(LatencyError, RuntimeError):
    """Raised when a plugin cannot be used: it clashes with another one, or it broke while loading."""


class MeasurementError(LatencyError, RuntimeError):
    """Raised when a measurement cannot be taken or gave no usable number."""


class RemoteError(LatencyError, RuntimeError):
    """Raised when other machines cannot be reached or joined, do not trust this side, or none of them measures."""


class LatencyWarning(UserWarning):
    """Root of every warning of this package; the command line prints each once, as a remark."""


class TargetWarning(LatencyWarning):
    """Warns that a target is of no effect, as every network of the space meets it; the message gives the range."""


def is_int(value: object, least: int) -> bool:
    """Whether a value is a whole number, and not below `least`.

    >>> is_int(2, 1), is_int(0, 1), is_int(1.0, 1), is_int(True, 1)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_ints(owner: str, given: Mapping[str, object], /, **least: int) -> None:
    """Raise `InvalidValueError` unless some of the given values are whole numbers, each not below its least value.

    >>> check_ints("a search", {"epochs": 0}, epochs=1)
    Traceback (most recent call last):
    ...
    nni_latency.errors.InvalidValueError: The 'epochs' of a search must be an int >= 1. Got 0.
    """
    for name, low in least.items():
        if not is_int(given[name], low):
            raise InvalidValueError(f"The {name!r} of {owner} must be an int >= {low}. Got {given[name]!r}.")


def first_line(error: BaseException) -> str:
    """Return the first line of what another package says that is not blank, or the name of an error that says nothing.

    >>> first_line(ValueError("no such node")), first_line(KeyError())
    ('no such node', 'KeyError')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def reason_of(error: BaseException) -> str:
    """Return the name of an error, and the first line of what it says, if it says anything.

    >>> reason_of(ValueError("no such node")), reason_of(KeyError())
    ('ValueError: no such node', 'KeyError')
    """
    name = type(error).__name__
    return f"{name}: {first_line(error)}" if str(error).strip() else name


def listed(names: Iterable[object], *, most: int | None = LISTED, separator: str = ", ") -> str:
    """Name a few things of a list, and say how many more there are.

    Parameters
    ----------
    names : iterable
        What to name.
    most : int or None, default=8
        Names at most; None for all.
    separator : str, default=", "
        What stands between them.

    Examples
    --------
    >>> listed("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    texts = [str(name) for name in names]
    shown = texts[:most]
    return separator.join(shown) + (f" and {len(texts) - len(shown)} more" if len(texts) > len(shown) else "")
