"""The predictor that a command asks, and the networks that it is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

import nni_latency.graphs as graphs
import nni_latency.operators as operators
from nni_latency.cli._model import inputs_option, onnx_inputs_of
from nni_latency.cli._option import option


@dataclass(frozen=True)
class PredictorOptions:
    """The predictor that is asked."""

    predictor: str = option(
        f"File of 'nni-latency learn graph', or {graphs.PRETRAINED} for the one that ships.", default=graphs.PRETRAINED
    )

    def load(self) -> graphs.GraphPredictor:
        """Read it."""
        return load_predictor(self.predictor)


def load_predictor(name: str) -> graphs.GraphPredictor:
    """Read a predictor from its file, or the one that ships."""
    return graphs.GraphPredictor.load(graphs.find_predictor(name))


@dataclass(frozen=True)
class OnnxOptions:
    """How an ONNX file is read."""

    batch_size: int | None = option("Inputs of a run.  [default: what the file says, or 1]", type=click.IntRange(1))
    inputs: tuple[str, ...] = inputs_option()

    def read(self, path: Path) -> operators.Graph:
        """Read the graph of a file."""
        return graphs.graph_of(path, onnx_inputs_of(self.inputs), self.batch_size)
