# SPDX-License-Identifier: Apache-2.0
"""``nni-latency show``, and how it reports and draws every kind of file. A new kind is one entry."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

# Named through their rooms, so that showing a table loads no predictor.
import nni_latency.documents as documents
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.operators as operators
import nni_latency.plots as plots
import nni_latency.tables as tables
from nni_latency.cli._estimator_report import acts_report, estimator_report, graph_report, portable_report
from nni_latency.cli._kernel_report import fusion_report, kernel_report, kernels_report
from nni_latency.cli._model import inputs_option, load_class, make_inputs, make_network, names_a_class
from nni_latency.cli._option import JSON_OBJECT, grouped, option
from nni_latency.cli._outputs import OutputFile
from nni_latency.cli._profile_report import profile_report
from nni_latency.cli._record_report import (
    networks_report,
    points_report,
    prior_report,
    search_report,
    validation_report,
)
from nni_latency.cli._report import Report, ReportingCommand, print_report
from nni_latency.cli._shipped_report import shipped_report
from nni_latency.cli._supervision import user_code
from nni_latency.cli._table_report import table_pairs, table_report, validation_summary
from nni_latency.errors import InvalidValueError

#: Longest time that making a network and tracing it may take [s].
_TRACING_TIMEOUT = 60.0


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


def _kernel_predictors_report(found: kernels.KernelPredictors, _: Path | None) -> Report:
    facts = {"kernels": f"{len(found.kernels)} measured, {len(found.failures)} could not be"}
    if found.campaign is not None:
        facts["campaign"] = found.campaign
    return kernel_report(found, [*table_pairs(found, facts, "Kernel predictors"), *found.remarks])


_TABLE = FileView(
    "a lookup table",
    lambda found, path: table_report(found, validation_summary(path)),
    lambda found, out: plots.draw_table(found, out),
)

#: Kinds of files, by the format that a file says it has.
SAVED_FILES: Mapping[str, FileView] = MappingProxyType(
    {
        "nni_latency.lookup_table": _TABLE,
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
            _kernel_predictors_report,
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


def view_of(found: tables.LookupTable | estimators.Estimator) -> FileView:
    """Return how to show what a plugin made: a table like a file of one, any other estimator by its main facts."""
    return _TABLE if isinstance(found, tables.LookupTable) else _ESTIMATOR


@dataclass(frozen=True)
class DividedNetworkOptions:
    """The network that fusion rules are applied to."""

    network: str | None = option(
        "With fusion rules: network of your own, such as net.py:Net, to divide into kernels. The file is executed."
    )
    inputs: tuple[str, ...] = inputs_option()
    kwargs: dict[str, Any] | None = option("Arguments of the class as a JSON object.", type=JSON_OBJECT)
    batch_size: int = option("Inputs per run.", type=click.IntRange(1), default=1)

    def check_rules(self, what: str, *, are_rules: bool) -> None:
        """Raise `InvalidValueError` if a network is named, although there are no rules to divide it by."""
        if not are_rules:
            raise InvalidValueError(
                f"{what} is no file of fusion rules: --network shows what such rules make of a network. "
                "Predict the network with: nni-latency predict"
            )

    def trace(self) -> operators.Trace:
        """Make the network and trace it."""
        text = self.network or ""
        if not names_a_class(text):
            raise InvalidValueError(
                f"The --network must be a class, such as net.py:Net or package.module:Net. Got {text!r}."
            )
        with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {text!r}", _TRACING_TIMEOUT):
            network = make_network(text, load_class(text), self.kwargs or {})
            return operators.trace(network, make_inputs(self.inputs, self.batch_size), by="graph")


def show_network(path: str, wanted: DividedNetworkOptions, plot: Path | None) -> Report:
    """Report on what a file of fusion rules makes of a network, and draw that."""
    rules = fusion.read_rules(path)
    network = wanted.trace()
    if plot is not None:
        plots.draw_fusion(network, rules, plot, title=f"{wanted.network} on {rules.platform.id}")
    return kernels_report(network, rules)


@click.command("show", cls=ReportingCommand)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--plot", type=OutputFile(), help="PNG file of what there is to draw of it; of the kernels of --network.")
@grouped()
def command(file: str | None, plot: Path | None, divided: DividedNetworkOptions) -> None:
    """Show a file that nni-latency wrote: a table, a predictor, a profile, a data set, a validation, a search.

    Without FILE, list the tables that ship with the package, with their errors and sources.

    FILE may also be the name of a table that ships with the package, pretrained for the predictor that ships, or the
    name of a registered estimator: of one that is no table, its kind, metric and platform are shown. A file of fusion
    rules is shown with its evidence, or, with --network, by the kernels that it makes of a network.
    """
    if file is None:
        if plot is not None or divided.network is not None:
            raise InvalidValueError("--plot and --network take a FILE. List the tables that ship without them.")
        print_report(shipped_report())
        return
    path = loading.file_of(file)
    saved = None if path is None else documents.SavedFile(path)
    if divided.network is not None:
        divided.check_rules(repr(file), are_rules=saved is not None and saved.kind == fusion.FUSION.name)
        print_report(show_network(file, divided, plot))
        return
    found, view = _load(file, saved)
    if plot is not None:
        if view.draw is None:
            raise InvalidValueError(f"{file!r} is {view.what}. {view.undrawn}")
        view.draw(found, plot)
    print_report(view.report(found, path))


def _load(name: str, file: documents.SavedFile | None) -> tuple[Any, FileView]:
    if file is not None:
        if file.kind not in SAVED_FILES:
            tables.find_table(file.path)
        found = documents.load(file)
        return found, SAVED_FILES[file.kind]
    found = loading.load_estimator(name)
    if isinstance(found, estimators.TableEstimator):
        return found.table, view_of(found.table)
    return found, view_of(found)
