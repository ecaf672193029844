# SPDX-License-Identifier: Apache-2.0
"""`GraphNetworkEstimator`: a graph predictor as an estimator of one platform."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.files import split_sources
from nni_latency.graphs._graph_predictor import GraphPredictor
from nni_latency.graphs._onnx_form import graph_of
from nni_latency.graphs._shipped import PRETRAINED, find_predictor
from nni_latency.platforms import Platform
from nni_latency.units import number_of


class GraphNetworkEstimator(NetworkEstimator):
    """Network-based: a graph network predicts the latency of whole networks, operator by operator.

    Parameters
    ----------
    predictor : GraphPredictor
        A fitted predictor.
    platform : Platform
        One of its platforms.
    """

    metric = "latency"
    reads_onnx = True

    def __init__(self, predictor: GraphPredictor, platform: Platform) -> None:
        self.predictor, self.platform = predictor, platform

    @classmethod
    def of(cls, argument: str) -> GraphNetworkEstimator:
        """Build the estimator from ``PREDICTOR,PLATFORM``, the argument of ``graph-network``.

        Parameters
        ----------
        argument : str
            A file of ``nni-latency learn graph``, or ``pretrained`` (also the meaning of an empty name) for the
            shipped one; then the id of one of its platforms, optional if there is only one.

        Raises
        ------
        InvalidValueError
            If the predictor has several platforms and none is named.
        UnknownNameError
            If the predictor does not have the platform.
        FileFormatError
            If the file cannot be read.
        """
        name, *rest = split_sources(argument, 2)
        name, platform = name or PRETRAINED, "".join(rest)
        predictor = GraphPredictor.load(find_predictor(name))
        if not platform and len(predictor.platforms_) > 1:
            ids = [item.id for item in predictor.platforms_]
            raise InvalidValueError(
                f"The graph predictor {name!r} knows {number_of(len(ids), 'platform')}. Name one of them, as in "
                f"graph-network:{name},{ids[0]}. The others are: {listed(ids[1:])}."
            )
        return cls(predictor, predictor.platform(platform or None))

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network.

        Parameters
        ----------
        model : nn.Module, str, Path or Graph
            A module, which is exported to ONNX, the format of the training data; an ONNX file; or a graph.
        example_inputs : Tensor or tuple of Tensor
            Inputs of the model; for an ONNX file needed only where it leaves sizes open.

        Raises
        ------
        InvalidValueError
            If the model cannot be read or exported, or model and inputs do not match.
        MissingDependencyError
            If the package onnx cannot be imported.
        """
        graph = graph_of(model, example_inputs)
        return self.predictor.estimate_platforms(graph, [self.platform])[self.platform.id]
