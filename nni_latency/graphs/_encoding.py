# SPDX-License-Identifier: Apache-2.0
"""Encoding of networks for predictors: features of every operator, and the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._compositions import compose
from nni_latency.graphs._layouts import layouts_of
from nni_latency.graphs._memory_order import FEW_CHANNELS, is_blocked, is_table, moves_elements, out_shape, run_of
from nni_latency.graphs._operator_features import N_AMOUNTS, N_OWN, describe_operator, has_several_factors, name_of
from nni_latency.operators import Graph, OpSpec, TracedOperator, group_of

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

#: Results with more readers are ignored when determining which operators can run in parallel.
_MOST_READERS = 8

#: Bytes of a value, for platforms whose precision is that of the network.
_BYTES = 4

#: Share of the overhead of a run that every output after the first adds; that of networks with states on two runtimes.
_PER_OUTPUT = 0.28

#: Terms of an operator's cost: operations, operations with channels padded to whole vectors, bytes of inputs, outputs
#: and weights, the parts of these outside of near caches, and outside of all caches, calls, inner loops, calls of code
#: that the rest of the network has displaced from caches, operations of sums of products from both ends, and elements
#: that are laid out anew, plainly and in crowded sets of the near cache.
TERMS = (
    *("flops", "padded", "inputs", "outputs", "weights", "far_inputs", "far_outputs", "far_weights"),
    *("distant_inputs", "distant_outputs", "distant_weights", "calls", "loops", "cold_calls"),
    *("outer", "laid_out", "crowded"),
)

#: Seconds per unit of each term on a nominal machine: 50 GFLOP/s, 10 GB/s, a microsecond per call, ten nanoseconds per
#: loop, five more microseconds where all code has been displaced, half a nanosecond per element that is laid out anew,
#: and two where a set of the cache is crowded twice as much as it can be.
_PLAIN = np.array([1 / 50e9, 1 / 50e9, *(9 * [_BYTES / 10e9]), 1e-6, 1e-8, 5e-6, 1 / 50e9, 5e-10, 2e-9])

#: Size in bytes from which a tensor, or what a network moves in a run, no longer fits in a near cache, and in any.
_FAR, _DISTANT = 2**20, 2**25

#: Octaves below the size of the largest cache in which what a network moves displaces weights, and code, from caches;
#: and the most that code can be displaced, relative to a network that moves just that size.
_WEIGHTS_FROM, _CODE_FROM, _COLDEST = 2, 4, 1.25

#: Groups of operators with separate rates; `nni_latency.operators.group_of` names them.
GROUPS = (
    *("dense convolution", "pointwise convolution", "depthwise convolution", "grouped convolution"),
    *("transposed convolution", "matrix product", "attention", "normalisation", "softmax", "reduction", "lookup"),
    *("movement", "max pooling", "average pooling", "other pooling", "global pooling", "elementwise"),
    *("activation of a product", "sum with a product", "normalisation of a product"),
    *("transcendental of a product", "scalar function of a product", "chain behind a product", "chain of elementwise"),
    *("transcendental", "scalar function", "batch normalisation", "instance normalisation"),
    *("product of activations", "copy", "LSTM", "GRU", "recurrent layer", "selection", "local response normalisation"),
    *("nearest interpolation", "linear interpolation", "cubic interpolation", "Fourier transform"),
    *("quantisation", "branch"),
    # Many times as slow as other activations where it is not fused.
    "parametric activation",
    # Not computed in blocks of channels: up to ten times as slow where depthwise, and once more as slow with several
    # outputs for each channel.
    *("unblocked convolution", "unblocked depthwise convolution", "multiplied depthwise convolution"),
    *("unblocked grouped convolution", "scatter", "repetition", "repetition in rows"),
    # The first convolution of a picture, which runtimes compute by other code, up to ten times as slow.
    "convolution of few channels",
    # OpenVINO multiplies the first and the last factor first.
    "sum of products",
    # One place at a time, of a picture that is read here and there.
    "sampling",
    # ONNX Runtime moves single elements where no dimension can be moved by itself, ten times as slowly.
    *("permutation", "permuted softmax"),
    # OpenVINO computes indices of maxima a hundred times as slowly as maxima.
    "max pooling with indices",
    *("table", "softmax across rows", "reduction across rows", "sorting"),
    # ONNX Runtime has one kernel for both, up to fifteen times as slow as two.
    "normalisation of a sum",
    # OpenVINO has two kernels: the one with an activation reads weights at half the speed.
    "activated matrix product",
)

#: Groups that have the rates of another one where too few of their operators are known.
RELATED = {
    "unblocked convolution": "dense convolution",
    "unblocked depthwise convolution": "depthwise convolution",
    "unblocked grouped convolution": "grouped convolution",
    "convolution of few channels": "dense convolution",
    "multiplied depthwise convolution": "unblocked depthwise convolution",
    "max pooling with indices": "max pooling",
    "sum of products": "product of activations",
    "sampling": "linear interpolation",
    "permutation": "copy",
    "permuted softmax": "softmax across rows",
    "scatter": "lookup",
    "repetition": "movement",
    "repetition in rows": "repetition",
    "table": "lookup",
    "softmax across rows": "softmax",
    "reduction across rows": "reduction",
    "sorting": "selection",
    "normalisation of a sum": "normalisation",
    "activated matrix product": "matrix product",
}

#: Groups into which an activation can be fused.
_PRODUCTS = frozenset(
    (
        *("dense convolution", "pointwise convolution", "depthwise convolution", "grouped convolution"),
        *("unblocked convolution", "unblocked depthwise convolution", "multiplied depthwise convolution"),
        *("unblocked grouped convolution", "convolution of few channels", "matrix product", "activated matrix product"),
    )
)

#: Groups of operators that some runtimes compute together with the product before them.
_BEHIND_PRODUCTS = frozenset(
    (
        "activation of a product",
        "sum with a product",
        "normalisation of a product",
        "transcendental of a product",
        "scalar function of a product",
        "chain behind a product",
    )
)

#: Groups that can be fused with what they read.
_FUSIBLE = frozenset(("elementwise", "batch normalisation"))

#: Elementwise operators that are sums or products with constants where they have a single source.
_ARITHMETIC = frozenset(("add", "sub", "mul", "div"))

_ELEMENTWISE = frozenset(("elementwise", "transcendental", "scalar function", "chain of elementwise"))

#: Functions that runtimes compute with vector instructions, and those that some compute value by value: up to thirty
#: times as slowly.
_FUNCTIONS = {
    **dict.fromkeys(("sigmoid", "tanh", "erf", "exp", "silu", "gelu", "pow 2", "pow 3"), "transcendental"),
    **dict.fromkeys(("softplus", "mish", "log", "pow", "pow 0.5", "mod", "elu", "selu", "celu"), "scalar function"),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"), "scalar function"),
    **dict.fromkeys(("asinh", "acosh", "atanh"), "scalar function"),
}

#: Kinds with a separate group.
_OWN_GROUP = {
    "batch_norm": "batch normalisation",
    # Elements change their order, as in a transposition.
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), "copy"),
    "matmul": "product of activations",
    "bmm": "product of activations",
    "copy": "copy",
    "if": "branch",
    "prelu": "parametric activation",
    "scatter": "scatter",
    "repeat": "repetition",
    "max_pool2d with indices": "max pooling with indices",
    "local_response_norm": "local response normalisation",
    "lstm": "LSTM",
    "gru": "GRU",
    **dict.fromkeys(("rnn_tanh", "rnn_relu"), "recurrent layer"),
    **dict.fromkeys(
        ("lp_pool1d", "lp_pool2d", "avg_pool1d", "avg_pool3d", "max_pool1d", "max_pool3d"), "other pooling"
    ),
    **dict.fromkeys(
        (f"adaptive_{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)), "global pooling"
    ),
    **dict.fromkeys(("instance_norm", "group_norm"), "instance normalisation"),
    **dict.fromkeys(("dft", "stft"), "Fourier transform"),
    "interpolate nearest": "nearest interpolation",
    "interpolate bilinear": "linear interpolation",
    "interpolate bicubic": "cubic interpolation",
    "grid_sample": "sampling",
    **dict.fromkeys(("argmax", "argmin", "cumsum"), "selection"),
    **dict.fromkeys(("topk", "sort", "argsort", "unique"), "sorting"),
    **dict.fromkeys(("quantizelinear", "dequantizelinear", "dynamicquantizelinear"), "quantisation"),
}

_TAKEN, _WRITTEN = TERMS.index("inputs"), TERMS.index("outputs")

#: Inputs, outputs and weights.
_MOVED = slice(_TAKEN, _TAKEN + 3)

_EDGE_FEATURES = 10

#: Number of features of an operator and its neighbourhood.
N_FEATURES = N_OWN + _EDGE_FEATURES


@dataclass(frozen=True)
class EncodedGraph:
    """A network encoded for a predictor. No feature depends on an operator's position in the network.

    Parameters
    ----------
    distinct : ndarray of shape (n_distinct, N_FEATURES)
        Logarithms of sizes, and features of edges, each different one once: two thirds of the operators of a network
        repeat others.
    rows : ndarray of shape (n_operators,)
        Index of the features of every operator.
    groups, kinds : ndarray of shape (n_operators,)
        Indices into `GROUPS`, and into `KINDS` plus one; 0 is any other kind.
    terms : ndarray of shape (n_operators, len(TERMS))
        Cost of each term on the nominal machine [s].
    edges : ndarray of shape (2, n_edges)
        From producer to consumer.
    siblings : ndarray of shape (2, n_pairs)
        Pairs of operators that read the same result, in both directions.
    uncounted : tuple of str
        Kinds of operators whose work is unknown: only their shapes are encoded.
    owners : tuple of int
        For every operator, the index of the one whose cost includes it: itself, or the last one of a function that is
        written out.
    overheads : float, default=1.0
        Overhead of a run, relative to that of a network with one output.
    """

    distinct: Floats
    rows: Integers
    groups: Integers
    kinds: Integers
    terms: Floats
    edges: Integers
    siblings: Integers
    uncounted: tuple[str, ...]
    owners: tuple[int, ...]
    overheads: float = 1.0

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def features(self) -> Floats:
        """Features of every operator, (n_operators, N_FEATURES)."""
        return self.distinct[self.rows]


def encode_graph(graph: Graph) -> EncodedGraph:
    """Encode a network for a predictor.

    Parameters
    ----------
    graph : Graph
        A graph, as returned by `nni_latency.operators.trace` and `read_onnx`.

    Returns
    -------
    EncodedGraph

    Examples
    --------
    >>> from nni_latency.operators import OpSpec, chained
    >>> found = encode_graph(chained([OpSpec.of("relu", [(1, 8)]), OpSpec.of("strange", [(1, 8)])]))
    >>> found.features.shape == (2, N_FEATURES), found.edges.tolist(), found.uncounted
    (True, [[0], [1]], ('strange',))
    """
    operators, owners = compose(graph)
    described = [describe_operator(item.op) for item in operators]
    sources = [item.sources for item in operators]
    readers = _readers_of(sources)
    edges = [(source, number) for number, found in enumerate(sources) for source in found]
    amounts = _with_far(np.array([item.amounts for item in described], dtype=np.float64).reshape(-1, N_AMOUNTS))
    layouts = layouts_of(operators, readers, amounts[:, _WRITTEN].tolist())
    anew = np.array([layouts.anew, layouts.crowded]).T
    plain = [_plain_group(item.op) for item in operators]
    own = np.array([item.features for item in described], dtype=np.float32)
    everything = np.full(len(described), np.log2(1 + amounts[:, _MOVED].sum()))
    around = [_read(sources, readers, amounts), everything, layouts.behind, np.log2(1 + anew)]
    features = np.column_stack([own.reshape(len(described), -1), *around])
    distinct, rows = np.unique(features.astype(np.float32), axis=0, return_inverse=True)
    return EncodedGraph(
        distinct=distinct,
        rows=rows.reshape(-1),
        groups=np.array([GROUPS.index(group) for group in _groups(operators, plain, readers)], dtype=np.int64),
        kinds=np.array([item.kind for item in described], dtype=np.int64),
        terms=(np.column_stack([amounts, anew]) * _PLAIN).astype(np.float32),
        edges=_pairs(edges),
        siblings=_pairs(_siblings(readers)),
        uncounted=tuple(dict.fromkeys(item.uncounted for item in described if item.uncounted)),
        owners=tuple(owners),
        overheads=1.0 + _PER_OUTPUT * max(0, len(graph.outputs) - 1),
    )


def _with_far(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace the elements of weights by how many are read, and insert the parts outside of caches before the calls.

    Between two runs of an operator, all that the network moves passes through the caches. The more that is, the more
    weights and code have to be fetched again: a product with one row reads weights at 75 GB/s in a network that moves
    8 MB, and at 22 GB/s in one that moves 32 MB (one core of an EPYC of family 25); a call takes half a microsecond,
    and ten. A recurrent layer reads its own weights again in every step. Inputs and outputs together come from outside
    of all caches from the size of the largest one on; a factor of the root of two below, none does.
    """
    moved, read, counts, outer = amounts[:, _MOVED], amounts[:, 5], amounts[:, 6:8], amounts[:, 8]
    activations, weights = moved[:, :2] * _BYTES, moved[:, 2] * _BYTES
    everything = max(1.0, activations.sum() + weights.sum())
    octaves = np.log2(everything / _DISTANT)
    far = moved * np.minimum(1.0, moved * _BYTES / _FAR)
    again = (read - moved[:, 2]) * np.minimum(1.0, weights / _FAR)
    far[:, 2] = moved[:, 2] * min(1.0, everything / _FAR) + again
    size = np.maximum(activations.sum(axis=1, keepdims=True), 1.0)
    distant = moved * np.clip(1 + 2 * np.log2(size / _DISTANT), 0.0, 1.0)
    distant[:, 2] = moved[:, 2] * np.clip(1 + octaves / _WEIGHTS_FROM, 0.0, 1.0)
    cold = np.minimum(1.0, counts[:, 0]) * np.clip(1 + octaves / _CODE_FROM, 0.0, _COLDEST)
    return np.column_stack([amounts[:, :4], read, far, distant, counts, cold, outer])


def _readers_of(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the operators that read each result; one that reads it twice is there twice."""
    readers: list[list[int]] = [[] for _ in sources]
    for number, found in enumerate(sources):
        for source in found:
            readers[source].append(number)
    return readers


def _groups(operators: Sequence[TracedOperator], plain: Sequence[str], readers: Sequence[Sequence[int]]) -> list[str]:
    """Return the group of every operator; those that a runtime may fuse with their inputs have separate groups."""
    paired = list(zip(operators, _paired(plain, operators, readers), strict=True))
    # What others than elementwise operators read as well, a runtime has to store.
    stored = {source for item, group in paired if group not in _FUSIBLE for source in item.sources}
    groups: list[str] = []
    for item, group in paired:
        before = {groups[source] for source in item.sources if source not in stored} if group in _FUSIBLE else set()
        groups.append(_fused(item, group, before))
    return groups


def _paired(plain: Sequence[str], operators: Sequence[TracedOperator], readers: Sequence[Sequence[int]]) -> list[str]:
    """Give separate groups where one kernel may compute two operators: a normalised sum, an activated product."""
    found = list(plain)
    only = {source: by[0] for source, by in enumerate(readers) if len(by) == 1}
    for source, number in only.items():
        op, behind = operators[source].op, number
        if plain[number] == "normalisation" and op.kind == "add" and op.input_shapes[:1] == op.input_shapes[1:]:
            found[number] = "normalisation of a sum"
        if operators[number].op.kind == "add" and len(operators[number].sources) == 1:
            # The sum with a bias.
            behind = only.get(number, number)
        is_activation = plain[behind] == "elementwise" and operators[behind].op.kind not in _ARITHMETIC
        if plain[source] == "matrix product" and is_activation and len(operators[behind].sources) == 1:
            found[source] = "activated matrix product"
    return found


def _plain_group(op: OpSpec) -> str:
    """Return the group of an operator by itself."""
    if has_several_factors(op):
        return "sum of products"
    group = _OWN_GROUP.get(name_of(op), group_of(op))
    if op.kind in ("conv1d", "conv2d", "conv3d") and not is_blocked(op):
        return _unblocked(op, group)
    if group in ("dense convolution", "pointwise convolution") and op.input_shapes[0][1] < FEW_CHANNELS:
        return "convolution of few channels"
    if group == "repetition" and op.input_shapes and op.input_shapes[0][-1:] != out_shape(op)[-1:]:
        return "repetition in rows"
    if moves_elements(op):
        return "permuted softmax" if group == "softmax" else "permutation"
    if group in ("softmax", "reduction") and run_of(op) > 1:
        return f"{group} across rows"
    if group == "lookup" and is_table(op):
        return "table"
    return group if group in GROUPS else "elementwise"


def _unblocked(op: OpSpec, group: str) -> str:
    """Return the group of a convolution that is not computed in blocks of channels."""
    if group == "depthwise convolution" and op.get("out_channels") != op.input_shapes[0][1]:
        return "multiplied depthwise convolution"
    return f"unblocked {group}" if f"unblocked {group}" in GROUPS else "unblocked convolution"


def _fused(item: TracedOperator, group: str, before: set[str]) -> str:
    """Return the group of an operator behind operators of other groups that it can be fused with."""
    if not before & (_PRODUCTS | _BEHIND_PRODUCTS):
        if group != "elementwise":
            return group
        return _FUNCTIONS.get(name_of(item.op), "chain of elementwise" if before & _ELEMENTWISE else group)
    if group == "batch normalisation":
        return "normalisation of a product" if before & _PRODUCTS else group
    if name_of(item.op) in _FUNCTIONS:
        return f"{_FUNCTIONS[name_of(item.op)]} of a product"
    if not before & (_PRODUCTS | {"normalisation of a product"}):
        return "chain behind a product"
    return "activation of a product" if len(item.sources) == 1 else "sum with a product"


def _read(
    sources: Sequence[Sequence[int]], readers: Sequence[Sequence[int]], amounts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return features of edges: numbers of inputs and readers, and ratios of sizes.

    The input of an operator is smaller than its producers' outputs where it reads a part, such as after a split.
    """
    written = amounts[:, _WRITTEN]
    given = np.array([sum(written[source] for source in found) for found in sources])
    largest = np.array([max((written[source] for source in found), default=0.0) for found in sources])
    taken, output = amounts[:, _TAKEN], amounts[:, _WRITTEN]
    counts = np.array([len(found) for found in sources], dtype=np.float64)
    read_by = np.array([len(found) for found in readers], dtype=np.float64)
    part = np.where(counts > 0, np.log2((1 + taken) / (1 + given)), 0.0)
    return np.column_stack(
        [
            np.minimum(counts, _MOST_READERS),
            np.minimum(read_by, _MOST_READERS),
            read_by == 1,
            counts == 0,
            np.clip(part, -6, 6),
            np.where(counts > 0, np.clip(np.log2((1 + output) / (1 + largest)), -6, 6), 0.0),
        ]
    )


def _siblings(readers: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    few = (found for found in readers if len(found) <= _MOST_READERS)
    return sorted({(one, other) for found in few for one in found for other in found if one != other})


def _pairs(pairs: Sequence[tuple[int, int]]) -> Integers:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
