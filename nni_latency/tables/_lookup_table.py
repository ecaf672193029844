# SPDX-License-Identifier: Apache-2.0
"""`LookupTable`: costs of the candidates or operators of a space on one platform, and its file format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field, PositiveFloat

from nni_latency.documents import DocumentFormat, ShapeTuple, line
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import naming
from nni_latency.notebook import bar_chart, heat_map
from nni_latency.operators import family_of, features_of
from nni_latency.platforms import Platform
from nni_latency.tables._entries import Entry, MeasuredNetwork, TableLayer
from nni_latency.tables._hand_made import hand_made_entries, hand_made_outline
from nni_latency.tables._header import HeaderDocument, SpaceTable
from nni_latency.tables._layer_schedule import NEGLIGIBLE
from nni_latency.tables._pairs import LayerPair, check_pairs, least_total
from nni_latency.units import METRIC_UNITS, METRICS, combination_of, cost_row, format_metric, number_of

#: Number of operators that a notebook shows.
_DRAWN = 20

#: Fields of the file in addition to the header: lists with one item per line, and all.
_LISTS = ("networks", "layers", "pairs", "operators")
_FIELDS = ("input_shape", "reference", "operator_coverage", "failures", *_LISTS)


@dataclass(frozen=True, kw_only=True, repr=False)
class LookupTable(SpaceTable):
    """Costs of the candidates of a space's layers, or of its operators, on one platform. Immutable.

    If the networks of a space are chains of layers with a few candidates each, the table has an entry for each
    candidate. For any other space, operators were timed inside a covering sample of networks: the table has an entry
    for each operator and no layers, and other operators are predicted from these. Imported measurements of operators
    make such a table too, of the space "operators".

    Parameters
    ----------
    input_shape : tuple of int
        Shape of the networks' input, batch first; for imported operators only the batch size.
    layers : tuple of TableLayer
        Layers from input to output; empty in a table of operators.
    pairs : tuple of LayerPair, default=()
        What neighbouring layers cost beyond the sum of their entries; empty where they cost nothing.
    operators : tuple of Entry
        Distinct operators; empty in a table with layers.
    networks : tuple of MeasuredNetwork
        Whole networks that were measured for a table of operators; the first one is the reference network.
    operator_coverage : float, default=1.0
        Share of the operators of other random networks of the space that have an entry, in [0, 1].
    failures : mapping of str to str
        Networks, as JSON, that could not be measured for a table of operators, each with the reason.
    reference : float or None
        Cost of the space's reference network, which measures the machine's speed.
    **header
        As for `TableHeader`: space, platform, metric, protocol, calibration and so on. The calibration is needed
        because the lower quartiles of parts add up to less than the lower quartile of the whole: the parts are seldom
        all undisturbed in the same run.

    Raises
    ------
    InvalidValueError
        If the table has neither layers nor operators, or both; a duplicate layer or operator; pairs that are not of its
        layers, or with which a network costs nothing or less; costs beside neighbours of a candidate, or of a metric
        that does not add up; or a calibration that is not a positive number.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> table.coverage, table["a"]["y"].value
    (1.0, 0.002)
    """

    layers: tuple[TableLayer, ...] = ()
    pairs: tuple[LayerPair, ...] = ()
    operators: tuple[Entry, ...] = ()
    networks: tuple[MeasuredNetwork, ...] = ()
    operator_coverage: float = 1.0
    failures: Mapping[str, str] = field(default_factory=dict)
    reference: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [layer.name for layer in self.layers]
        if bool(names) == bool(self.operators) or len(names) != len(set(names)):
            raise InvalidValueError(
                "A table has layers of different names, at least one, or operators. Got "
                f"{number_of(len(self.operators), 'operator')} and the layers {names}."
            )
        if len({entry.op.op_key for entry in self.operators if entry.op}) < len(self.operators):
            raise InvalidValueError("A table of operators must hold every operator once.")
        check_pairs(self.pairs, {layer.name: len(layer.choices) for layer in self.layers})
        for (layer, choice), entry in self.places():
            if entry.value == 0 and METRIC_UNITS[self.metric] != "byte":
                raise InvalidValueError(f"The {self.metric} of {layer!r}: {choice} must be positive. Got 0.")
            if entry.beside and (self.layers or not combination_of(self.metric).has_expectation):
                raise InvalidValueError(
                    f"The {self.metric} of {layer!r}: {choice} has costs beside neighbours, which only operators have, "
                    "in a table without layers and of a metric that is a sum, such as latency or energy."
                )
        if self.pairs:
            self._check_sums()

    def _check_sums(self) -> None:
        """Raise `InvalidValueError` if the costs of pairs do not add up, or to less than nothing for some network."""
        combination = combination_of(self.metric)
        if not combination.adds_up:
            raise InvalidValueError(f"The {self.metric} of layers does not add up, so there are no costs of pairs.")
        costs = {
            layer.name: [
                combination.counted(layer.entries[choice].value) if choice in layer.entries else math.inf
                for choice in layer.choices
            ]
            for layer in self.layers
        }
        least = least_total(self.pairs, costs)
        if least <= 0:
            raise InvalidValueError(
                f"The costs of pairs are too far below zero: the entries and pairs of a network add up to {least:.4g}."
            )

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
        """Construct a table manually, from given numbers.

        Parameters
        ----------
        space : ModelSpace or mapping
            An NNI model space; or a mapping of labels to choices.
        latencies : mapping of str to mapping
            ``{layer: {choice: cost}}``, in seconds for latency. Candidates may be omitted, which lowers the coverage.
            Omitted fixed layers cost nothing, and estimates list them as missing.
        platform : Platform, optional
            Platform of the numbers.
        metric : str, default="latency"
            Metric of the numbers.
        batch_size : int, default=1
            Batch size of the numbers.
        input_shape : sequence of int, optional
            Input shape of the numbers, batch first, in place of `batch_size`. By default that of the space's plan or
            of its ``example_inputs(batch_size)``; only the batch size where it has neither.

        Raises
        ------
        InvalidValueError
            If a cost is not a positive, finite number; a layer has no choices or two of the same name; an input shape
            is invalid or differs from that of the space's plan; or the space has arguments that a file cannot hold
            (in that case, pass its labels with their choices instead).
        UnknownNameError
            If the space has no layer or choice of that name.
        """
        header, empty, ops = hand_made_outline(space, batch_size, input_shape)
        layers = {layer.name: layer for layer in empty}
        for label, given in latencies.items():
            name = str(label)
            if name not in layers:
                raise UnknownNameError.of("layer", name, list(layers))
            for choice in given:
                if str(choice) not in layers[name].choices:
                    raise UnknownNameError.of(f"choice of {name!r}", choice, list(layers[name].choices))
            layers[name] = replace(layers[name], entries=hand_made_entries(name, given, ops.get(name, {})))
        platform = platform or Platform("unknown", "unknown")
        return cls(**header, platform=platform, layers=tuple(layers.values()), metric=metric)

    def __repr__(self) -> str:
        counted = number_of(len(self.operators), "operator")
        if self.layers:
            entries = sum(len(layer.entries) for layer in self.layers)
            counted = f"{number_of(entries, 'entry', 'entries')} of {number_of(len(self.layers), 'layer')}"
        return f"LookupTable({self.described}, {counted})"

    def _repr_html_(self) -> str:
        if self.layers:
            factor, unit = METRICS[self.metric].shown
            cells = {
                layer.name: {
                    choice: layer.entries[choice].value * factor if choice in layer.entries else None
                    for choice in layer.choices
                }
                for layer in self.searched
            }
            return heat_map(self.described, cells, unit)
        costliest = sorted(self.by_op.items(), key=lambda item: -item[1].value)[:_DRAWN]
        bars = [
            (", ".join(entry.names) or key, entry.value, format_metric(entry.value, self.metric))
            for key, entry in costliest
        ]
        return bar_chart(
            f"{self.described}: the {len(bars)} costliest of {number_of(len(self.operators), 'operator')}", bars
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per candidate, with a cost of None if it has no entry; or one row per operator."""
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
        ] + [
            {
                "operator": key,
                "names": ", ".join(entry.names),
                "family": family_of(entry.op),
                **cost_row(entry, self.metric),
                "n_samples": entry.n_samples,
                "n_places": entry.n_places,
                "n_networks": entry.n_networks,
            }
            for key, entry in self.by_op.items()
            if self.operators and entry.op
        ]

    def places(self) -> Iterator[tuple[tuple[str, str], Entry]]:
        """Iterate over the entries, each with its layer and choice, or with the kind and key of its operator."""
        for layer in self.layers:
            for choice, entry in layer.entries.items():
                yield (layer.name, choice), entry
        for entry in self.operators:
            if entry.op:
                yield (entry.op.kind, entry.op.op_key), entry

    @property
    def entries(self) -> list[Entry]:
        """All entries, in order."""
        return [entry for _, entry in self.places()]

    @cached_property
    def by_op(self) -> Mapping[str, Entry]:
        """Cost of each operator by its key: its entry, or the mean of the entries in several layers."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.op is not None:
                found.setdefault(entry.op.op_key, []).append(entry)
        return MappingProxyType({key: same[0] if len(same) == 1 else Entry.mean(same) for key, same in found.items()})

    def entries_by_name(self) -> dict[str, Entry]:
        """Return the entries by ``layer:choice``; in a table of operators by their keys and all their names."""
        if self.layers:
            return {f"{layer}:{choice}": entry for (layer, choice), entry in self.places()}
        return {name: entry for key, entry in self.by_op.items() for name in (*entry.names, key)}

    def with_entries(self, change: Callable[[Entry], Entry], **fields: Any) -> LookupTable:
        """Return a copy with `change` applied to every entry, and with other values of `fields`."""
        layers = (
            replace(layer, entries={choice: change(entry) for choice, entry in layer.entries.items()})
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers), operators=tuple(map(change, self.operators)), **fields)

    def check_layers(self, what: str) -> None:
        """Raise `InvalidValueError` if this is a table of operators, but `what` requires the layers of a space."""
        if not self.layers:
            raise InvalidValueError(
                f"{what} needs a table with the layers of a space. This is a table of operators, of {self.space.name}."
            )

    @property
    def searched(self) -> tuple[TableLayer, ...]:
        """The searchable layers, in order."""
        return tuple(layer for layer in self.layers if layer.searched)

    @property
    def coverage(self) -> float:
        """Share of the candidates, or of the operators of other random networks, that have an entry."""
        if not self.layers:
            return self.operator_coverage
        total = sum(len(layer.choices) for layer in self.layers)
        return sum(len(layer.entries) for layer in self.layers) / total if total else 0.0

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Layer and choice of every candidate without an entry."""
        return tuple((layer.name, choice) for layer in self.layers for choice in layer.missing)

    @property
    def unsettled(self) -> tuple[tuple[str, str], ...]:
        """Layer and choice of every entry whose interval is wider than the protocol requires."""
        if self.protocol is None or not self.protocol.half_width or not self.rounds:
            return ()
        # The relative width of a throughput is that of its latency.
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
        """Calibrated sum of the mean entries of all layers: the approximate cost of a random network."""
        costs = [[entry.value for entry in layer.entries.values()] for layer in self.layers if layer.entries]
        return self.calibration * math.fsum(math.fsum(layer) / len(layer) for layer in costs)

    def __iter__(self) -> Iterator[str]:
        return (layer.name for layer in self.layers)

    def __getitem__(self, layer: str) -> TableLayer:
        """Return one layer, so that ``table[layer][choice]`` is an entry; raise `UnknownNameError` if there is none."""
        for found in self.layers:
            if found.name == layer:
                return found
        raise UnknownNameError.of("layer", layer, [found.name for found in self.layers])

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON, atomically.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        fields = {name: getattr(self, name) for name in ("reference", "operator_coverage")}
        content = {
            **self.header_content(),
            "input_shape": list(self.input_shape),
            **fields,
            "failures": dict(self.failures),
        }
        return TABLE.save(path, content, {name: map(line, getattr(self, name)) for name in _LISTS})

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
    def _of_document(cls, file: TableDocument) -> LookupTable:
        table = cls(**file.header(), **{name: getattr(file, name) for name in _FIELDS})
        for name, entry in table.entries_by_name().items():
            if entry.op is not None:
                with naming(name):
                    # Counting raises if the attributes of an operator do not match its kind.
                    features_of(entry.op)
        return table


class TableDocument(HeaderDocument):
    """A lookup table: what the candidates or the operators of a space cost on one platform."""

    input_shape: ShapeTuple = Field(description="of the networks' input, batch first")
    reference: PositiveFloat | None = Field(None, description="cost of the space's reference network")
    operator_coverage: float = Field(
        1.0, ge=0, le=1, description="share of the operators of other random networks with an entry"
    )
    failures: dict[str, str] = Field(default_factory=dict, description="networks that could not be measured, and why")
    networks: tuple[MeasuredNetwork, ...] = Field(
        default=(), description="measured whole for a table of operators; the first is the reference network"
    )
    layers: tuple[TableLayer, ...] = Field(default=(), description="from the input to the output")
    pairs: tuple[LayerPair, ...] = Field(
        default=(), description="what neighbouring layers cost beyond the sum of their entries"
    )
    operators: tuple[Entry, ...] = Field(default=(), description="each once, in a table without layers")


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
