"""The Python that converts networks: an environment of its own, because litert-torch asks for other versions than we.

It is made once, on first use, in the user's cache. What is half-made is never used: the file that says that it is whole
is written last, and an environment without that file is made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from nni_latency.errors import InvalidValueError, MissingDependencyError, OutputError
from nni_latency.files import cache_folder, locked, write_atomically

#: Names a Python that has litert-torch already; then no environment is made.
PYTHON_VARIABLE = "NNI_LATENCY_LITERT_PYTHON"

#: What is installed besides torch.
_REQUIREMENT = "litert-torch>=0.10,<0.11"

#: The packages whose versions are told.
_TOLD = ("litert-torch", "torch")

#: How long another process may take that makes the environment [s].
_LONGEST = 3600.0

#: Written last.
_COMPLETE = "complete.json"

_ASK = f"import importlib.metadata as m, json; print(json.dumps({{name: m.version(name) for name in {_TOLD!r}}}))"

_REMEDY = (
    "It is installed once, and pip must reach a package index for that. Otherwise, name a Python that has litert-torch "
    f"in {PYTHON_VARIABLE}."
)


@dataclass(frozen=True)
class ConverterPython:
    """A Python that converts networks.

    Parameters
    ----------
    path : Path
        The interpreter.
    version : str
        Version of litert-torch.
    """

    path: Path
    version: str


@cache
def converter_python() -> ConverterPython:
    """Return the Python that converts networks; make its environment if there is none.

    Raises
    ------
    MissingDependencyError
        If the environment cannot be made.
    InvalidValueError
        If the Python that `PYTHON_VARIABLE` names cannot convert networks.
    OutputError
        If the cache cannot be written.
    BusyError
        If another process is making the environment and does not end.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return _checked(Path(named))
    folder = cache_folder() / "litert" / f"torch{_torch()}-python{sys.version_info.major}.{sys.version_info.minor}"
    return _own(folder)


def _own(folder: Path) -> ConverterPython:
    """Return the Python of our environment; make it if it is not complete."""
    complete = folder / _COMPLETE
    if not complete.is_file():
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Cannot write {str(folder.parent)!r}: {error.strerror or error}.") from error
        doing = "making the environment that converts networks for LiteRT"
        with locked(folder.parent / f".{folder.name}.lock", doing, wait=_LONGEST, remedy=f"set {PYTHON_VARIABLE}"):
            if not complete.is_file():
                _make(folder)
    return ConverterPython(_python_in(folder), str(json.loads(complete.read_text(encoding="utf-8"))["litert-torch"]))


def _make(folder: Path) -> None:
    """Make the environment; without the last file it does not count."""
    sys.stderr.write(
        "Making the environment that converts networks for LiteRT, once: litert-torch with torch and jax, about 2 GB "
        f"in {folder}. This takes a few minutes.\n"
    )
    shutil.rmtree(folder, ignore_errors=True)
    python = _python_in(folder)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, _REQUIREMENT, f"torch=={_torch()}"])
    write_atomically(folder / _COMPLETE, _run([str(python), "-I", "-c", _ASK]))


def _run(command: Sequence[str]) -> str:
    """Run a step of making the environment; return what it printed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingDependencyError(f"{_failure(str(error.strerror or error))} {_REMEDY}") from error
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).strip().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it said nothing"]
        raise MissingDependencyError(f"{_failure(errors[-1].removeprefix('ERROR:').strip())} {_REMEDY}")
    return done.stdout


def _failure(reason: str) -> str:
    return f"The environment that converts networks for LiteRT could not be made: {reason.rstrip('.')}."


def _checked(python: Path) -> ConverterPython:
    """Ask a Python that the user names for its versions."""
    command = [str(python), "-I", "-c", _ASK]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise InvalidValueError(
            f"{PYTHON_VARIABLE} must name a Python with the packages {' and '.join(_TOLD)}. Got {str(python)!r}."
        ) from error
    if found["torch"].partition("+")[0] != _torch():
        raise InvalidValueError(
            f"The Python that {PYTHON_VARIABLE} names has torch {found['torch']}, and this one {torch.__version__}. "
            "They must have the same version to pass on networks."
        )
    return ConverterPython(python, str(found["litert-torch"]))


def _python_in(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _torch() -> str:
    """Return the version of torch, without the part that says how it was built."""
    return str(torch.__version__).partition("+")[0]
