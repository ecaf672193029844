"""Packages loaded only when they are needed: lazily exported names and optional dependencies."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from nni_latency.errors import MissingDependencyError


def require(module: str, purpose: str, install: str) -> ModuleType:
    """Import an optional package, or say in one sentence how to get it.

    Parameters
    ----------
    module : str
        The module to import, such as ``"torchvision.datasets"``.
    purpose : str
        What needs it, as the subject of the sentence.
    install : str
        The requirement to install.

    Raises
    ------
    MissingDependencyError
        If the package is absent or does not load.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        package = module.partition(".")[0]
        raise MissingDependencyError(
            f"{purpose} needs the package {package!r}, which does not load here ({error}). "
            f"Install it with: pip install {install!r}"
        ) from error


def lazy_exports(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the module functions ``__getattr__`` and ``__dir__`` (PEP 562) that load names on first use.

    Parameters
    ----------
    package : str
        The ``__name__`` of the package that exports.
    exports : mapping of str to str
        Public name to the module that defines it.
    """

    def getattribute(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(exports[name]), name)
        setattr(importlib.import_module(package), name, value)
        return value

    def directory() -> list[str]:
        return sorted(exports)

    return getattribute, directory


@contextlib.contextmanager
def quiet_nni() -> Iterator[None]:
    """Silence what NNI 3.0 warns of while it is imported, and nothing else.

    It wraps every class of torch.nn, and reports the few that are no modules because they are newer than itself.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*is found to be not a nn\.Module, which is unexpected.*")
        yield
