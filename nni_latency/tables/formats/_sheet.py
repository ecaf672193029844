"""`Sheet`: what a file of costs says, before it is known which space it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from nni_latency.operators import OpSpec


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
