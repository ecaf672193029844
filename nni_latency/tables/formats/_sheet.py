# SPDX-License-Identifier: Apache-2.0
"""`Sheet`: the content of a file of costs, and what formats share: names, positions and keys for several entries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import nni_latency.tables as tables
from nni_latency.errors import InvalidValueError, listed
from nni_latency.operators import OpSpec
from nni_latency.tables._entries import Entry
from nni_latency.units import number_of

_OUR_NAME = re.compile(r"k(?P<kernel>\d+)_e(?P<expansion>\d+)(?:_g(?P<groups>\d+))?")
_THEIR_NAME = re.compile(r"ir_k(?P<kernel>\d+)_(?P<kind>[es])(?P<number>\d+)")

KeyFunction = Callable[[str, OpSpec | None], str | None]


@dataclass(frozen=True)
class Row:
    """One number of a file. Immutable.

    Parameters
    ----------
    place : str
        Position in the file, for messages.
    value : Decimal
        Exact cost in the file's unit; any number, including NaN.
    layer : str, int or None
        Name of the layer, or its position among the searched layers; None if the file does not state it.
    choice : str, int or None
        Name of the candidate, or its index in the layer.
    op : OpSpec or None
        Operator for one input, where the file states it.
    low, high : Decimal or None
        Interval in the file's unit.
    deviation : Decimal or None
        Standard deviation of the samples, in the file's unit.
    n_samples, n_dropped : int
        Number of samples, and how many of them were trimmed.
    """

    place: str
    value: Decimal
    layer: str | int | None = None
    choice: str | int | None = None
    op: OpSpec | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    deviation: Decimal | None = None
    n_samples: int = 0
    n_dropped: int = 0

    @property
    def name(self) -> str:
        """Name for messages: the position, and the layer and candidate unless they are part of it."""
        known = [str(part) for part in (self.layer, self.choice) if isinstance(part, str) and part not in self.place]
        return f"{self.place} ({', '.join(known)})" if known else self.place


@dataclass(frozen=True)
class Sheet:
    """The content of a file of costs. Immutable.

    Parameters
    ----------
    rows : tuple of Row
        Its numbers, in order.
    n_layers : int or None
        Number of searched layers, where the file identifies layers by their order only.
    unit : str or None
        Unit, where the file states it.
    keyed : bool, default=False
        Whether it is a table of operators rather than of the layers of a space.
    unread : tuple of str
        Rows whose key could not be interpreted.
    """

    rows: tuple[Row, ...]
    n_layers: int | None = None
    unit: str | None = None
    keyed: bool = False
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """A table in the format of another project. Immutable.

    Parameters
    ----------
    content : bytes
        Content of the file.
    remarks : tuple of str
        Information that the format cannot hold.
    """

    content: bytes
    remarks: tuple[str, ...] = ()


def own_name(name: str) -> str:
    """Convert a candidate's name from the foreign notation to ours; unknown names are unchanged.

    The foreign ``s`` is the number of groups of a block without expansion.

    Examples
    --------
    >>> own_name("ir_k5_e6"), own_name("ir_k3_s2"), own_name("skip")
    ('k5_e6', 'k3_e1_g2', 'skip')
    """
    match = _THEIR_NAME.fullmatch(name)
    if match is None:
        return name
    number = match["number"]
    return f"k{match['kernel']}_e{number}" if match["kind"] == "e" else f"k{match['kernel']}_e1_g{number}"


def foreign_name(name: str) -> str:
    """Convert a candidate's name from ours to the foreign notation; names without an equivalent are unchanged.

    Examples
    --------
    >>> foreign_name("k5_e6"), foreign_name("k3_e1_g2"), foreign_name("k3_e3_g2")
    ('ir_k5_e6', 'ir_k3_s2', 'k3_e3_g2')
    """
    match = _OUR_NAME.fullmatch(name)
    if match is None:
        return name
    if match["groups"] is None:
        return f"ir_k{match['kernel']}_e{match['expansion']}"
    return f"ir_k{match['kernel']}_s{match['groups']}" if match["expansion"] == "1" else name


def fixed_remarks(table: tables.LookupTable) -> tuple[str, ...]:
    """Return a remark on the entries of fixed layers, which these formats cannot hold."""
    names = [f"{layer.name}:{choice}" for layer in table.layers if not layer.searched for choice in layer.entries]
    if not names:
        return ()
    return (f"The format has no place for fixed layers, which are left out: {listed(names)}.",)


def common_choices(table: tables.LookupTable) -> list[str]:
    """Return the distinct candidates of all searched layers, in order."""
    return list(dict.fromkeys(choice for layer in table.searched for choice in layer.choices))


def shared_entries(table: tables.LookupTable, key_of: KeyFunction) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Group the entries of a table by the keys of a format.

    Parameters
    ----------
    table : LookupTable
        The table.
    key_of : callable
        ``key_of(name, op)`` returns the key, or None where the format has none. The name of an operator is the one that
        it was imported with; that of an entry of a layer is ``layer:choice``.

    Returns
    -------
    entries : dict of str to Entry
        One per key; the mean where several share it.
    remarks : tuple of str
        Entries that were skipped, and entries that were averaged.

    Raises
    ------
    InvalidValueError
        If the format has no key for any entry.
    """
    found: dict[str, list[tuple[str, Entry]]] = {}
    without_key = []
    for name, entry in _named(table):
        key = key_of(name, entry.op)
        if key is None:
            without_key.append(name)
        else:
            found.setdefault(key, []).append((name, entry))
    if not found:
        raise InvalidValueError(
            "The format is keyed by operators, and the table has no entry whose operator it has a key for. "
            "Use the format 'csv', which has a place for everything."
        )
    shared = [name for items in found.values() if len({entry.value for _, entry in items}) > 1 for name, _ in items]
    remarks = []
    if without_key:
        remarks.append(
            f"The format has no key for {number_of(len(without_key), 'entry', 'entries')}, which are left out: "
            f"{listed(without_key)}."
        )
    if shared:
        remarks.append(
            f"{number_of(len(shared), 'entry', 'entries')} share a key with others, which gets their mean: "
            f"{listed(shared)}."
        )
    return {key: _mean([entry for _, entry in items]) for key, items in found.items()}, tuple(remarks)


def _named(table: tables.LookupTable) -> Iterator[tuple[str, Entry]]:
    for (place, choice), entry in table.places():
        yield from ((name, entry) for name in entry.names or (f"{place}:{choice}" if table.layers else choice,))


def _mean(entries: list[Entry]) -> Entry:
    if len({(entry.low, entry.value, entry.high) for entry in entries}) == 1:
        return entries[0]
    return Entry.mean(entries)
