# SPDX-License-Identifier: Apache-2.0
"""State of a fitted graph predictor, and its file: safetensors, with JSON in the metadata that pydantic validates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nni_latency.documents import DocumentFormat, PlatformDocument, StrictDocument
from nni_latency.errors import FileFormatError, OutputError, first_line
from nni_latency.files import readable, replacing
from nni_latency.graphs._encoding import GROUPS, N_FEATURES, TERMS
from nni_latency.graphs._graph_network import N_INTERVALS, GraphNetwork
from nni_latency.graphs._intervals import DOUBTS, Ranges
from nni_latency.graphs._operator_features import KINDS
from nni_latency.platforms import Platform

Array = NDArray[np.float64]

_KEY = "nni_latency"

#: Names of the arrays with a value for every held-out network and platform, and of those of the ranges.
_BY_NETWORK, _RANGES = ("held_out", "latencies", "widths"), ("low", "high")

#: Half the width of an interval, as a logarithm; larger values are implausible.
_Spread = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class LearnedGraphs:
    """State of a fitted graph predictor, by the names of its attributes without the trailing ``_``.

    Parameters
    ----------
    platforms, members, spreads, doubt_weights, ranges, held_out, latencies, widths, unmeasured_spread, counts,
    families, kinds, held_out_families
        See `GraphPredictor`.
    """

    platforms: tuple[Platform, ...]
    members: list[GraphNetwork]
    spreads: Array
    doubt_weights: Array
    ranges: Ranges
    held_out: Array
    latencies: Array
    widths: Array
    unmeasured_spread: float
    counts: NDArray[np.int64]
    families: tuple[str, ...]
    kinds: tuple[str, ...]
    held_out_families: tuple[str, ...]


class SettingsDocument(StrictDocument):
    """The parameters of a graph predictor."""

    hidden: int = Field(ge=1, le=4096)
    n_layers: int = Field(ge=0, le=32)
    dropout: float = Field(ge=0, lt=1)
    restraint: float = Field(ge=0)
    epochs: PositiveInt
    batch_size: PositiveInt
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    n_folds: int = Field(ge=2)
    n_members: int = Field(ge=1, le=100)
    confidence: float = Field(gt=0, lt=1)
    random_state: int


class GraphPredictorDocument(StrictDocument):
    """Everything but the weights."""

    format: str
    version: int
    settings: SettingsDocument
    #: Names of the features of operators; a predictor with other features cannot be used.
    description: list[str | int]
    platforms: list[PlatformDocument] = Field(min_length=1)
    spreads: list[_Spread]
    doubt_weights: list[_Spread] = Field(min_length=len(DOUBTS), max_length=len(DOUBTS))
    unmeasured_spread: _Spread | None
    counts: list[int]
    families: list[str]
    kinds: list[str]
    held_out_families: list[str]


FORMAT = DocumentFormat(
    "nni_latency.graph_predictor",
    1,
    "graph predictor",
    "a graph predictor",
    "fit one with 'nni-latency learn graph'.",
    model=GraphPredictorDocument,
)


def _description() -> list[str | int]:
    return [N_FEATURES, N_INTERVALS, *TERMS, *GROUPS, *KINDS]


def write_predictor(settings: Mapping[str, Any], learned: LearnedGraphs, path: Path) -> Path:
    """Write settings and state of a predictor, atomically."""
    content = {
        **FORMAT.head,
        "settings": {name: value for name, value in settings.items() if name != "n_jobs"},
        "description": _description(),
        "platforms": [platform.as_dict() for platform in learned.platforms],
        "spreads": [float(value) for value in learned.spreads],
        "doubt_weights": [float(value) for value in learned.doubt_weights],
        "unmeasured_spread": learned.unmeasured_spread if math.isfinite(learned.unmeasured_spread) else None,
        "counts": [int(value) for value in learned.counts],
        "families": list(learned.families),
        "kinds": list(learned.kinds),
        "held_out_families": list(learned.held_out_families),
    }
    with FORMAT.writable(str(path)):
        FORMAT.check_content(content)
    tensors = {
        f"{number}/{name}": value.detach().contiguous().clone()
        for number, member in enumerate(learned.members)
        for name, value in member.state_dict().items()
    }
    arrays = {name: getattr(learned, name).astype(np.float32) for name in _BY_NETWORK}
    arrays |= {f"ranges/{name}": getattr(learned.ranges, name) for name in _RANGES}
    tensors |= {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={_KEY: json.dumps(content)})
        except SafetensorError as error:
            raise OutputError(f"Cannot write {str(path)!r}: {error}.") from error
    return path


def read_predictor(path: Path) -> tuple[dict[str, Any], LearnedGraphs]:
    """Read and validate settings and state of a predictor."""
    with readable(path, "a graph predictor"):
        content, tensors = _load(path)
    FORMAT.check(content, str(path))
    # Versions that describe operators in another way may differ in more, which is not damage.
    if content.get("description", _description()) != _description():
        raise FileFormatError(
            f"{str(path)!r} describes operators in another way than this version does. Fit it again with "
            "'nni-latency learn graph'."
        )
    with FORMAT.valid(str(path)):
        document: GraphPredictorDocument = FORMAT.parse(content)
    try:
        return document.settings.model_dump(), _learned(document, tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"{str(path)!r} is damaged: {first_line(error).rstrip('.')}. Fit it again, or copy it again."
        ) from error


def _learned(document: GraphPredictorDocument, tensors: dict[str, torch.Tensor]) -> LearnedGraphs:
    count = len(document.platforms)
    held_out, latencies, widths = _held_out(tensors, count)
    if {len(document.spreads), len(document.counts)} != {count}:
        raise ValueError("there must be a spread and a count for every platform")
    if len(document.held_out_families) != len(held_out):
        raise ValueError("there must be a family for every network that was held out")
    return LearnedGraphs(
        platforms=tuple(item.to_platform() for item in document.platforms),
        members=[_member(document, tensors, number) for number in range(document.settings.n_members)],
        spreads=np.array(document.spreads),
        doubt_weights=np.array(document.doubt_weights),
        ranges=_ranges(tensors, count),
        held_out=held_out,
        latencies=latencies,
        widths=widths,
        unmeasured_spread=math.inf if document.unmeasured_spread is None else document.unmeasured_spread,
        counts=np.array(document.counts),
        families=tuple(document.families),
        kinds=tuple(document.kinds),
        held_out_families=tuple(document.held_out_families),
    )


def _held_out(tensors: dict[str, torch.Tensor], n_platforms: int) -> list[Array]:
    """Return the errors, latencies and widths of intervals of held-out networks."""
    found = [tensors.pop(name).numpy().astype(np.float64) for name in _BY_NETWORK]
    if any(item.shape != found[0].shape or item.shape[1:] != (n_platforms,) for item in found):
        raise ValueError("there must be an error, a latency and a width for every network and platform.")
    return found


def _ranges(tensors: dict[str, torch.Tensor], n_platforms: int) -> Ranges:
    """Return the ranges of sizes that were learned from."""
    low, high = (tensors.pop(f"ranges/{name}").numpy() for name in _RANGES)
    return Ranges(low, high).check(n_platforms)


def _member(document: GraphPredictorDocument, tensors: dict[str, torch.Tensor], number: int) -> GraphNetwork:
    settings = document.settings
    network = GraphNetwork(len(document.platforms), settings.hidden, settings.n_layers, settings.dropout)
    prefix = f"{number}/"
    network.load_state_dict(
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    )
    if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
        raise ValueError("a weight is not a finite number.")
    return network.eval()


def _load(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {})[_KEY])
            return content, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileFormatError(f"Cannot read the graph predictor {str(path)!r}: {_reason(path, error)}.") from error
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise FileFormatError(
            f"{str(path)!r} is no graph predictor that can be read ({error}). Fit one with 'nni-latency learn graph'."
        ) from error


def _reason(path: Path, error: OSError) -> str:
    """Return why a file cannot be opened; safetensors calls all such files absent."""
    try:
        path.open("rb").close()
    except OSError as found:
        error = found
    return error.strerror or str(error)
