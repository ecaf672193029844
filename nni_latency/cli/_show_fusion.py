"""``nni-latency show`` for what fusion rules make of a network."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.fusion as fusion
import nni_latency.operators as operators
import nni_latency.plots as plots
from nni_latency.cli._fusion_report import kernels_report
from nni_latency.cli._model import inputs_option, load_class, make_inputs, make_network, names_a_class
from nni_latency.cli._option import JSON_OBJECT, option
from nni_latency.cli._report import Report
from nni_latency.cli._supervision import user_code
from nni_latency.errors import InvalidValueError

#: Longest time that making a network and tracing it may take [s].
_TIMEOUT = 60.0


@dataclass(frozen=True)
class DividedNetworkOptions:
    """The network that fusion rules are applied to."""

    network: str | None = option(
        "With fusion rules: network of your own, such as net.py:Net, to divide into kernels. The file is executed."
    )
    inputs: tuple[str, ...] = inputs_option()
    kwargs: dict[str, Any] | None = option("Arguments of the class as a JSON object.", type=JSON_OBJECT)
    batch: int = option("Inputs per run.", type=click.IntRange(1), default=1)

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
        with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {text!r}", _TIMEOUT):
            network = make_network(text, load_class(text), self.kwargs or {})
            return operators.trace(network, make_inputs(self.inputs, self.batch), by="graph")


def show_network(path: str, wanted: DividedNetworkOptions, plot: Path | None) -> Report:
    """Report on what a file of fusion rules makes of a network, and draw that."""
    rules = fusion.read_rules(path)
    network = wanted.trace()
    if plot is not None:
        plots.draw_fusion(network, rules, plot, title=f"{wanted.network} on {rules.platform.id}")
    return kernels_report(network, rules)
