"""Every kind of file that the project writes: how ``show`` reads, reports and draws it. A new kind is one entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Named through their rooms, so that showing a table loads no predictor.
import nni_latency.datasets as datasets
import nni_latency.energy as energy
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.graphs as graphs
import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.micro_benchmarks as micro_benchmarks
import nni_latency.plots as plots
import nni_latency.profiling as profiling
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._fusion_report import fusion_report
from nni_latency.cli._graph_report import graph_report
from nni_latency.cli._kernel_report import kernel_report
from nni_latency.cli._profile_report import profile_report
from nni_latency.cli._report import Report
from nni_latency.cli._search_document import SEARCH
from nni_latency.cli._show_estimator import acts_report, estimator_report, portable_report
from nni_latency.cli._show_measurements import networks_report, points_report, prior_report
from nni_latency.cli._show_operators import operator_report
from nni_latency.cli._show_search import search_report
from nni_latency.cli._show_table import table_report
from nni_latency.cli._table_facts import table_pairs, validation_summary
from nni_latency.cli._validation_report import validation_report


@dataclass(frozen=True)
class SavedFile:
    """A kind of file.

    Parameters
    ----------
    what : str
        What it is, with an article.
    load : callable
        Reads one.
    report : callable
        Makes the report of what was read, and of its path if it has one.
    draw : callable, optional
        Draws what was read, to a path.
    undrawn : str
        Without `draw`, where there is a picture instead, as a sentence.
    """

    what: str
    load: Callable[[Path], Any]
    report: Callable[[Any, Path | None], Report]
    draw: Callable[[Any, Path], object] | None = None
    undrawn: str = "There is nothing to plot."


def _load_kernels(path: Path) -> kernels.KernelPredictors:
    return kernels.KernelPredictors.load(path, types=loading.load_kernel_types())


def _report_kernels(found: kernels.KernelPredictors, _: Path | None) -> Report:
    facts = {"kernels": f"{len(found.kernels)} measured, {len(found.failures)} could not be"}
    if found.campaign is not None:
        facts["campaign"] = found.campaign
    return kernel_report(found, [*table_pairs(found, facts, "Kernel predictors"), *found.remarks])


_TABLE = SavedFile(
    "a lookup table",
    tables.read_table,
    lambda found, path: table_report(found, validation_summary(path)),
    lambda found, out: plots.draw_table(found, out),
)
_OPERATOR_TABLE = SavedFile(
    "a table of operators",
    tables.read_table,
    lambda found, path: operator_report(found, validation_summary(path)),
    lambda found, out: plots.draw_operator_table(found, out),
)

#: Kinds of files, by the format that a file says it has.
SAVED_FILES: Mapping[str, SavedFile] = MappingProxyType(
    {
        "nni_latency.lookup_table": _TABLE,
        "nni_latency.operator_table": _OPERATOR_TABLE,
        "nni_latency.validation": SavedFile(
            "a validation",
            lambda path: validation.read_validation(path),
            lambda found, _: validation_report(found),
            lambda found, out: plots.draw_validation(found, out),
        ),
        "nni_latency.fusion": SavedFile(
            "a file of fusion rules",
            lambda path: fusion.read_rules(path),
            lambda found, _: fusion_report(found),
            undrawn="--plot draws what they make of a network. Name one with --network.",
        ),
        "nni_latency.kernels": SavedFile(
            "a file of kernel predictors",
            _load_kernels,
            _report_kernels,
            lambda found, out: plots.draw_kernels(found, out),
        ),
        "nni_latency.kernel_prior": SavedFile(
            "a prior of kernels", lambda path: kernels.Prior.load(path), lambda found, _: prior_report(found)
        ),
        "nni_latency.operator_profile": SavedFile(
            "an operator profile",
            lambda path: profiling.OperatorProfile.load(path),
            lambda found, _: profile_report([found], "kind", found.remarks),
            lambda found, out: plots.draw_operator_profile([found], out),
        ),
        "nni_latency.energy": SavedFile(
            "a portable model of time and power",
            lambda path: energy.PortableModel.load(path),
            lambda found, _: portable_report(found),
            lambda found, out: plots.draw_portable(found, out),
        ),
        "nni_latency.graph_predictor": SavedFile(
            "a graph predictor",
            lambda path: graphs.GraphPredictor.load(path),
            lambda found, _: graph_report(found),
            lambda found, out: plots.draw_graph_predictor(found, out),
        ),
        "nni_latency.networks": SavedFile(
            "a data set of networks",
            lambda path: datasets.load_networks(path),
            lambda found, _: networks_report(found),
        ),
        "nni_latency.benchmark_points": SavedFile(
            "a file of benchmark points",
            lambda path: micro_benchmarks.BenchmarkPoints.load(path),
            lambda found, _: points_report(found),
            undrawn="'nni-latency learn device --plot' draws them with a fit.",
        ),
        "nni_latency.acts": SavedFile(
            "an ACTS fit",
            lambda path: estimators.ActsEstimator.load(path),
            lambda found, _: acts_report(found),
            undrawn="'nni-latency learn device --plot' draws a fit with its points.",
        ),
        "nni_latency.transfer": SavedFile(
            "a saved transfer",
            lambda path: estimators.TransferEstimator.load(path),
            lambda found, _: estimator_report(found),
        ),
        "nni_latency.search": SavedFile(
            "the record of a search",
            lambda path: SEARCH.load(path, lambda summary: summary),
            lambda found, _: search_report(found),
            undrawn="The picture of a search lies beside it, as search.png.",
        ),
    }
)

_ESTIMATOR = SavedFile(
    "an estimator that is no table",
    lambda path: loading.load_estimator(path),
    lambda found, _: estimator_report(found),
)


def kind_of(found: tables.LookupTable | tables.OperatorTable | estimators.Estimator) -> SavedFile:
    """Return how to show what a plugin made: a table like a file of one, any other estimator by its main facts."""
    if isinstance(found, tables.LookupTable):
        return _TABLE
    return _OPERATOR_TABLE if isinstance(found, tables.OperatorTable) else _ESTIMATOR
