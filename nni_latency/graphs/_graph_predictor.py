"""`GraphPredictor`: latencies of networks of any family, on every platform it has learned; and its estimator."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import nni_latency.graphs._graph_transfer as transfer
import nni_latency.graphs._unmeasured as unmeasured
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.files import split_sources
from nni_latency.graphs._encoding import EncodedGraph, encode_graph
from nni_latency.graphs._examples import Examples, Measurements, spreads_of
from nni_latency.graphs._graph_document import LearnedGraphs, read_predictor, write_predictor
from nni_latency.graphs._graph_learning import Fitting, Settings, with_trees
from nni_latency.graphs._graph_network import OperatorCost, predict_members, predict_operators, predict_terms
from nni_latency.graphs._graph_transfer import add_platform
from nni_latency.graphs._measured_network import MeasuredNetwork, check_networks
from nni_latency.graphs._onnx_form import graph_of
from nni_latency.graphs._operator_trees import PlatformTrees, describe
from nni_latency.graphs._shipped import PRETRAINED, find_predictor
from nni_latency.operators import Graph, precision_remarks, require_operators
from nni_latency.platforms import Platform
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: By how much an interval widens for every share of the cost that falls to kinds never seen, as a logarithm.
_UNSEEN = math.log(3)

#: Logarithms of latencies that no predictor gives unless it is damaged.
_LARGEST_LOGARITHM = 100

#: What is learned; the attributes have a "_" at the end.
_LEARNED = tuple(field.name for field in fields(LearnedGraphs))


class Parametrized:
    """Base of an estimator whose ``__init__`` stores its keyword arguments under their names.

    It has what `sklearn.base.BaseEstimator` offers to `sklearn.base.clone` and to everything that calls estimators.
    Importing that class takes a second, which is more than a prediction takes.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool
            Accepted because scikit-learn passes it; no parameter is an estimator itself.
        """
        del deep
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Raises
        ------
        InvalidValueError
            If there is no parameter of a name.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InvalidValueError(
                    f"{type(self).__name__} has no parameter {name!r}. Available: {', '.join(known)}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Name the parameters that differ from their defaults."""
        usual = {name: item.default for name, item in inspect.signature(type(self)).parameters.items()}
        changed = (f"{name}={value!r}" for name, value in self.get_params().items() if value != usual[name])
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn 1.6 and later ask of an estimator: what it usually assumes."""
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)


class GraphPredictor(Parametrized):
    """Predicts latencies of networks from their operators and who reads whose result, on all platforms at once.

    Every operator has a cost of its own on every platform. It is what the operator computes and moves, at rates that
    are learned for each group of operators, times a correction that a graph network learns and that is bounded. A
    network costs their sum, and what a run adds. So it tells which operators cost, it holds for depths that it has
    never seen, and families that it has never seen cannot be far from what they compute and move.

    Where the times of kernels are known, boosted trees learn the same correction for each operator from what is next to
    it, and the answer is the geometric mean of the graph networks and the trees.

    Parameters
    ----------
    hidden, n_layers, dropout : int, int, float
        Width of the graph network, rounds of message passing, and the share of numbers left out while it learns.
    restraint : float
        How strongly corrections are held to 1.
    epochs : int
        Times that every network is seen at most; how often is found on families that are held out.
    batch_size : int
        Networks of a step.
    learning_rate, weight_decay : float
        Of AdamW.
    n_folds : int
        Groups of families that are held out in turn, to find the number of epochs and the widths of the intervals.
    n_members : int
        Graph networks that learn from all families; their geometric mean is the answer.
    confidence : float
        Share of the networks of families never seen that the intervals are meant to hold.
    random_state : int
        Of everything random.
    n_jobs : int, optional
        Processes that learn side by side, as scikit-learn takes it; they learn the same as one does.

    Attributes
    ----------
    platforms_ : tuple of Platform
        What it has learned.
    members_ : list of GraphNetwork
        The graph networks.
    trees_ : tuple of OperatorTrees or None
        By platform, trees over operators; None where the kernels of too few networks were timed.
    epochs_ : int
        Times that every network was seen.
    spreads_ : ndarray of shape (n_platforms,)
        Half the width of an interval, as a logarithm.
    held_out_ : ndarray of shape (n_networks, n_platforms)
        Logarithms of predicted over measured latencies of families held out, and of networks held out where a platform
        was added later; NaN where nothing was measured.
    latencies_ : ndarray of shape (n_networks, n_platforms)
        The measured ones of networks that were held out [s]; NaN for others.
    unmeasured_spread_ : float
        The same for a platform that nobody measured: found by leaving out one platform after another; infinite where
        fewer than three are known.
    counts_ : ndarray of shape (n_platforms,)
        Networks that were measured.
    families_, kinds_ : tuple of str
        Families, and kinds of operators, that it has learned from.

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
        hidden: int = 48,
        n_layers: int = 2,
        dropout: float = 0.1,
        restraint: float = 0.1,
        epochs: int = 40,
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
        """Learn from measured networks.

        Parameters
        ----------
        networks : sequence of MeasuredNetwork
            Of one platform or several.
        watch : callable, optional
            Told how many epochs are done, and how many there will be at most: after each of them, or after each graph
            network where several learn side by side.

        Returns
        -------
        GraphPredictor
            This one.

        Raises
        ------
        InvalidValueError
            If there are too few networks, two latencies of one network disagree, or a fact is no positive number.
        """
        data = Measurements.of(check_networks(networks))
        unmeasured.check_facts(data.platforms)
        if len(data.examples.graphs) < 2 * self.n_folds:
            raise InvalidValueError(
                f"A graph predictor needs at least {number_of(2 * self.n_folds, 'network')}. Got "
                f"{len(data.examples.graphs)}."
            )
        total = self.epochs * (self.n_folds + self.n_members)
        done = 0

        def told(epochs: int = 1) -> None:
            nonlocal done
            done += epochs
            if watch is not None:
                watch(done, total)

        fitting = Fitting(self._settings, self.n_jobs, told)
        self.held_out_, self.epochs_ = fitting.hold_out(data, self.n_folds, self.random_state)
        self.latencies_ = np.where(np.isnan(self.held_out_), np.nan, data.examples.latencies)
        total = done + self.epochs_ * self.n_members
        learned = fitting.members(data.examples, self.n_members, self.epochs_)
        self.members_ = [item.network for item in learned]
        self.trees_ = fitting.trees(data.examples)
        self.platforms_, self.families_, self.kinds_ = data.platforms, data.families, data.kinds
        self.counts_ = (~np.isnan(data.examples.latencies)).sum(0)
        self.spreads_ = spreads_of(self.held_out_, data.family_of, self.confidence)
        self.unmeasured_spread_ = unmeasured.spread(self.members_, data, self.confidence)
        return self

    def predict(self, graphs: Sequence[Graph], platform: Platform | str | None = None) -> Array:
        """Predict latencies.

        Parameters
        ----------
        graphs : sequence of Graph
            Networks.
        platform : Platform or str, optional
            Where they run; may be left out where it knows one platform alone.

        Returns
        -------
        ndarray of shape (n_graphs,)
            Seconds.

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownNameError
            If it has not learned the platform.
        """
        number = self._number(platform)
        trees = tuple(item if place == number else None for place, item in enumerate(self.trees_))
        return self._predict([encode_graph(graph) for graph in graphs], trees)[:, number]

    def predict_all(self, graphs: Sequence[EncodedGraph]) -> Array:
        """Predict latencies on all platforms [s], (n_graphs, n_platforms)."""
        self._check_fitted()
        return self._predict(graphs, self.trees_)

    def estimate_platforms(self, graph: Graph) -> dict[str, Estimate]:
        """Predict the latency of a network on every platform, by the id of the platform.

        An interval is wider where operators cost that it has never learned from, or something of the network had to be
        assumed, or is in another precision than the platform; `missing` names all of it.
        """
        self._check_fitted()
        require_operators(graph.operators, "The network")
        encoded = encode_graph(graph)
        values = self.predict_all([encoded])[0]
        unseen = [item.op.kind not in self.kinds_ for item in graph.operators]
        new = dict.fromkeys(item.op.kind for item, is_new in zip(graph.operators, unseen, strict=True) if is_new)
        named: tuple[str, ...] = (f"operators never learned from: {', '.join(new)}",) if new else ()
        shares = self._costs(encoded, values)[unseen].sum(0) / values if any(unseen) else np.zeros(len(values))
        named += graph.remarks
        ops = [item.op for item in graph.operators]
        told = {item: precision_remarks(ops, item) for item in {platform.precision for platform in self.platforms_}}
        found = {}
        for number, platform in enumerate(self.platforms_):
            missing = (*named, *told[platform.precision])
            is_doubtful = any(unseen) or bool(missing)
            factor = math.exp(self.spreads_[number] + _UNSEEN * float(shares[number] + 0.1 * is_doubtful))
            value = float(values[number])
            found[platform.id] = Estimate(value, value / factor, value * factor, missing)
        return found

    def guess(self, graph: Graph, platform: Platform) -> Estimate:
        """Guess the latency on a platform that nobody measured, from its facts and the platforms that are most like it.

        Parameters
        ----------
        graph : Graph
            The network.
        platform : Platform
            Its device, runtime, precision and threads count. So do the facts ``peak_flops`` [FLOP/s] of single
            precision and ``memory_bandwidth`` [byte/s], both with that many threads, and ``cache`` [byte], where they
            are known of it and of platforms that were learned.

        Returns
        -------
        Estimate
            Its interval is as wide as guesses were off when known platforms were left out. `missing` says that it is a
            guess, and what from.

        Raises
        ------
        InvalidValueError
            If a fact is no positive number, or fewer than three platforms are known.
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
        """Tell what every operator costs; they add up to the prediction, but for what a run adds.

        Returns
        -------
        list of OperatorCost
            In the order of the graph.
        """
        require_operators(graph.operators, "The network")
        number = self._number(platform)
        encoded = encode_graph(graph)
        values = self.predict_all([encoded])[0]
        whole, seconds = float(values[number]), self._costs(encoded, values)[:, number]
        return [
            OperatorCost(item.name, item.op.op_key, float(cost), float(cost / whole), item.op.kind in self.kinds_)
            for item, cost in zip(graph.operators, seconds, strict=True)
        ]

    def adapt(
        self, networks: Sequence[MeasuredNetwork], watch: Callable[[int, int], None] | None = None
    ) -> GraphPredictor:
        """Learn one more platform from a few networks, or one that it knows anew.

        What it knows of operators stays as it is. What is learned starts from the platform whose latencies are the most
        nearly proportional, and is held to that as strongly as cross-validation says. From sixteen networks, trees over
        operators are taken over from a known platform, or learn on from there by the times of kernels, whichever
        cross-validation says; from a hundred networks whose kernels were timed, they may be learned anew.

        Parameters
        ----------
        networks : sequence of MeasuredNetwork
            Of one platform; `suggest` says which tell the most.
        watch : callable, optional
            Told after every graph network how many are done, and how many there are.

        Returns
        -------
        GraphPredictor
            A new one. This one stays as it is.

        Raises
        ------
        NotFittedError
            Before `fit`.
        InvalidValueError
            If there are fewer than 5 networks, of several platforms, or two latencies of one network disagree.
        """
        self._check_fitted()
        data = Measurements.of(check_networks(networks))
        return self._with(
            self.get_params(), add_platform(self._learned, data, self.confidence, self.random_state, watch)
        )

    def suggest(self, graphs: Sequence[Graph], count: int) -> list[int]:
        """Choose networks to measure on a platform that it does not know: those that together tell the most about it.

        Parameters
        ----------
        graphs : sequence of Graph
            Networks that could be measured.
        count : int
            How many are chosen.

        Returns
        -------
        list of int
            Their numbers, the most telling first.
        """
        self._check_fitted()
        member = self.members_[0]
        known = transfer.KnownNetworks(member, Examples.unmeasured([encode_graph(graph) for graph in graphs]))
        heads = [transfer.Head.of(member, number) for number in range(len(self.platforms_))]
        return transfer.most_telling(np.hstack([known.directions(head) for head in heads]), count)

    def save(self, path: str | Path) -> Path:
        """Write it to a file: weights and JSON in the format safetensors, which cannot hold code.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self._check_fitted()
        return write_predictor(self.get_params(), self._learned, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> GraphPredictor:
        """Read it from its file.

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

    def _predict(self, graphs: Sequence[EncodedGraph], trees: PlatformTrees) -> Array:
        """Predict latencies [s], (n_graphs, n_platforms), by the graph networks and some of the trees."""
        logarithms = np.log(predict_members(self.members_, graphs)).mean(axis=0)
        logarithms = with_trees(logarithms, trees, graphs)
        if not (np.abs(logarithms) < _LARGEST_LOGARITHM).all():
            raise InvalidValueError(
                "The graph predictor gives no finite latency of this network. Its weights may be damaged: fit it again "
                "with 'nni-latency learn graph'."
            )
        return np.exp(logarithms)

    @property
    def _settings(self) -> Settings:
        return Settings(
            self.hidden, self.n_layers, self.dropout, self.epochs, self.batch_size, self.learning_rate,
            self.weight_decay, self.restraint, 1000 * self.random_state,
        )  # fmt: skip

    def _costs(self, graph: EncodedGraph, values: Array) -> Array:
        """Return what operators cost, (n_operators, n_platforms) [s], so that they add up to `values` with the rest."""
        costs, runs = predict_operators(self.members_, graph)
        described = describe(graph)
        for number, trees in enumerate(self.trees_):
            if trees is not None:
                costs[:, number] = (costs[:, number] + trees.costs(graph, described)) / 2
                runs[number] = (runs[number] + trees.run) / 2
        scale: Array = (values / (costs.sum(0) + runs)) * costs
        return scale

    def platform(self, platform: Platform | str | None = None) -> Platform:
        """Return one of its platforms, by its id; by default the one that it knows, if it knows one alone.

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownNameError
            If it does not know the platform.
        """
        return self.platforms_[self._number(platform)]

    def _number(self, platform: Platform | str | None) -> int:
        """Return the number of a platform."""
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


class GraphNetworkEstimator(NetworkEstimator):
    """Network-based: a graph network predicts the latency of whole networks, operator by operator.

    Parameters
    ----------
    predictor : GraphPredictor
        What has learned.
    platform : Platform
        One of its platforms.
    """

    metric = "latency"
    reads_onnx = True

    def __init__(self, predictor: GraphPredictor, platform: Platform) -> None:
        self.predictor, self.platform = predictor, platform

    @classmethod
    def of(cls, argument: str) -> GraphNetworkEstimator:
        """Make it of ``PREDICTOR,PLATFORM``, the argument of ``graph-network``.

        Parameters
        ----------
        argument : str
            A file of ``nni-latency learn graph``, or ``pretrained`` for the one that ships, which is also what an empty
            argument means; and the id of one of its platforms, which may be left out where there is one alone.

        Raises
        ------
        InvalidValueError
            If it knows several platforms, and none is named.
        UnknownNameError
            If the predictor does not know the platform.
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
            A module, which is exported to ONNX, because that is what was learned from; an ONNX file; or a graph.
        example_inputs : Tensor or tuple of Tensor
            What it takes; for an ONNX file only where it leaves sizes open.

        Raises
        ------
        InvalidValueError
            If the model cannot be read or exported, or model and inputs do not fit each other.
        MissingDependencyError
            If the package onnx does not load.
        """
        return self.predictor.estimate_platforms(graph_of(model, example_inputs))[self.platform.id]
