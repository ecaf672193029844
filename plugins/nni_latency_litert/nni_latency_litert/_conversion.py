"""Conversion of networks to TFLite in another process, which serves many networks: it takes long to start."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import tempfile
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from nni_latency.errors import MeasurementError
from nni_latency.measurement import CandidateError

#: Longest time that a conversion may take, that of starting the process included [s].
_TIMEOUT = 300.0

_WORKER = Path(__file__).with_name("_worker.py")


class Converter:
    """A process that converts networks one after another. Not thread-safe.

    It is started when it is needed first, and again when it has died; it ends with this process.

    Parameters
    ----------
    python : Path
        An interpreter that has litert-torch.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        atexit.register(self.stop)

    def convert(self, program: torch.export.ExportedProgram) -> bytes:
        """Return a network as a file of TFLite holds it.

        Raises
        ------
        CandidateError
            If it cannot be converted; the message says why.
        MeasurementError
            If the process does not start.
        """
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "network.pt2", Path(folder) / "network.tflite"
            torch.export.save(program, source)
            answer = self._ask({"program": str(source), "out": str(out)})
            if "error" in answer:
                raise CandidateError(f"litert-torch cannot convert the network: {_first_line(answer['error'])}")
            return out.read_bytes()

    def stop(self) -> None:
        """End the process; the next conversion starts another one."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        line = self._line or self._start()
        try:
            line.send_bytes(json.dumps(question).encode())
            if not line.poll(_TIMEOUT):
                raise CandidateError(f"litert-torch did not convert the network within {_TIMEOUT:.0f} s")
            answer: dict[str, Any] = json.loads(line.recv_bytes())
        except (EOFError, OSError) as error:
            self.stop()
            raise CandidateError("the process that converts networks for LiteRT died of the network") from error
        except BaseException:
            # Its answer would be taken for that to the next question.
            self.stop()
            raise
        return answer

    def _start(self) -> Connection:
        mine, its = socket.socketpair()
        with its:
            command = [str(self._python), "-I", str(_WORKER), str(its.fileno())]
            try:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[its.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                mine.close()
                raise MeasurementError(
                    f"The process that converts networks for LiteRT did not start: {error.strerror or error}."
                ) from error
        self._line = Connection(mine.detach())
        return self._line


@cache
def shared_converter(python: Path) -> Converter:
    """Return the converter of this process."""
    return Converter(python)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it does not say why")
