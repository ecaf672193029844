# SPDX-License-Identifier: Apache-2.0
from ._console import progress, remarks, results, sentence
from ._estimator_options import ESTIMATOR_FLAGS
from ._main import COMMANDS, main, run
from ._measuring import PlatformOptions, make_runtime
from ._network import NetworkOptions, make_networks, parse_networks
from ._option import DURATION, grouped, names_option, option, parsed, refuse_given
from ._remote_options import REMOTE_VARIABLE
from ._report import Column, Grid, Report, ReportingCommand, print_report
from ._search_document import read_search, search_schema

__all__ = [
    "COMMANDS",
    "DURATION",
    "ESTIMATOR_FLAGS",
    "REMOTE_VARIABLE",
    "Column",
    "Grid",
    "NetworkOptions",
    "PlatformOptions",
    "Report",
    "ReportingCommand",
    "grouped",
    "main",
    "make_networks",
    "make_runtime",
    "names_option",
    "option",
    "parse_networks",
    "parsed",
    "print_report",
    "progress",
    "read_search",
    "refuse_given",
    "remarks",
    "results",
    "run",
    "search_schema",
    "sentence",
]
