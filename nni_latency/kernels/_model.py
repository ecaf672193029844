# SPDX-License-Identifier: Apache-2.0
"""Models of kernel latency: features, candidate models, and their cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._layers import ACTIVATIONS
from nni_latency.operators import Features, OpSpec, work_of
from nni_latency.regression import Process, Rows, Trees, corrected, draw_folds, held_out, proportional
from nni_latency.units import number_of

#: Vector widths; work is padded to a multiple of one of these.
LANES = (4, 8, 16, 32)

#: Sizes along which vectors and tiles are laid out, and the area of the output.
_PADDED = ("CIN", "COUT", "AREA", "CHANNELS", "INNER", "COLUMNS", "TOKENS")

#: Sizes that determine a runtime's choice of algorithm: in ONNX Runtime a depthwise convolution takes as little as a
#: tenth if its channels are a multiple of 4, because it then runs in a special layout.
_ALIGNED = ("CIN", "COUT", "CHANNELS", "INNER", "COLUMNS")

#: Activations with a cost even in registers: those with an exponential, and those of several steps.
_COSTLY = (frozenset(("silu", "gelu", "sigmoid")), frozenset(("hswish", "hsigmoid")))

#: Size of the cache of features.
_REMEMBERED = 2**15

Array = NDArray[np.float64]

#: Lower bound of a prediction [s].
_LEAST = 1e-9

#: Lower bound of the constant term, as a share of the shortest time.
_LEAST_CONSTANT = 0.05

#: Candidate models: nn-Meter's forest, and models of the logarithm of the ratio of the time to a linear function of the
#: work.
CANDIDATES = ("forest", "boosting", "process", "blend")

#: Number of trees of a forest, and of boosting.
_N_FOREST, _N_BOOSTING = 50, 300


@dataclass(frozen=True)
class KernelModel:
    """Fitted model of the kernels of one group. Immutable.

    Parameters
    ----------
    name : str
        One of `CANDIDATES`.
    base : tuple of float or None
        Seconds per term of the work; None for a forest, which predicts seconds directly.
    trees : Trees or None
        For a forest, predicts seconds from nn-Meter's features; otherwise the logarithm of the ratio to the base, from
        physical features.
    process : Process or None
        Gaussian process of the same target. If there are both, their logarithms are averaged.
    """

    name: str
    base: Annotated[
        tuple[float, ...] | None, Field(description="seconds by term of the work; null for a forest of seconds")
    ] = None
    trees: Trees | None = None
    process: Process | None = None

    __pydantic_config__ = RECORD

    def predict(self, table: FeatureTable, kernels: Sequence[Kernel]) -> Array:
        """Return the latency of every kernel [s], (n,)."""
        if self.base is None:
            assert self.trees is not None
            return np.maximum(self.trees.predict(table.plain(kernels)), _LEAST)
        parts = [part for part in (self.trees, self.process) if part is not None]
        expected = table.terms(kernels) @ np.array(self.base)
        return np.maximum(corrected(expected, parts, table.physical(kernels)), _LEAST)

    def check(self, table: FeatureTable) -> KernelModel:
        """Return the model if it matches the features of a group.

        Raises
        ------
        InvalidValueError
            If it does not.
        """
        if self.trees is None and (self.process is None or self.base is None):
            raise InvalidValueError(f"The model {self.name!r} has neither trees nor a process over a base.")
        sample = _any_kernel(table)
        n_features = len((table.plain if self.base is None else table.physical)([sample])[0])
        if self.trees is not None:
            self.trees.check(n_features)
        if self.process is not None and len(self.process.centre) != n_features:
            raise InvalidValueError(
                f"The process has {number_of(len(self.process.centre), 'feature')}, the group {n_features}."
            )
        if self.base is not None and len(self.base) != table.terms([sample]).shape[1]:
            raise InvalidValueError(
                f"The base has {number_of(len(self.base), 'term')}, the group {table.terms([sample]).shape[1]}."
            )
        return self


def _any_kernel(table: FeatureTable) -> Kernel:
    return next(iter(table.kinds.values())).snap({})


def fit_model(name: str, table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, seed: int) -> KernelModel:
    """Fit one of `CANDIDATES`."""
    if name == "forest":
        forest = _forest(seed).fit(table.plain(kernels), seconds)
        return KernelModel(name, None, Trees.of_forest(forest))
    terms = table.terms(kernels)
    base = fit_base(terms, seconds)
    features, targets = table.physical(kernels), np.log(seconds) - np.log(terms @ base)
    trees = process = None
    if name in ("boosting", "blend"):
        trees = Trees.of_boosting(_boosting(seed, len(kernels)).fit(features, targets))
    if name in ("process", "blend"):
        process = Process.fit(features, targets)
    return KernelModel(name, tuple(base.tolist()), trees, process)


def _forest(seed: int) -> Any:
    return RandomForestRegressor(n_estimators=_N_FOREST, random_state=seed)


def _boosting(seed: int, count: int) -> Any:
    return GradientBoostingRegressor(
        # Absolute error, because disturbed measurements are outliers.
        loss="absolute_error",
        n_estimators=_N_BOOSTING,
        learning_rate=0.06,
        max_depth=5,
        min_samples_leaf=min(3, max(1, count // 20)),
        subsample=0.7,
        max_features=0.5,
        random_state=seed,
    )


def fit_base(terms: Array, seconds: Array) -> Array:
    """Fit seconds per term, nonnegative and with a positive constant, so that ratios are near 1."""
    return proportional(terms, seconds, _LEAST_CONSTANT)


def predict_held_out(
    name: str, table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, *, folds: int, seed: int
) -> Array:
    """Predict every kernel by a model that was fitted without it, (n,) [s]."""

    def fit(known: Rows) -> Callable[[Rows], Array]:
        model = fit_model(name, table, [kernels[place] for place in known], seconds[known], seed)
        return lambda unknown: model.predict(table, [kernels[place] for place in unknown])

    return held_out(len(seconds), draw_folds(range(len(seconds)), folds, seed), fit)


def disagreement(table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, seed: int) -> Callable[..., Array]:
    """Return a function that scores how informative kernels are: the disagreement of the trees of a forest, times the
    square root of the predicted time, a compromise between relative error and contribution to a network.
    """  # noqa: D205 - one sentence
    terms = table.terms(kernels)
    base = fit_base(terms, seconds)
    forest = RandomForestRegressor(n_estimators=30, min_samples_leaf=2, max_features=0.5, random_state=seed)
    forest.fit(table.physical(kernels), np.log(seconds) - np.log(terms @ base))

    def worth(candidates: Sequence[Kernel]) -> Array:
        features = table.physical(candidates).astype(np.float32)
        answers = np.array([tree.predict(features) for tree in forest.estimators_])
        expected = table.terms(candidates) @ base * np.exp(answers.mean(axis=0))
        return np.asarray(answers.std(axis=0) * np.sqrt(expected))

    return worth


class FeatureTable:
    """Computes features of the kernels of one group.

    Parameters
    ----------
    kinds : mapping of str to KernelType
        The types of the group, by name.
    activations : sequence of str, optional
        Activations with a separate feature; by default all.
    """

    def __init__(
        self,
        kinds: Mapping[str, KernelType],
        activations: Sequence[str] = tuple(ACTIVATIONS),
    ) -> None:
        self.kinds, self.activations = dict(kinds), tuple(activations)
        names = dict.fromkeys(name for kind in kinds.values() for name in kind.domains)
        self.names = tuple(names)
        self._known: dict[Kernel, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {}

    def plain(self, kernels: Sequence[Kernel]) -> Array:
        """Return nn-Meter's features, (n_kernels, n_features): configuration, FLOPs and parameters."""
        return np.array([self._described(kernel)[0] for kernel in kernels])

    def terms(self, kernels: Sequence[Kernel]) -> Array:
        """Return the terms of a kernel's cost, (n_kernels, n_terms); the first is 1."""
        return np.array([self._described(kernel)[1] for kernel in kernels])

    def physical(self, kernels: Sequence[Kernel]) -> Array:
        """Return features that describe the load of the machine, (n_kernels, n_features)."""
        return np.array([self._described(kernel)[2] for kernel in kernels])

    def _described(self, kernel: Kernel) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Return plain features, terms and physical features; cached."""
        found = self._known.get(kernel)
        if found is None:
            found = self._describe(kernel)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[kernel] = found
        return found

    def _describe(self, kernel: Kernel) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        ops, words = self.kinds[kernel.kind].ops(kernel), set(kernel.kind.split("_"))
        counted = [work_of(op)[0] for op in ops]
        main, whole = max(counted, key=lambda item: item.flops), sum(counted, Features())
        sizes = kernel.sizes
        plain = (*(float(sizes.get(name, 0)) for name in self.names), float(whole.flops), float(whole.params))
        padded = _padded_flops(sizes, ops[0], main.flops)
        # A fused kernel reads its first input and writes its last output.
        moved = float(counted[0].inputs + counted[-1].outputs)
        every = float(sum(item.inputs + item.outputs for item in counted))
        share = 1.0 if "convtranspose" in words else _share_inside(sizes)
        costly = (float(counted[-1].outputs) * bool(words & names) for names in _COSTLY)
        terms = (1.0, float(main.flops), padded, moved, every, float(whole.params), padded * share, *costly)
        flags = tuple(float(name in words) for name in ("bn", *self.activations))
        logs = tuple(math.log2(1 + value) for value in (*terms[1:], whole.flops - main.flops))
        intensity = math.log2(1 + main.flops) - math.log2(1 + moved + whole.params)
        return plain, terms, (*logs, intensity, *flags, *self._shape_features(sizes))

    def _shape_features(self, sizes: Mapping[str, int]) -> tuple[float, ...]:
        named = {name: sizes.get(name, 0) for name in self.names}
        if "HW" in named:
            named |= _area(sizes)
        found = [math.log2(1 + value) for value in named.values()]
        for name in _PADDED:
            if name in named:
                found += [waste(named[name], lanes) for lanes in LANES]
        found += [float(named[name] % lanes == 0) for name in _ALIGNED if name in named for lanes in LANES[:-1]]
        if "KERNEL_SIZE" in named:
            found += [float(named["KERNEL_SIZE"]), float(_stride(sizes))]
        return tuple(found)


def _share_inside(sizes: Mapping[str, int]) -> float:
    """Return the share of the taps of all windows that lies inside of the image, not in its padding.

    >>> _share_inside({"HW": 2, "KERNEL_SIZE": 5}), round(_share_inside({"LENGTH": 7, "KERNEL_SIZE": 3}), 3)
    (0.16000000000000003, 0.905)
    """
    window, size, stride = sizes.get("KERNEL_SIZE", 1), sizes.get("HW", sizes.get("LENGTH", 0)), _stride(sizes)
    before = (window - 1) // 2
    starts = range(-before, size - before, stride)
    taps = sum(min(start + window, size) - max(start, 0) for start in starts)
    share = taps / (window * len(starts)) if starts else 1.0
    return share**2 if "HW" in sizes else share


def waste(size: int, lanes: int) -> float:
    """Return the relative padding of a size to a multiple of `lanes`.

    >>> waste(17, 16), waste(32, 16)
    (0.8823529411764706, 0.0)
    """
    return -(-size // lanes) * lanes / size - 1 if size else 0.0


def _area(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return side and area of the output feature map."""
    side = -(-sizes.get("HW", 0) // _stride(sizes))
    return {"SIDE": side, "AREA": side * side}


def _stride(sizes: Mapping[str, int]) -> int:
    return sizes.get("STRIDES", sizes.get("POOL_STRIDES", 1))


def _padded_flops(sizes: Mapping[str, int], op: OpSpec, flops: int) -> float:
    """Return the operations with channels padded to whole vectors."""
    factor = math.prod(1 + waste(sizes[name], 16) for name in ("COUT",) if name in sizes)
    if op.get("groups", 1) > 1:
        factor = 1 + waste(sizes.get("CIN", 0), 16)
    return flops * factor
