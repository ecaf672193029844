"""`LookupTable`: the measured candidates of a space on one platform, with its layers, entries and file format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, model_validator

from nni_latency.costs import Cost
from nni_latency.documents import DocumentFormat, Operator, ShapeTuple, StrictDocument
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, UnknownNameError
from nni_latency.notebook import heat_map
from nni_latency.operators import Features, OpSpec, features_of
from nni_latency.platforms import Platform
from nni_latency.tables._header import CountedDocument, HeaderDocument, SpaceTable, counts_content
from nni_latency.tables._layer_schedule import NEGLIGIBLE
from nni_latency.tables._plan import UNKNOWN_SPACE, PlanLayer, SpaceReference, measure_plan_of
from nni_latency.units import METRIC_UNITS, METRICS, cost_row, number_of


@dataclass(frozen=True)
class Entry(Cost):
    """What one candidate of one layer costs. Immutable.

    Parameters
    ----------
    value, low, high : float
        Cost and its interval, in the unit of the table's metric.
    n_samples, n_dropped : int
        Samples behind it, and how many of them were trimmed away; 0 for numbers from elsewhere.
    op : OpSpec or None
        The operator, where it is known.

    Raises
    ------
    InvalidValueError
        If the value is negative or not finite, or lies outside its interval.
    """

    n_samples: int = 0
    n_dropped: int = 0
    op: OpSpec | None = None

    _finite = True

    @property
    def features(self) -> Features | None:
        """Features of the operator, where it is known."""
        return None if self.op is None else features_of(self.op)

    @classmethod
    def _joined(cls, parts: Sequence[Entry], value: float, low: float, high: float) -> Entry:
        n_samples, n_dropped = sum(part.n_samples for part in parts), sum(part.n_dropped for part in parts)
        return cls(value, low, high, n_samples, n_dropped, parts[0].op)


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


@dataclass(frozen=True, kw_only=True, repr=False)
class LookupTable(SpaceTable):
    """Costs of the candidates of a space on one platform. Immutable.

    Parameters
    ----------
    layers : tuple of TableLayer
        From the input to the output.
    input_shape : tuple of int
        Shape of the network's input, batch first.
    reference : float or None
        Time of the space's reference network [s], which tells how fast the machine was.
    **header
        What `TableHeader` takes: space, platform, metric, protocol, calibration and so on. The calibration makes up
        for this: lower quartiles of parts add up to less than the lower quartile of the whole, because the parts are
        seldom all undisturbed at once.

    Raises
    ------
    InvalidValueError
        If the table has no layer, a layer twice, or a calibration that is not a positive number.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> table.coverage, table["a"]["y"].value
    (1.0, 0.002)
    """

    layers: tuple[TableLayer, ...]
    reference: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [layer.name for layer in self.layers]
        if not names or len(names) != len(set(names)):
            raise InvalidValueError(f"The layers of a table must have different names, at least one. Got {names}.")
        for (layer, choice), entry in self.places():
            if entry.value == 0 and METRIC_UNITS[self.metric] != "byte":
                raise InvalidValueError(f"The {self.metric} of {layer!r}: {choice} must be positive. Got 0.")

    @classmethod
    def from_latencies(
        cls,
        space: Any,
        latencies: Mapping[str, Mapping[Any, float]],
        *,
        platform: Platform | None = None,
        metric: str = "latency",
        batch_size: int = 1,
        input_shape: Sequence[int] | None = None,
    ) -> LookupTable:
        """Make a table by hand, of numbers from elsewhere.

        Parameters
        ----------
        space : ModelSpace or mapping
            An NNI model space; or its labels, each with its choices.
        latencies : mapping of str to mapping
            ``{layer: {choice: cost}}``, in seconds for latency. Candidates may be left out; coverage tells. Fixed
            layers that are left out count as nothing, and estimates list them as missing.
        platform : Platform, optional
            Where the numbers are from.
        metric : str, default="latency"
            What they are.
        batch_size : int, default=1
            For which batch size they hold.
        input_shape : sequence of int, optional
            Shape of the networks' input for which they hold, batch first, in place of `batch_size`. Without it, what
            the space's own plan or ``example_inputs(batch_size)`` says; the batch size alone where it has neither.

        Raises
        ------
        InvalidValueError
            If a cost is not a positive, finite number; a layer has no choices or two of the same name; an input shape
            is invalid or differs from that of the space's plan; or the space was made with arguments that a file cannot
            hold (its labels with their choices can be given in place of such a space).
        UnknownNameError
            If the space has no such layer or choice.
        """
        header, empty, ops = _outline(space, batch_size, input_shape)
        layers = {layer.name: layer for layer in empty}
        for label, given in latencies.items():
            name = str(label)
            if name not in layers:
                raise UnknownNameError.of("layer", name, list(layers))
            for choice in given:
                if str(choice) not in layers[name].choices:
                    raise UnknownNameError.of(f"choice of {name!r}", choice, list(layers[name].choices))
            layers[name] = replace(layers[name], entries=_hand_entries(name, given, ops.get(name, {})))
        platform = platform or Platform("unknown", "unknown")
        return cls(**header, platform=platform, layers=tuple(layers.values()), metric=metric)

    def __repr__(self) -> str:
        entries = sum(len(layer.entries) for layer in self.layers)
        counted = f"{number_of(entries, 'entry', 'entries')} of {number_of(len(self.layers), 'layer')}"
        return f"LookupTable({self.described}, {counted})"

    def _repr_html_(self) -> str:
        factor, unit = METRICS[self.metric].shown
        cells = {
            layer.name: {
                choice: layer.entries[choice].value * factor if choice in layer.entries else None
                for choice in layer.choices
            }
            for layer in self.searched
        }
        return heat_map(self.described, cells, unit)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a candidate, with None for the cost of one without an entry."""
        return [
            {
                "layer": layer.name,
                "choice": choice,
                **cost_row(layer.entries.get(choice), self.metric),
                "n_samples": layer.entries[choice].n_samples if choice in layer.entries else 0,
                "searched": layer.searched,
            }
            for layer in self.layers
            for choice in layer.choices
        ]

    def places(self) -> Iterator[tuple[tuple[str, str], Entry]]:
        """Go through the entries, each with the name of its layer and its choice."""
        return (((layer.name, choice), entry) for layer in self.layers for choice, entry in layer.entries.items())

    def with_entries(self, change: Callable[[Entry], Entry], **fields: Any) -> LookupTable:
        """Return the table with every entry changed, and with other values of `fields`."""
        layers = (
            replace(layer, entries={choice: change(entry) for choice, entry in layer.entries.items()})
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers), **fields)

    @property
    def searched(self) -> tuple[TableLayer, ...]:
        """The layers that the space chooses, in order."""
        return tuple(layer for layer in self.layers if layer.searched)

    @property
    def coverage(self) -> float:
        """Share of the candidates that have an entry."""
        total = sum(len(layer.choices) for layer in self.layers)
        return sum(len(layer.entries) for layer in self.layers) / total if total else 0.0

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Layer and choice of every candidate without an entry."""
        return tuple((layer.name, choice) for layer in self.layers for choice in layer.missing)

    @property
    def unsettled(self) -> tuple[tuple[str, str], ...]:
        """Layer and choice of every entry whose interval is wider than the protocol asked for."""
        if self.protocol is None or not self.protocol.half_width or not self.rounds:
            return ()
        # A throughput is as well known as the time that it stands for.
        times = self if self.metric != "throughput" else self.with_entries(Entry.inverted, metric="latency")
        visible = NEGLIGIBLE * times._typical
        return tuple(
            (layer.name, choice)
            for layer in times.layers
            for choice, entry in layer.entries.items()
            if entry.half_width > max(self.protocol.half_width * entry.value, visible)
        )

    @property
    def _typical(self) -> float:
        """Calibrated sum of the mean entries of all layers: about what a random network costs."""
        costs = [[entry.value for entry in layer.entries.values()] for layer in self.layers if layer.entries]
        return self.calibration * math.fsum(math.fsum(layer) / len(layer) for layer in costs)

    def __iter__(self) -> Iterator[str]:
        return (layer.name for layer in self.layers)

    def __getitem__(self, layer: str) -> TableLayer:
        """Return one layer, so that ``table[layer][choice]`` is an entry; `UnknownNameError` if there is none."""
        for found in self.layers:
            if found.name == layer:
                return found
        raise UnknownNameError.of("layer", layer, [found.name for found in self.layers])

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        content = {**self.header_content(), "input_shape": list(self.input_shape), "reference": self.reference}
        return TABLE.save(path, content, {"layers": (layer.as_json() for layer in self.layers)})

    @classmethod
    def load(cls, path: str | Path) -> LookupTable:
        """Read a table.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of another version.
        """
        return TABLE.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: TableDocument) -> LookupTable:
        return cls(
            **document.header(),
            layers=tuple(map(TableLayer.of_document, document.layers)),
            input_shape=document.input_shape,
            reference=document.reference,
        )


_Ops = Mapping[str, Mapping[str, OpSpec]]


def _outline(space: Any, batch_size: int, asked: Sequence[int] | None) -> tuple[dict[str, Any], list[TableLayer], _Ops]:
    """Return space and input shape, the layers without entries, and their operators, however the space was given."""
    shape = None if asked is None else _checked_shape(asked)
    batch_size = batch_size if shape is None else shape[0]
    if hasattr(space, "measure_plan"):
        plan = measure_plan_of(space, batch_size)
        if shape not in (None, plan.input_shape):
            raise InvalidValueError(f"The 'input_shape' of {plan.space} must be {plan.input_shape}. Got {shape}.")
        header = {"space": plan.space, "input_shape": plan.input_shape}
        return header, [TableLayer.of_plan(layer) for layer in plan.layers], plan.ops
    if hasattr(space, "simplify"):
        labels = {label: _values(label, mutable) for label, mutable in space.simplify().items()}
        reference = SpaceReference.of_class(type(space), getattr(space, "args", {}))
    elif isinstance(space, Mapping):
        labels, reference = dict(space), SpaceReference(UNKNOWN_SPACE)
    else:
        raise InvalidValueError(
            f"The 'space' must be an NNI model space or a mapping of labels to choices. Got {type(space).__name__}."
        )
    if not labels:
        raise InvalidValueError(f"The space {reference} has no choices: there is nothing to search.")
    layers = [TableLayer(str(name), _hand_choices(str(name), values), {}) for name, values in labels.items()]
    if shape is None:
        example = space.example_inputs(batch_size) if hasattr(space, "example_inputs") else None
        shape = tuple(getattr(example, "shape", (batch_size,)))
    return {"space": reference, "input_shape": shape}, layers, {}


def _values(label: str, mutable: Any) -> Sequence[Any]:
    if not hasattr(mutable, "values"):
        raise InvalidValueError(f"The choice {label!r} must be one of a list of values. It is {mutable!r}.")
    found: Sequence[Any] = mutable.values
    return found


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise InvalidValueError(f"The 'input_shape' must be whole numbers of at least 1, batch first. Got {shape!r}.")
    return tuple(shape)


def _hand_choices(layer: str, values: Any) -> tuple[str, ...]:
    choices = tuple(map(str, values))
    if not choices:
        raise InvalidValueError(f"The layer {layer!r} has no choices. Name its choices, or leave it out.")
    double = next((choice for choice in choices if choices.count(choice) > 1), None)
    if double is not None:
        raise InvalidValueError(
            f"The layer {layer!r} has two choices that are both called {double!r} in a table. Rename one of them."
        )
    return choices


def _hand_entries(layer: str, given: Mapping[Any, float], ops: Mapping[str, OpSpec]) -> dict[str, Entry]:
    entries = {}
    for choice, cost in given.items():
        if str(choice) in entries:
            raise InvalidValueError(
                f"The layer {layer!r} has two costs of the choice {str(choice)!r}. Keep one of them."
            )
        try:
            entries[str(choice)] = Entry(float(cost), float(cost), float(cost), op=ops.get(str(choice)))
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"The cost of {layer!r}, choice {choice!r} must be a positive, finite number. Got {cost!r}."
            ) from error
    return entries


class EntryDocument(CountedDocument):
    """What a candidate costs, and what it computes."""

    n_dropped: int = Field(0, ge=0, description="samples trimmed away")
    op: Operator | None = None


class LayerDocument(StrictDocument):
    """One layer: its candidates in the order of the space's indices, and the entries of those that have a cost."""

    name: str
    searched: bool = True
    default: str | None = None
    choices: list[str] = Field(min_length=1)
    entries: dict[str, EntryDocument]
    failures: dict[str, str] = Field(default_factory=dict, description="candidates that could not be measured, and why")

    @model_validator(mode="after")
    def _names_are_choices(self) -> LayerDocument:
        strangers = sorted({*self.entries, *self.failures} - set(self.choices))
        if strangers:
            raise ValueError(f"entries {strangers} are not among the choices")
        both = sorted(set(self.entries) & set(self.failures))
        if both:
            raise ValueError(f"{both} have both an entry and a failure")
        if len(set(self.choices)) != len(self.choices):
            raise ValueError("the choices must all be different")
        if self.default is not None and self.default not in self.choices:
            raise ValueError(f"default {self.default!r} is not among the choices")
        return self


class TableDocument(HeaderDocument):
    """A lookup table: what the candidates of a space cost on one platform."""

    input_shape: ShapeTuple = Field(description="of the network's input, batch first")
    reference: PositiveFloat | None = Field(None, description="time of the space's reference network [s]")
    layers: list[LayerDocument] = Field(min_length=1)


TABLE = DocumentFormat(
    "nni_latency.lookup_table",
    1,
    "table",
    "a lookup table",
    "build one with: nni-latency build-lut",
    model=TableDocument,
)


#: Returns the JSON schema of the file format.
table_schema = TABLE.schema
