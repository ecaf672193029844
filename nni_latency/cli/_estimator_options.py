# SPDX-License-Identifier: Apache-2.0
"""The options that choose an estimator or a predictor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import click

import nni_latency.documents as documents
import nni_latency.estimators as estimators
import nni_latency.graphs as graphs
import nni_latency.loading as loading
from nni_latency.cli._measuring import DeviceOptions, make_runtime, runtime_option
from nni_latency.cli._option import option
from nni_latency.errors import UnknownNameError
from nni_latency.platforms import Platform, check_same_platform

#: What names an estimator in help texts.
ESTIMATOR = "FILE|NAME[:ARGUMENT]"

#: The format of a predictor that knows several platforms.
_GRAPH_PREDICTOR = "nni_latency.graph_predictor"

#: The option that names an estimator, the same in every command.
ESTIMATOR_FLAGS = ("-e", "--estimator", "--latency-estimator")

missing_option = partial(
    option,
    "What a table does about what has no entry: stop with an error, use the nearest entry, or predict it from others.  "
    "[default: error; predict for a table of operators]",
    type=click.Choice(("error", "nearest", "predict")),
)


@dataclass(frozen=True)
class EstimatorOptions:
    """The options that choose an estimator."""

    latency_estimator: str = option(
        "A saved table or predictor, a shipped table, or a registered estimator.",
        *ESTIMATOR_FLAGS,
        required=True,
        metavar=ESTIMATOR,
    )
    missing: Literal["error", "nearest", "predict"] | None = missing_option(rare=True)
    device: str | None = option("Require an estimator for this device, such as cpu, cuda or ssh:USER@HOST.")
    runtime_options: tuple[tuple[str, Any], ...] = runtime_option(rare=True)

    def load(self) -> estimators.Estimator:
        """Load the estimator.

        Raises
        ------
        MismatchError
            If a device is asked for that is not the estimator's.
        """
        estimator = loading.load_estimator(self.latency_estimator, missing=self.missing)
        if self.device is not None:
            platform = estimator.platform
            here = _platform_here(DeviceOptions(self.device, self.runtime_options), platform)
            check_same_platform(platform, here, f"Using an estimator of {platform.id} for {here.id}")
        return estimator

    def load_any(self) -> estimators.Estimator | graphs.GraphPredictor:
        """Load the estimator, or the predictor of several platforms.

        Raises
        ------
        LatencyError
            As `load` does, which also checks the device.
        """
        path = loading.file_of(self.latency_estimator)
        if path is not None and documents.SavedFile(path).kind == _GRAPH_PREDICTOR:
            return graphs.GraphPredictor.load(path)
        return self.load()


def _platform_here(where: DeviceOptions, platform: Platform) -> Platform:
    """Return the platform of a device, with the runtime, precision and threads of another platform."""
    try:
        return make_runtime(where.of(platform)).platform
    except UnknownNameError:
        if loading.connection_of(where.device) is not None:
            raise
        # The estimator may come from a runtime that is not installed here.
        return Platform.current(
            where.device, runtime=platform.runtime, precision=platform.precision, threads=platform.threads
        )


@dataclass(frozen=True)
class PredictorOptions:
    """The predictor that is asked."""

    predictor: str = option(
        f"File of 'nni-latency learn graph', or {graphs.PRETRAINED} for the one that ships.",
        *ESTIMATOR_FLAGS,
        default=graphs.PRETRAINED,
    )

    def load(self) -> graphs.GraphPredictor:
        """Read it."""
        return load_predictor(self.predictor)


def load_predictor(name: str) -> graphs.GraphPredictor:
    """Read a predictor from its file, or the one that ships."""
    return graphs.GraphPredictor.load(graphs.find_predictor(name))
