# SPDX-License-Identifier: Apache-2.0
"""Packages that are loaded when they are needed: optional dependencies, what a user names, and NNI."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from nni_latency.errors import InvalidValueError, MissingDependencyError

#: How the modules begin that were made of files; another process cannot import them by their names.
FILE_PREFIX = "nni_latency_file_"

#: Folders from which something was imported that a user named.
_FOLDERS: set[str] = set()


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


def import_place(place: str) -> ModuleType:
    """Import what a user names: a file, ``path/to/file.py``, or a module, ``package.module``. Importing runs it.

    A file gets a name that begins with `FILE_PREFIX`, and is run again in a process only after it changed;
    its folder is put on the path for what lies beside it, and before those of files that were imported earlier, whose
    modules of the same names are not taken for its own. Modules are looked for in the current folder as well.

    Parameters
    ----------
    place : str
        The file or the module.

    Raises
    ------
    InvalidValueError
        If there is no such file.
    Exception
        Whatever the code that is run raises.

    Examples
    --------
    >>> import_place("json.decoder").__name__
    'json.decoder'
    """
    if place.endswith(".py"):
        if not Path(place).exists():
            raise InvalidValueError(f"There is no file {place!r}.")
        return _import_file(Path(place).resolve())
    _put_on_path(Path.cwd())
    return importlib.import_module(place)


def _import_file(full: Path) -> ModuleType:
    digest = hashlib.sha256(str(full).encode() + b"\0" + full.read_bytes()).hexdigest()
    name = f"{FILE_PREFIX}{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, full)
    assert specification is not None, full
    assert specification.loader is not None, full
    module = importlib.util.module_from_spec(specification)
    _put_on_path(full.parent)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _put_on_path(folder: Path) -> None:
    """Let what lies in a folder be imported, and not what lies in another such folder under the same name."""
    own, others = str(folder), _FOLDERS - {str(folder)}
    _FOLDERS.add(own)
    # A folder without `__init__.py` hides no package, and nothing hides this one.
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or _is_package(path)}
    names -= {__name__.partition(".")[0]}
    foreign = {name for name in names.intersection(sys.modules) if _folder_of(sys.modules[name]) in others}
    for name in [name for name in sys.modules if name.partition(".")[0] in foreign]:
        del sys.modules[name]
    path = [entry for entry in sys.path if entry != own]
    first = next((place for place, entry in enumerate(path) if entry in others), len(path))
    if own not in sys.path[: first + 1]:
        sys.path[:] = [*path[:first], own, *path[first:]]


def _is_package(folder: Path) -> bool:
    try:
        return (folder / "__init__.py").exists()
    except OSError:  # a folder of another user, such as "lost+found"
        return False


def _folder_of(module: ModuleType) -> str | None:
    """Return the folder in which a module or package lies, as text."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    return str(Path(file).parent.parent if hasattr(module, "__path__") else Path(file).parent)


@contextlib.contextmanager
def quiet_nni() -> Iterator[None]:
    """Silence what NNI 3.0 warns of while it is imported, and nothing else.

    It wraps every class of torch.nn, and reports the few that are not modules because they are newer than itself.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*is found to be not a nn\.Module, which is unexpected.*")
        yield
