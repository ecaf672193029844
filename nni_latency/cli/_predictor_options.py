"""The predictor that a command asks."""

from __future__ import annotations

from dataclasses import dataclass

import nni_latency.graphs as graphs
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
