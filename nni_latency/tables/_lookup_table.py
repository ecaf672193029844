"""`LookupTable`: the measured candidates of a space on one platform."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import write_atomically
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.tables._document import TABLE, read_document, render_document
from nni_latency.tables._entry import Entry
from nni_latency.tables._plan import MeasurePlan, SpaceReference
from nni_latency.tables._residency import Residency
from nni_latency.tables._samples import NEGLIGIBLE
from nni_latency.units import METRIC_UNITS, check_metric


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

    @property
    def missing(self) -> tuple[str, ...]:
        """Candidates without an entry."""
        return tuple(choice for choice in self.choices if choice not in self.entries)


@dataclass(frozen=True)
class LookupTable:
    """Costs of the candidates of a space on one platform. Immutable.

    Parameters
    ----------
    space : SpaceReference
        Whose candidates they are.
    platform : Platform
        Where they were measured.
    layers : tuple of TableLayer
        From the input to the output.
    input_shape : tuple of int
        Shape of the network's input, batch first.
    metric : str, default="latency"
        Quantity; its SI unit is in `nni_latency.units.METRIC_UNITS`.
    protocol : Protocol or None
        How they were measured; None for numbers from elsewhere.
    calibration : float, default=1.0
        Factor on the sum of entries. Lower quartiles of parts add up to less than the lower quartile of the whole,
        because the parts are seldom all undisturbed at once; the factor makes up for that.
    rounds : int, default=0
        Rounds that were measured.
    duration : float, default=0.0
        Time spent measuring [s].
    residency : Residency or None
        What small networks save because their data stay in the cache, for the calibrated sum.
    reference : float or None
        Time of the space's reference network [s], which tells how fast the machine was.
    drift : tuple of float
        Median time of the reference operator in every round [s]; of a runtime that is timed from the outside, the time
        of the reference network in every batch.
    conditions : mapping
        What the machine was like before and after, as ``{"before": {...}, "after": {...}}``.
    remarks : tuple of str
        What was unstable while it was measured, and what to do about it.
    network_error : float or None
        By how much whole networks differ from what the table says of them, beyond chance in the samples: a standard
        deviation as a share.

    Raises
    ------
    InvalidValueError
        If the table has no layer, a layer twice, or a calibration that is not a positive number.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> table.coverage, table.entry("a", "y").value
    (1.0, 0.002)
    """

    space: SpaceReference
    platform: Platform
    layers: tuple[TableLayer, ...]
    input_shape: tuple[int, ...]
    metric: str = "latency"
    protocol: Protocol | None = None
    calibration: float = 1.0
    rounds: int = 0
    duration: float = 0.0
    residency: Residency | None = None
    reference: float | None = None
    drift: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    network_error: float | None = None

    def __post_init__(self) -> None:
        check_metric(self.metric)
        names = [layer.name for layer in self.layers]
        if not names or len(names) != len(set(names)):
            raise InvalidValueError(f"The layers of a table must have different names, at least one. Got {names}.")
        for layer in self.layers:
            for choice, entry in layer.entries.items():
                if entry.value == 0 and METRIC_UNITS[self.metric] != "byte":
                    raise InvalidValueError(f"The {self.metric} of {layer.name!r}: {choice} must be positive. Got 0.")
        if not (math.isfinite(self.calibration) and self.calibration > 0):
            raise InvalidValueError(f"The 'calibration' of a table must be positive. Got {self.calibration!r}.")

    @classmethod
    def from_latencies(
        cls,
        space: Any,
        latencies: Mapping[str, Mapping[Any, float]],
        *,
        platform: Platform | None = None,
        metric: str = "latency",
        batch_size: int = 1,
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
            For which batch size they hold, where the space does not say.

        Raises
        ------
        InvalidValueError
            If a cost is not a positive, finite number.
        UnknownNameError
            If the space has no such layer or choice.
        """
        outline = _outline(space, batch_size)
        for name, given in latencies.items():
            if name not in outline.choices:
                raise UnknownNameError.of("layer", name, list(outline.choices))
            for choice in given:
                if str(choice) not in outline.choices[name]:
                    raise UnknownNameError.of(f"choice of {name!r}", choice, list(outline.choices[name]))
        layers = tuple(
            TableLayer(
                name,
                choices,
                _hand_entries(name, latencies.get(name, {}), outline),
                name in outline.searched,
                outline.defaults.get(name),
            )
            for name, choices in outline.choices.items()
        )
        return cls(outline.space, platform or Platform("unknown", "unknown"), layers, outline.input_shape, metric)

    @property
    def batch_size(self) -> int:
        """First number of the input shape."""
        return self.input_shape[0]

    @property
    def searched(self) -> tuple[TableLayer, ...]:
        """The layers that the space chooses, in order."""
        return tuple(layer for layer in self.layers if layer.searched)

    @property
    def coverage(self) -> float:
        """Share of the candidates that have an entry."""
        total = sum(len(layer.choices) for layer in self.layers)
        return sum(len(layer.entries) for layer in self.layers) / total

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
        times = self if self.metric != "throughput" else replace(self, layers=_inverted(self.layers), metric="latency")
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

    def layer(self, name: str) -> TableLayer:
        """Return one layer; `UnknownNameError` if there is none of that name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownNameError.of("layer", name, [layer.name for layer in self.layers])

    def entry(self, layer: str, choice: str) -> Entry:
        """Return one entry; `UnknownNameError` if the layer has none for that choice."""
        found = self.layer(layer)
        if choice not in found.entries:
            raise UnknownNameError.of(f"entry of {layer!r}", choice, list(found.entries))
        return found.entries[choice]

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        target = Path(path)
        write_atomically(target, render_document(self))
        return target

    @classmethod
    def load(cls, path: str | Path) -> LookupTable:
        """Read a table.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of a newer version.
        """
        document = read_document(Path(path))
        with TABLE.valid(str(path)):
            return _from_document(document)


def _inverted(layers: tuple[TableLayer, ...]) -> tuple[TableLayer, ...]:
    """Turn the throughputs of layers into times of one input, or back."""
    return tuple(
        replace(layer, entries={choice: entry.inverted() for choice, entry in layer.entries.items()})
        for layer in layers
    )


@dataclass(frozen=True)
class _Outline:
    """Layers and choices of a space, however it was given."""

    space: SpaceReference
    input_shape: tuple[int, ...]
    choices: Mapping[str, tuple[str, ...]]
    searched: frozenset[str]
    defaults: Mapping[str, str | None]
    plan: MeasurePlan | None = None


def _outline(space: Any, batch_size: int) -> _Outline:
    if hasattr(space, "measure_plan"):
        plan: MeasurePlan = space.measure_plan(batch_size)
        return _Outline(
            plan.space,
            plan.input_shape,
            {layer.name: tuple(layer.candidates) for layer in plan.layers},
            frozenset(layer.name for layer in plan.searched),
            {layer.name: layer.default for layer in plan.layers},
            plan,
        )
    if hasattr(space, "simplify"):
        labels = {label: [str(value) for value in mutable.values] for label, mutable in space.simplify().items()}
        reference = SpaceReference.of_class(type(space))
    elif isinstance(space, Mapping):
        labels = {label: [str(value) for value in values] for label, values in space.items()}
        reference = SpaceReference("unknown")
    else:
        raise InvalidValueError(
            f"The 'space' must be an NNI model space or a mapping of labels to choices. Got {type(space).__name__}."
        )
    if not labels:
        raise InvalidValueError(f"The space {reference} has no choices: there is nothing to search.")
    return _Outline(
        reference, (batch_size,), {name: tuple(values) for name, values in labels.items()}, frozenset(labels), {}
    )


def _hand_entries(layer: str, given: Mapping[Any, float], outline: _Outline) -> dict[str, Entry]:
    ops = {item.name: item.candidates for item in outline.plan.layers} if outline.plan else {}
    entries = {}
    for choice, cost in given.items():
        op = ops[layer][str(choice)].op if layer in ops else None
        try:
            entries[str(choice)] = Entry(float(cost), float(cost), float(cost), op=op)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"The cost of {layer!r}, choice {choice!r} must be a positive, finite number. Got {cost!r}."
            ) from error
    return entries


def _from_document(document: Any) -> LookupTable:
    return LookupTable(
        SpaceReference(document.space.name, document.space.arguments),
        document.platform.to_platform(),
        tuple(
            TableLayer(
                layer.name,
                tuple(layer.choices),
                {choice: entry.to_entry() for choice, entry in layer.entries.items()},
                layer.searched,
                layer.default,
                layer.failures,
            )
            for layer in document.layers
        ),
        tuple(document.input_shape),
        document.metric,
        Protocol(**document.protocol) if document.protocol else None,
        document.calibration,
        document.rounds,
        document.duration,
        Residency(document.residency.saving, document.residency.scale) if document.residency else None,
        document.reference,
        tuple(document.drift),
        document.conditions,
        tuple(document.remarks),
        document.network_error,
    )
