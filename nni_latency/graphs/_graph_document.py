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
from nni_latency.files import replacing
from nni_latency.graphs._encoding import GROUPS, KINDS, N_FEATURES, TERMS
from nni_latency.graphs._graph_network import GraphNetwork
from nni_latency.graphs._operator_trees import OperatorTrees, PlatformTrees
from nni_latency.platforms import Platform

Array = NDArray[np.float64]

_KEY, _HELD_OUT, _LATENCIES, _TREES = "nni_latency", "held_out", "latencies", "trees"

#: Half the width of an interval, as a logarithm; larger values are implausible.
_Spread = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class LearnedGraphs:
    """State of a fitted graph predictor, by the names of its attributes without the trailing ``_``.

    Parameters
    ----------
    platforms, members, trees, epochs, spreads, held_out, latencies, unmeasured_spread, counts, families, kinds
        See `GraphPredictor`.
    """

    platforms: tuple[Platform, ...]
    members: list[GraphNetwork]
    trees: PlatformTrees
    epochs: int
    spreads: Array
    held_out: Array
    latencies: Array
    unmeasured_spread: float
    counts: NDArray[np.int64]
    families: tuple[str, ...]
    kinds: tuple[str, ...]


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
    epochs: int = Field(ge=0)
    spreads: list[_Spread]
    unmeasured_spread: _Spread | None
    counts: list[int]
    families: list[str]
    kinds: list[str]


FORMAT = DocumentFormat(
    "nni_latency.graph_predictor",
    1,
    "graph predictor",
    "a graph predictor",
    "fit one with 'nni-latency learn graph'.",
    model=GraphPredictorDocument,
)


def _description() -> list[str | int]:
    return [N_FEATURES, *TERMS, *GROUPS, *KINDS]


def write_predictor(settings: Mapping[str, Any], learned: LearnedGraphs, path: Path) -> Path:
    """Write settings and state of a predictor, atomically."""
    content = {
        **FORMAT.head,
        "settings": {name: value for name, value in settings.items() if name != "n_jobs"},
        "description": _description(),
        "platforms": [platform.as_dict() for platform in learned.platforms],
        "epochs": learned.epochs,
        "spreads": [float(value) for value in learned.spreads],
        "unmeasured_spread": learned.unmeasured_spread if math.isfinite(learned.unmeasured_spread) else None,
        "counts": [int(value) for value in learned.counts],
        "families": list(learned.families),
        "kinds": list(learned.kinds),
    }
    with FORMAT.writable(str(path)):
        FORMAT.check_content(content)
    tensors = {
        f"{number}/{name}": value.detach().contiguous().clone()
        for number, member in enumerate(learned.members)
        for name, value in member.state_dict().items()
    }
    tensors |= {
        f"{_TREES}/{number}/{name}": torch.from_numpy(np.ascontiguousarray(values))
        for number, trees in enumerate(learned.trees)
        if trees is not None
        for name, values in trees.tensors().items()
    }
    tensors[_HELD_OUT] = torch.from_numpy(np.ascontiguousarray(learned.held_out))
    tensors[_LATENCIES] = torch.from_numpy(np.ascontiguousarray(learned.latencies))
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={_KEY: json.dumps(content)})
        except SafetensorError as error:
            raise OutputError(f"Cannot write {str(path)!r}: {error}.") from error
    return path


def read_predictor(path: Path) -> tuple[dict[str, Any], LearnedGraphs]:
    """Read and validate settings and state of a predictor."""
    content, tensors = _load(path)
    FORMAT.check(content, str(path))
    with FORMAT.valid(str(path)):
        document: GraphPredictorDocument = FORMAT.parse(content)
    if document.description != _description():
        raise FileFormatError(
            f"{str(path)!r} describes operators in another way than this version does. Fit it again with "
            "'nni-latency learn graph'."
        )
    try:
        return document.settings.model_dump(), _learned(document, tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"{str(path)!r} is damaged: {first_line(error).rstrip('.')}. Fit it again, or copy it again."
        ) from error


def _learned(document: GraphPredictorDocument, tensors: dict[str, torch.Tensor]) -> LearnedGraphs:
    count = len(document.platforms)
    held_out, latencies = _held_out(tensors, count)
    if {len(document.spreads), len(document.counts)} != {count}:
        raise ValueError("there must be a spread and a count for every platform")
    return LearnedGraphs(
        platforms=tuple(item.to_platform() for item in document.platforms),
        trees=tuple(_trees(tensors, number) for number in range(count)),
        members=[_member(document, tensors, number) for number in range(document.settings.n_members)],
        epochs=document.epochs,
        spreads=np.array(document.spreads),
        held_out=held_out,
        latencies=latencies,
        unmeasured_spread=math.inf if document.unmeasured_spread is None else document.unmeasured_spread,
        counts=np.array(document.counts),
        families=tuple(document.families),
        kinds=tuple(document.kinds),
    )


def _held_out(tensors: dict[str, torch.Tensor], n_platforms: int) -> tuple[Array, Array]:
    """Return the errors and latencies of held-out networks."""
    errors = tensors.pop(_HELD_OUT).numpy()
    latencies = tensors.pop(_LATENCIES).numpy()
    if errors.shape[1:] != (n_platforms,) or latencies.shape != errors.shape:
        raise ValueError("there must be an error and a latency for every network and platform.")
    return errors, latencies


def _trees(tensors: dict[str, torch.Tensor], number: int) -> OperatorTrees | None:
    """Return the trees of a platform; None if it has none."""
    prefix = f"{_TREES}/{number}/"
    arrays = {name.removeprefix(prefix): value.numpy() for name, value in tensors.items() if name.startswith(prefix)}
    return OperatorTrees.read(arrays) if arrays else None


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
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise FileFormatError(
            f"{str(path)!r} is no graph predictor that can be read ({error}). Fit one with 'nni-latency learn graph'."
        ) from error
