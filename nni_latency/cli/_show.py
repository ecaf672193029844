"""``nni-latency show``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import nni_latency.documents as documents
import nni_latency.fusion as fusion
import nni_latency.loading as loading
from nni_latency.cli._option import grouped
from nni_latency.cli._outputs import OutputFile
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.cli._saved_files import SAVED_FILES, SavedFile, kind_of
from nni_latency.cli._show_fusion import DividedNetworkOptions, show_network
from nni_latency.errors import InvalidValueError
from nni_latency.files import naming, readable


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
    if divided.network is not None:
        divided.check_rules(repr(file), are_rules=documents.format_of(file) == fusion.FUSION.name)
        print_report(show_network(file, divided, plot))
        return
    found, kind = _load(file, path)
    if plot is not None:
        if kind.draw is None:
            raise InvalidValueError(f"{file!r} is {kind.what}. {kind.undrawn}")
        kind.draw(found, plot)
    print_report(kind.report(found, path))


def _load(file: str, path: Path | None) -> tuple[Any, SavedFile]:
    kind = None if path is None else SAVED_FILES.get(documents.format_of(path))
    if path is not None and kind is not None:
        with naming(path), readable(path, kind.what):
            found = kind.load(path)
        return found, kind
    # An estimator of a plugin, or nothing that is known: then this says what is wrong.
    found, _ = loading.load_saved(file)
    return found, kind_of(found)
