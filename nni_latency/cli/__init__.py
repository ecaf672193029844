"""The command line: thin commands over the library, one module each."""

from nni_latency.cli._main import main

__all__ = ["main"]
