"""How ``show`` reports and draws every kind of file that the project writes. A new kind is one entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Named through their rooms, so that showing a table loads no predictor.
import nni_latency.estimators as estimators
import nni_latency.kernels as kernels
import nni_latency.plots as plots
import nni_latency.tables as tables
from nni_latency.cli._fusion_report import fusion_report
from nni_latency.cli._graph_report import graph_report
from nni_latency.cli._kernel_report import kernel_report
from nni_latency.cli._profile_report import profile_report
from nni_latency.cli._report import Report
from nni_latency.cli._show_estimator import acts_report, estimator_report, portable_report
from nni_latency.cli._show_measurements import networks_report, points_report, prior_report
from nni_latency.cli._show_operators import operator_report
from nni_latency.cli._show_search import search_report
from nni_latency.cli._show_table import table_report
from nni_latency.cli._table_facts import table_pairs, validation_summary
from nni_latency.cli._validation_report import validation_report


@dataclass(frozen=True)
class FileView:
    """How a kind of file is shown.

    Parameters
    ----------
    what : str
        What it is, with an article.
    report : callable
        Makes the report of what was loaded, and of its path if it has one.
    draw : callable, optional
        Draws what was loaded, to a path.
    undrawn : str
        Without `draw`, where there is a picture instead, as a sentence.
    """

    what: str
    report: Callable[[Any, Path | None], Report]
    draw: Callable[[Any, Path], object] | None = None
    undrawn: str = "There is nothing to plot."


def _report_kernels(found: kernels.KernelPredictors, _: Path | None) -> Report:
    facts = {"kernels": f"{len(found.kernels)} measured, {len(found.failures)} could not be"}
    if found.campaign is not None:
        facts["campaign"] = found.campaign
    return kernel_report(found, [*table_pairs(found, facts, "Kernel predictors"), *found.remarks])


_TABLE = FileView(
    "a lookup table",
    lambda found, path: table_report(found, validation_summary(path)),
    lambda found, out: plots.draw_table(found, out),
)
_OPERATOR_TABLE = FileView(
    "a table of operators",
    lambda found, path: operator_report(found, validation_summary(path)),
    lambda found, out: plots.draw_operator_table(found, out),
)

#: Kinds of files, by the format that a file says it has.
SAVED_FILES: Mapping[str, FileView] = MappingProxyType(
    {
        "nni_latency.lookup_table": _TABLE,
        "nni_latency.operator_table": _OPERATOR_TABLE,
        "nni_latency.validation": FileView(
            "a validation",
            lambda found, _: validation_report(found),
            lambda found, out: plots.draw_validation(found, out),
        ),
        "nni_latency.fusion": FileView(
            "a file of fusion rules",
            lambda found, _: fusion_report(found),
            undrawn="--plot draws what they make of a network. Name one with --network.",
        ),
        "nni_latency.kernels": FileView(
            "a file of kernel predictors",
            _report_kernels,
            lambda found, out: plots.draw_kernels(found, out),
        ),
        "nni_latency.kernel_prior": FileView("a prior of kernels", lambda found, _: prior_report(found)),
        "nni_latency.operator_profile": FileView(
            "an operator profile",
            lambda found, _: profile_report([found], "kind", found.remarks),
            lambda found, out: plots.draw_operator_profile([found], out),
        ),
        "nni_latency.energy": FileView(
            "a portable model of time and power",
            lambda found, _: portable_report(found),
            lambda found, out: plots.draw_portable(found, out),
        ),
        "nni_latency.graph_predictor": FileView(
            "a graph predictor",
            lambda found, _: graph_report(found),
            lambda found, out: plots.draw_graph_predictor(found, out),
        ),
        "nni_latency.networks": FileView(
            "a data set of networks",
            lambda found, _: networks_report(found),
        ),
        "nni_latency.benchmark_points": FileView(
            "a file of benchmark points",
            lambda found, _: points_report(found),
            undrawn="'nni-latency learn device --plot' draws them with a fit.",
        ),
        "nni_latency.acts": FileView(
            "an ACTS fit",
            lambda found, _: acts_report(found),
            undrawn="'nni-latency learn device --plot' draws a fit with its points.",
        ),
        "nni_latency.transfer": FileView(
            "a saved transfer",
            lambda found, _: estimator_report(found),
        ),
        "nni_latency.search": FileView(
            "the record of a search",
            lambda found, _: search_report(found),
            undrawn="The picture of a search lies beside it, as search.png.",
        ),
    }
)

_ESTIMATOR = FileView(
    "an estimator that is no table",
    lambda found, _: estimator_report(found),
)


def view_of(found: tables.LookupTable | tables.OperatorTable | estimators.Estimator) -> FileView:
    """Return how to show what a plugin made: a table like a file of one, any other estimator by its main facts."""
    if isinstance(found, tables.LookupTable):
        return _TABLE
    return _OPERATOR_TABLE if isinstance(found, tables.OperatorTable) else _ESTIMATOR
