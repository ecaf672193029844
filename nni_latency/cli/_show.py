"""``nni-latency show``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import nni_latency.documents as documents
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.loading as loading
import nni_latency.tables as tables
from nni_latency.cli._option import grouped
from nni_latency.cli._outputs import OutputFile
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.cli._saved_files import SAVED_FILES, FileView, view_of
from nni_latency.cli._show_fusion import DividedNetworkOptions, show_network
from nni_latency.errors import InvalidValueError


@click.command("show", cls=ReportingCommand)
@click.argument("file", metavar="FILE")
@click.option("--plot", type=OutputFile(), help="PNG file of what there is to draw of it; of the kernels of --network.")
@grouped()
def command(file: str, plot: Path | None, divided: DividedNetworkOptions) -> None:
    """Show a file that nni-latency wrote: a table, a predictor, a profile, a data set, a validation, a search.

    FILE may also be the name of a table that ships with the package, pretrained for the predictor that ships, or the
    name of a registered estimator: of one that is no table, its kind, metric and platform are shown. A file of fusion
    rules is shown with its evidence, or, with --network, by the kernels that it makes of a network.
    """
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
    if isinstance(found, (estimators.TableEstimator, estimators.OperatorTableEstimator)):
        return found.table, view_of(found.table)
    return found, view_of(found)
