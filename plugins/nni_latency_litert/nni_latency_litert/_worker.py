"""The process that converts networks, run by the Python of the other environment; it imports nothing of ours.

It reads questions from the socket whose number it is given, and answers each. A question is JSON: the path of a program
as `torch.export.save` writes it, and where its network for LiteRT goes. It ends when the socket is closed.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from multiprocessing.connection import Connection
from typing import Any


def serve(line: Connection) -> None:
    """Convert what is asked for until the line is closed."""
    warnings.simplefilter("ignore")
    while True:
        try:
            question = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            _convert(question["program"], question["out"])
            answer: dict[str, Any] = {}
        except Exception as error:  # whatever a converter raises
            answer = {"error": f"{type(error).__name__}: {error}"}
        line.send_bytes(json.dumps(answer).encode())


def _convert(program: str, out: str) -> None:
    import litert_torch
    import torch

    loaded = torch.export.load(program)
    arguments, _ = loaded.example_inputs
    litert_torch.convert(loaded.module(check_guards=False), arguments).export(out)


if __name__ == "__main__":
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    serve(Connection(int(sys.argv[1])))
