"""Entries that a format tells apart less finely than a table: one key for several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nni_latency.tables as tables
from nni_latency.errors import InvalidValueError, listed
from nni_latency.operators import OpSpec
from nni_latency.tables._entry import Entry
from nni_latency.units import number_of

KeyFunction = Callable[[str, OpSpec | None], str | None]


def shared_entries(
    table: tables.LookupTable | tables.OperatorTable, key_of: KeyFunction
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Sort the entries of a table by the keys of a format.

    Parameters
    ----------
    table : LookupTable or OperatorTable
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


def _named(table: tables.LookupTable | tables.OperatorTable) -> Iterator[tuple[str, Entry]]:
    if isinstance(table, tables.LookupTable):
        yield from ((f"{layer}:{choice}", entry) for (layer, choice), entry in table.places())
        return
    for item in table.entries:
        entry = Entry(item.value, item.low, item.high, item.n_samples, op=item.op)
        yield from ((name, entry) for name in item.names or (item.op.op_key,))


def _mean(entries: list[Entry]) -> Entry:
    if len({(entry.low, entry.value, entry.high) for entry in entries}) == 1:
        return entries[0]
    return Entry.mean(entries)
