"""The command line: thin commands over the library, one module each."""

from __future__ import annotations

import sys

from nni_latency.cli import _supervision
from nni_latency.cli._main import COMMANDS, main

__all__ = ["COMMANDS", "main", "run"]


def run() -> None:
    """Run the command line of this process; a command that runs networks of the user is watched."""
    arguments = sys.argv[1:]
    if _supervision.is_needed(arguments):
        sys.exit(_supervision.supervise(arguments))
    _supervision.begin_supervised()
    try:
        # Under supervision this is another process, and its own name is not that of the command.
        main(prog_name="nni-latency")
    finally:
        _supervision.end_supervised()
