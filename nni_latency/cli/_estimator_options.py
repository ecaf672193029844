"""The options that choose an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import click

import nni_latency.estimators as estimators
import nni_latency.loading as loading
from nni_latency.cli._measuring_options import DeviceOptions, make_runtime
from nni_latency.cli._option import option
from nni_latency.errors import UnknownNameError
from nni_latency.platforms import Platform, check_same_platform

#: What names an estimator in help texts.
ESTIMATOR = "FILE|NAME[:ARGUMENT]"

missing_option = partial(
    option,
    "How to treat candidates without an entry: stop with an error, or use the nearest entry.",
    default="error",
)


@dataclass(frozen=True)
class EstimatorOptions:
    """The options that choose an estimator, and what it is asked."""

    latency_estimator: str = option(
        "A saved table or predictor, a shipped table, or a registered estimator.", required=True, metavar=ESTIMATOR
    )
    missing: Literal["error", "nearest"] = missing_option()
    batch_size: int | None = option(
        "Images per run.  [default: the table's; a different value is an error]",
        type=click.IntRange(1),
    )
    device: str | None = option("Require an estimator for this device of this machine, such as cpu or cuda.")

    def load(self) -> estimators.Estimator:
        """Load the estimator.

        Raises
        ------
        MismatchError
            If a device of this machine is asked for that is not the estimator's.
        """
        estimator = loading.load_estimator(self.latency_estimator, missing=self.missing)
        if self.device is not None:
            platform = estimator.platform
            here = _platform_here(self.device, platform)
            check_same_platform(platform, here, f"Using an estimator of {platform.id} for {here.id}")
        return estimator


def _platform_here(device: str, platform: Platform) -> Platform:
    """Return the platform of this machine's device, with the runtime, precision and threads of another platform."""
    try:
        return make_runtime(DeviceOptions(device, ()).of(platform)).platform
    except UnknownNameError:
        # The estimator may come from a runtime that is not installed here.
        return Platform.current(
            device, runtime=platform.runtime, precision=platform.precision, threads=platform.threads
        )
