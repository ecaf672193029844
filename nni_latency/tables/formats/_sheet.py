"""`Sheet`: what a file of costs says, and what formats share: names, positions and keys for several entries."""

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
        Where it stands in the file, for messages.
    value : Decimal
        Cost in the file's unit, to the digit; it may be any number, a NaN among them.
    layer : str, int or None
        Layer by name, or its place among the searched layers; None if the file does not say.
    choice : str, int or None
        Candidate by name, or by its index in the layer.
    op : OpSpec or None
        Operator, for one input, where the file says it.
    low, high : Decimal or None
        Interval in the file's unit.
    deviation : Decimal or None
        Standard deviation of the samples, in the file's unit.
    n_samples, n_dropped : int
        Samples behind the number, and how many of them were trimmed away.
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
        """Name for a message: the place, and what stands there if the place does not say it."""
        known = [str(part) for part in (self.layer, self.choice) if isinstance(part, str) and part not in self.place]
        return f"{self.place} ({', '.join(known)})" if known else self.place


@dataclass(frozen=True)
class Sheet:
    """What a file of costs says. Immutable.

    Parameters
    ----------
    rows : tuple of Row
        Its numbers, in order.
    n_layers : int or None
        Searched layers, where the file tells layers by their order alone.
    unit : str or None
        Unit, where the file says it.
    keyed : bool, default=False
        Whether it is a table of operators and not of one space's layers.
    unread : tuple of str
        Rows whose key says nothing that is understood.
    """

    rows: tuple[Row, ...]
    n_layers: int | None = None
    unit: str | None = None
    keyed: bool = False
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """A table in the words of another project. Immutable.

    Parameters
    ----------
    content : bytes
        The file.
    remarks : tuple of str
        What the format has no place for, by name.
    """

    content: bytes
    remarks: tuple[str, ...] = ()


def own_name(name: str) -> str:
    """Return our name of a candidate; a name that is no one's stays as it is.

    Their ``s`` counts the groups of a block that does not widen.

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
    """Return their name of a candidate; one that they have no name for stays as it is.

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
    """Name the entries of fixed layers, which these formats have no place for."""
    names = [f"{layer.name}:{choice}" for layer in table.layers if not layer.searched for choice in layer.entries]
    if not names:
        return ()
    return (f"The format has no place for fixed layers, which are left out: {listed(names)}.",)


def common_choices(table: tables.LookupTable) -> list[str]:
    """Return the candidates of all searched layers, each once, in their order."""
    return list(dict.fromkeys(choice for layer in table.searched for choice in layer.choices))


def shared_entries(table: tables.LookupTable, key_of: KeyFunction) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Sort the entries of a table by the keys of a format.

    Parameters
    ----------
    table : LookupTable
        The table.
    key_of : callable
        ``key_of(name, op)`` returns the key, or None where the format has none. An operator has the name that it came
        with; an entry of a layer is called ``layer:choice``.

    Returns
    -------
    entries : dict of str to Entry
        One a key; the mean where several have it.
    remarks : tuple of str
        What was left out, and what became a mean.

    Raises
    ------
    InvalidValueError
        If the format has a key for none of them.
    """
    found: dict[str, list[tuple[str, Entry]]] = {}
    nameless = []
    for name, entry in _named(table):
        key = key_of(name, entry.op)
        if key is None:
            nameless.append(name)
        else:
            found.setdefault(key, []).append((name, entry))
    if not found:
        raise InvalidValueError(
            "The format is keyed by operators, and the table has no entry whose operator it has a key for. "
            "Use the format 'csv', which has a place for everything."
        )
    shared = [name for items in found.values() if len({entry.value for _, entry in items}) > 1 for name, _ in items]
    remarks = []
    if nameless:
        remarks.append(
            f"The format has no key for {number_of(len(nameless), 'entry', 'entries')}, which are left out: "
            f"{listed(nameless)}."
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
