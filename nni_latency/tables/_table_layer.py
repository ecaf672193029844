"""`TableLayer`: one layer of a lookup table with what its candidates cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import FileFormatError, LatencyError, UnknownNameError
from nni_latency.tables._document import EntryDocument, LayerDocument
from nni_latency.tables._entry import Entry
from nni_latency.tables._header import counts_content
from nni_latency.tables._plan import PlanLayer


@dataclass(frozen=True)
class TableLayer:
    """One layer of a table.

    Parameters
    ----------
    name : str
        Label of the layer in the space.
    choices : tuple of str
        Every candidate of the space, in the order of its indices, measured or not.
    entries : mapping of str to Entry
        The candidates that have a cost.
    searched : bool, default=True
        Whether the space chooses.
    default : str or None
        Candidate of a fixed layer.
    failures : mapping of str to str
        Candidates that could not be measured, each with the reason.
    """

    name: str
    choices: tuple[str, ...]
    entries: Mapping[str, Entry]
    searched: bool = True
    default: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, choice: str) -> Entry:
        """Return the entry of one candidate; `UnknownNameError` if it has none."""
        if choice not in self.entries:
            raise UnknownNameError.of(f"entry of {self.name!r}", choice, list(self.entries))
        return self.entries[choice]

    @property
    def missing(self) -> tuple[str, ...]:
        """Candidates without an entry."""
        return tuple(choice for choice in self.choices if choice not in self.entries)

    @classmethod
    def of_plan(cls, layer: PlanLayer) -> TableLayer:
        """Make the layer of a plan, without entries."""
        return cls(layer.name, tuple(layer.candidates), {}, layer.searched, layer.default)

    def as_json(self) -> str:
        """Return the layer as JSON, one line an entry."""
        head = {name: getattr(self, name) for name in ("name", "searched", "default", "choices")}
        entries = ",\n   ".join(
            f"{json.dumps(choice)}: {json.dumps(_entry_content(entry), allow_nan=False)}"
            for choice, entry in self.entries.items()
        )
        inner = f"{{\n   {entries}\n  }}" if entries else "{}"
        failures = f', "failures": {json.dumps(dict(self.failures))}' if self.failures else ""
        return json.dumps(head)[:-1] + f', "entries": {inner}{failures}}}'

    @classmethod
    def of_document(cls, document: LayerDocument) -> TableLayer:
        """Make the layer of a file.

        Raises
        ------
        FileFormatError
            If an entry's interval or operator cannot be; the message names it.
        """
        entries = {}
        for choice, item in document.entries.items():
            try:
                entries[choice] = _entry(item)
            except (LatencyError, LookupError, ValueError, TypeError, ArithmeticError) as error:
                raise FileFormatError(f"layer {document.name!r}, entry {choice!r}: {error}") from error
        choices = tuple(document.choices)
        return cls(document.name, choices, entries, document.searched, document.default, document.failures)


def _entry_content(entry: Entry) -> dict[str, Any]:
    content: dict[str, Any] = {
        name: getattr(entry, name) for name in ("value", "low", "high", "n_samples", "n_dropped")
    }
    if entry.op is not None and entry.features is not None:
        content |= {**counts_content(entry.features), "op": entry.op.as_dict()}
    return content


def _entry(document: EntryDocument) -> Entry:
    entry = Entry(document.value, document.low, document.high, document.n_samples, document.n_dropped, document.op)
    # Features are counted anew from the operator, which shows whether its kind and attributes are known.
    _ = entry.features
    return entry
