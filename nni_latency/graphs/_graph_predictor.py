# SPDX-License-Identifier: Apache-2.0
"""`GraphPredictor`, which predicts latencies of networks of any family on every trained platform."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nni_latency.graphs._graph_transfer as transfer
import nni_latency.graphs._unmeasured as unmeasured
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.estimators import Estimate
from nni_latency.graphs._encoding import EncodedGraph, encode_graph
from nni_latency.graphs._examples import Examples, Measurements
from nni_latency.graphs._graph_document import LearnedGraphs, read_predictor, write_predictor
from nni_latency.graphs._graph_learning import Fitting, HeldOut, Settings
from nni_latency.graphs._graph_network import OperatorCost, predict_operators, predict_terms
from nni_latency.graphs._graph_transfer import add_platform
from nni_latency.graphs._intervals import (
    DOUBTS,
    FARTHEST,
    Ranges,
    doubts_of,
    importance_of,
    spreads_with,
    unfamiliar,
    weights_of_doubts,
    widths_of,
)
from nni_latency.graphs._measured_network import MeasuredNetwork, check_networks
from nni_latency.graphs._parametrized import Parametrized
from nni_latency.operators import Graph, precision_remarks, require_operators
from nni_latency.platforms import Platform
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Widening of an interval where a property of the network had to be assumed, as a logarithm.
_ASSUMED = 0.1

#: Largest plausible logarithm of a predicted latency; beyond it the predictor is damaged.
_LARGEST_LOGARITHM = 100

#: Graph networks per fold of the cross-validation at most: a third one hardly changes errors, and takes as long as the
#: others.
_MOST_HELD_OUT = 2

#: Names of the fitted state; the attributes carry a trailing "_".
_LEARNED = tuple(field.name for field in fields(LearnedGraphs))


class GraphPredictor(Parametrized):
    """Predict latencies of networks from their operator graphs, on all platforms at once.

    The cost of an operator on a platform is an analytical prior times a bounded correction. The prior is computed from
    the operator's work and memory traffic, at rates learned for each group of operators; the correction is learned by
    a graph network. The latency of a network is the sum of its operators' costs plus the overhead of a run. The
    prediction is therefore attributable to operators, extrapolates to unseen depths, and stays near the prior for
    unseen families.

    Parameters
    ----------
    hidden, n_layers, dropout : int, int, float
        Width of the graph network, number of message-passing layers, and dropout rate.
    restraint : float
        Strength of the penalty that holds corrections to 1.
    epochs : int
        Number of epochs.
    batch_size : int
        Networks per step.
    learning_rate, weight_decay : float
        Learning rate and weight decay of AdamW.
    n_folds : int
        Folds of the cross-validation over families, which sets the widths of intervals.
    n_members : int
        Graph networks trained on all families; the prediction is their geometric mean.
    confidence : float
        Nominal coverage of the intervals over networks of unseen families, and over networks of random blocks.
    random_state : int
        Seed of all randomness.
    n_jobs : int, optional
        Parallel processes, as in scikit-learn; the result does not depend on it.

    Attributes
    ----------
    platforms_ : tuple of Platform
        The platforms of the training data.
    members_ : list of GraphNetwork
        The graph networks.
    spreads_ : ndarray of shape (n_platforms,)
        Half the width of the interval of a network without doubts, as a logarithm, for each platform.
    doubt_weights_ : ndarray of shape (n_doubts,)
        How much intervals widen, relative to `spreads_`, for each doubt about a network: sizes of operators outside of
        the training data, and latencies below a millisecond.
    ranges_ : Ranges
        Sizes of the operators in the training data, by platform and kind.
    held_out_ : ndarray of shape (n_networks, n_platforms)
        Logarithms of predicted over measured latencies of held-out families, and of held-out networks where a platform
        was added later; NaN where nothing was measured.
    latencies_ : ndarray of shape (n_networks, n_platforms)
        Measured latencies of the held-out networks [s]; NaN for others.
    widths_ : ndarray of shape (n_networks, n_platforms)
        Half the widths of the intervals of the held-out networks, as logarithms; NaN for others.
    unmeasured_spread_ : float
        Like `spreads_`, for an unmeasured platform: found by leave-one-platform-out; infinite with fewer than three
        platforms.
    counts_ : ndarray of shape (n_platforms,)
        Number of measured networks, by platform.
    held_out_families_ : tuple of str
        Families of the held-out networks; those in `nni_latency.graphs.MIXED` are of random blocks.
    families_, kinds_ : tuple of str
        Families and operator kinds of the training data.

    References
    ----------
    .. [1] L. Liu et al., "NNLQP: A Multi-Platform Neural Network Latency Query and Prediction System with An Evolving
       Database", ICPP 2022. https://doi.org/10.1145/3545008.3545051
    .. [2] W. L. Hamilton, R. Ying, J. Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017.
       https://arxiv.org/abs/1706.02216

    Examples
    --------
    >>> from nni_latency.graphs import GraphNetworkEstimator, GraphPredictor, read_measured
    >>> predictor = GraphPredictor().fit(read_measured("measured"))               # doctest: +SKIP
    >>> platform = predictor.platform("epyc-7763.onnxruntime.fp32.t1")            # doctest: +SKIP
    >>> GraphNetworkEstimator(predictor, platform).estimate("net.onnx")           # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        hidden: int = 64,
        n_layers: int = 1,
        dropout: float = 0.1,
        restraint: float = 0.01,
        epochs: int = 24,
        batch_size: int = 16,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-2,
        n_folds: int = 4,
        n_members: int = 3,
        confidence: float = 0.9,
        random_state: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.hidden, self.n_layers, self.dropout = hidden, n_layers, dropout
        self.restraint, self.epochs, self.batch_size = restraint, epochs, batch_size
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.n_folds, self.n_members = n_folds, n_members
        self.confidence, self.random_state, self.n_jobs = confidence, random_state, n_jobs

    def fit(
        self, networks: Sequence[MeasuredNetwork], watch: Callable[[int, int], None] | None = None
    ) -> GraphPredictor:
        """Fit to measured networks.

        Parameters
        ----------
        networks : sequence of MeasuredNetwork
            Measured networks, of one or several platforms.
        watch : callable, optional
            Called with the number of finished epochs and their total: after each epoch, or after each graph
            network where several are trained in parallel.

        Returns
        -------
        GraphPredictor
            The fitted predictor itself.

        Raises
        ------
        InvalidValueError
            If there are too few networks, two latencies of one network disagree, or a platform fact is not positive.
        """
        data = Measurements.of(check_networks(networks))
        unmeasured.check_facts(data.platforms)
        if len(data.examples.graphs) < 2 * self.n_folds:
            raise InvalidValueError(
                f"A graph predictor needs at least {number_of(2 * self.n_folds, 'network')}. Got "
                f"{len(data.examples.graphs)}."
            )
        n_held_out = min(_MOST_HELD_OUT, self.n_members)
        total = self.epochs * (n_held_out * self.n_folds + self.n_members)
        done = 0

        def advance(epochs: int = 1) -> None:
            nonlocal done
            done += epochs
            if watch is not None:
                watch(done, total)

        fitting = Fitting(self._settings, self.n_jobs, advance)
        held_out = fitting.hold_out(data, self.n_folds, n_held_out, self.random_state)
        self.held_out_ = held_out.errors
        self.latencies_ = np.where(np.isnan(self.held_out_), np.nan, data.examples.latencies)
        self.members_ = fitting.members(data.examples, self.n_members)
        self.platforms_, self.families_, self.kinds_ = data.platforms, data.families, data.kinds
        self.held_out_families_ = data.family_of
        self.counts_ = (~np.isnan(data.examples.latencies)).sum(0)
        self.ranges_ = Ranges.of(data.examples.graphs, data.examples.latencies)
        self._calibrate(data, held_out)
        self.unmeasured_spread_ = unmeasured.spread(self.members_, data, self.confidence)
        return self

    def _calibrate(self, data: Measurements, held_out: HeldOut) -> None:
        """Fit the widths of intervals to the errors of held-out networks."""
        graphs, doubts = data.examples.graphs, np.zeros((*held_out.errors.shape, len(DOUBTS)))
        for row, distances in held_out.distances.items():
            doubts[row] = doubts_of(predict_operators(self.members_, graphs[row])[1], distances)
        importance = importance_of(held_out.errors, data.family_of)
        self.doubt_weights_ = weights_of_doubts(held_out.errors, doubts, importance)
        factors = widths_of(doubts, self.doubt_weights_)
        self.spreads_ = spreads_with(held_out.errors, factors, data.family_of, self.confidence)
        self.widths_ = np.where(np.isnan(held_out.errors), np.nan, factors * self.spreads_)

    def predict(self, graphs: Sequence[Graph], platform: Platform | str | None = None) -> Array:
        """Predict latencies.

        Parameters
        ----------
        graphs : sequence of Graph
            Networks.
        platform : Platform or str, optional
            Where they run; optional if there is only one platform.

        Returns
        -------
        ndarray of shape (n_graphs,)
            Latencies [s].

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownNameError
            If the platform is not one of `platforms_`.
        """
        number = self._number(platform)
        return np.array([self._costs(encode_graph(graph))[0][number] for graph in graphs])

    def estimate_platforms(
        self, graph: Graph, platforms: Sequence[Platform | str] | None = None
    ) -> dict[str, Estimate]:
        """Predict the latency of a network on several platforms, keyed by platform id.

        An interval is wider if the network has operators of unseen kinds, properties that had to be assumed, or
        another precision than the platform; `missing` names each of them.

        Parameters
        ----------
        graph : Graph
            The network.
        platforms : sequence of Platform or str, optional
            Some of the platforms of the predictor; all by default.

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownNameError
            If a platform is not one of `platforms_`.
        """
        self._check_fitted()
        require_operators(graph.operators, "The network")
        numbers = list(range(len(self.platforms_))) if platforms is None else list(map(self._number, platforms))
        encoded = encode_graph(graph)
        (latencies, costs), distances = self._costs(encoded), self.ranges_.distances(encoded)
        distances[[item.op.kind not in self.kinds_ for item in graph.operators]] = FARTHEST
        doubts = doubts_of(costs, distances)
        spreads = self.spreads_ * widths_of(doubts, self.doubt_weights_)
        ops = [item.op for item in graph.operators]
        by_precision = {item: precision_remarks(ops, item) for item in {self.platforms_[n].precision for n in numbers}}
        found = {}
        for number in numbers:
            platform, value = self.platforms_[number], float(latencies[number])
            assumed = (*graph.remarks, *by_precision[platform.precision])
            missing = (*unfamiliar(ops, distances[:, number], costs[:, number] / value), *assumed)
            factor = math.exp(spreads[number] + _ASSUMED * bool(assumed))
            found[platform.id] = Estimate(value, value / factor, value * factor, missing)
        return found

    def guess(self, graph: Graph, platform: Platform) -> Estimate:
        """Estimate the latency on an unmeasured platform from its facts and the most similar known platforms.

        Parameters
        ----------
        graph : Graph
            The network.
        platform : Platform
            Its device, runtime, precision and threads are used. So are the facts ``peak_flops`` [FLOP/s] of single
            precision and ``memory_bandwidth`` [byte/s], both with that many threads, and ``cache`` [byte], where they
            are given both for it and for known platforms.

        Returns
        -------
        Estimate
            Its interval covers the errors of leave-one-platform-out estimates. `missing` marks it as a guess and names
            the nearest platform.

        Raises
        ------
        InvalidValueError
            If a fact is not a positive number, or fewer than three platforms are known.
        """
        self._check_fitted()
        if not math.isfinite(self.unmeasured_spread_):
            raise InvalidValueError(
                f"A platform that was not measured is guessed from three known ones or more. {len(self.platforms_)} "
                "are known."
            )
        require_operators(graph.operators, "The network")
        guess = unmeasured.Unmeasured.of(platform, self.platforms_)
        value = float(guess.latencies(predict_terms(self.members_, [encode_graph(graph)]))[0])
        factor = math.exp(self.unmeasured_spread_)
        near = self.platforms_[guess.nearest].id
        doubts = [f"not measured on {platform.id}: guessed from {near}"]
        doubts += precision_remarks([item.op for item in graph.operators], platform.precision)
        doubts += [f"no known platform has the fact {name}: it does not count" for name in guess.idle]
        return Estimate(value, value / factor, value * factor, tuple(doubts))

    def explain(self, graph: Graph, platform: Platform | str | None = None) -> list[OperatorCost]:
        """Attribute the predicted latency to operators; their costs sum to it, up to the overhead of a run.

        Returns
        -------
        list of OperatorCost
            In the order of the graph.
        """
        require_operators(graph.operators, "The network")
        number = self._number(platform)
        latencies, costs = self._costs(encode_graph(graph))
        whole, seconds = float(latencies[number]), costs[:, number]
        return [
            OperatorCost(item.name, item.op.op_key, float(cost), float(cost / whole), item.op.kind in self.kinds_)
            for item, cost in zip(graph.operators, seconds, strict=True)
        ]

    def adapt(
        self, networks: Sequence[MeasuredNetwork], watch: Callable[[int, int], None] | None = None
    ) -> GraphPredictor:
        """Add a platform from a few networks, or retrain a known one.

        The operator encoding stays fixed. Training starts from the platform with the most nearly proportional
        latencies and is regularised towards it, with a strength chosen by cross-validation. Where none is nearly
        proportional, it starts from rates fitted to the networks, without corrections.

        Parameters
        ----------
        networks : sequence of MeasuredNetwork
            Networks of one platform; `suggest` selects the most informative ones. The facts of the platform have no
            effect on what is learned; `guess` compares other platforms with them.
        watch : callable, optional
            Called after every graph network with the number finished and their total.

        Returns
        -------
        GraphPredictor
            A new predictor. This one is not changed.

        Raises
        ------
        NotFittedError
            Before `fit`.
        InvalidValueError
            If there are fewer than 5 networks, they are of several platforms, or two latencies of one network disagree.
        """
        self._check_fitted()
        data = Measurements.of(check_networks(networks))
        return self._with(
            self.get_params(), add_platform(self._learned, data, self.confidence, self.random_state, watch)
        )

    def suggest(self, graphs: Sequence[Graph], count: int) -> list[int]:
        """Choose the networks that are jointly most informative about a new platform.

        Parameters
        ----------
        graphs : sequence of Graph
            Candidate networks.
        count : int
            Number of networks to choose.

        Returns
        -------
        list of int
            Indices into `graphs`, the most informative first.
        """
        self._check_fitted()
        member = self.members_[0]
        known = transfer.KnownNetworks(member, Examples.unmeasured([encode_graph(graph) for graph in graphs]))
        heads = [transfer.Head.of(member, number) for number in range(len(self.platforms_))]
        return transfer.most_telling(np.hstack([known.directions(head) for head in heads]), count)

    def save(self, path: str | Path) -> Path:
        """Write the predictor to a file: weights and JSON in the safetensors format, which cannot hold code.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._check_fitted()
        return write_predictor(self.get_params(), self._learned, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> GraphPredictor:
        """Read a predictor from its file.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of a newer version.
        """
        return cls._with(*read_predictor(Path(path)))

    @classmethod
    def _with(cls, settings: Mapping[str, Any], learned: LearnedGraphs) -> GraphPredictor:
        found = cls(**settings)
        for name in _LEARNED:
            setattr(found, f"{name}_", getattr(learned, name))
        return found

    @property
    def _learned(self) -> LearnedGraphs:
        return LearnedGraphs(**{name: getattr(self, f"{name}_") for name in _LEARNED})

    def _costs(self, graph: EncodedGraph) -> tuple[Array, Array]:
        """Return the latencies of a network, and the costs of its operators, as `predict_operators` does."""
        found = predict_operators(self.members_, graph)
        with np.errstate(divide="ignore"):
            is_plausible = np.abs(np.log(found[0])) < _LARGEST_LOGARITHM
        if not is_plausible.all():
            raise InvalidValueError(
                "The graph predictor gives no finite latency of this network. Its weights may be damaged: fit it again "
                "with 'nni-latency learn graph'."
            )
        return found

    @property
    def _settings(self) -> Settings:
        names = [field.name for field in fields(Settings) if field.name != "seed"]
        return Settings(**{name: getattr(self, name) for name in names}, seed=1000 * self.random_state)

    def platform(self, platform: Platform | str | None = None) -> Platform:
        """Return one of `platforms_` by its id; without an id, the only one.

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownNameError
            If the platform is not one of `platforms_`.
        """
        return self.platforms_[self._number(platform)]

    def _number(self, platform: Platform | str | None) -> int:
        """Return the index of a platform."""
        self._check_fitted()
        ids = [item.id for item in self.platforms_]
        if platform is None and len(ids) == 1:
            return 0
        name = platform.id if isinstance(platform, Platform) else platform
        if name not in ids:
            raise UnknownNameError.of("platform", name or "", ids)
        return ids.index(name)

    def _check_fitted(self) -> None:
        if not hasattr(self, "members_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("This GraphPredictor is not fitted yet. Call 'fit' before it predicts.")
