# SPDX-License-Identifier: Apache-2.0
"""The cache of what was walked and traced, by a key of the space."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from joblib import Memory
from torch import nn

from nni_latency.files import cache_folder, make_private
from nni_latency.operators import Inputs
from nni_latency.spaces._finding import reference_of
from nni_latency.spaces._hub import hub_name
from nni_latency.spaces._nni import Mutable, nni_version
from nni_latency.spaces._samples import list_choices
from nni_latency.spaces._signatures import Signatures
from nni_latency.spaces._symbolic import TensorSpec

#: Where the standard library lies, and how folders of installed packages are called, those that an environment borrows
#: from another one included: what they import is not looked at.
_STANDARD, _INSTALLED = sysconfig.get_path("stdlib"), {"site-packages", "dist-packages"}

_T = TypeVar("_T")

#: Room that walks and traces may take [byte]; those that were not read for longest go first.
_MOST_BYTES = 256 * 2**20


class UnstableError(Exception):
    """Raised for a space that cannot be recognised in another process."""


def space_key(space: Any, inputs: Inputs, *more: str) -> str | None:
    """Return a key of a space with its inputs, or None if the space cannot be recognised in another process.

    It covers the source of this package, the versions of torch and NNI, and for a space of NNI's hub its class with
    the source file, its arguments, and its modules with the shapes of their parameters. For any other space it covers
    all attributes of its modules, and the source files of their classes with what these import from the user's own.

    Parameters
    ----------
    space : ModelSpace
    inputs : Inputs
        Only shapes and dtypes matter.
    *more : str
        What else the result depends on.
    """
    signatures = _StableSignatures()
    try:
        given = signatures.of_value([inputs.args, dict(inputs.kwargs)]), [*map(TensorSpec.of, inputs.tensors)]
        if hub_name(type(space)) is None:
            # What is kept is pickled, and choices may be anything.
            content: Any = json.dumps(list_choices(space)[0]), signatures.content(space)
        else:
            content = signatures.of_value(dict(reference_of(space).arguments)), _outline(space)
        for kind in type(space).__mro__:
            signatures.name(kind)
        sources = [_digest(path) for path in sorted(_files(signatures.modules))]
    except (UnstableError, TypeError, ValueError, OSError):  # json refuses a choice, or a source file is not there
        return None
    facts = (given, content, sources, torch.__version__, nni_version, _own_source(), torch.get_default_dtype(), more)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _outline(space: nn.Module) -> list[tuple[Any, ...]]:
    """List the modules of a space by class, parts, and shapes of parameters; a tenth of the time of a signature."""
    found, waiting = [], [space]
    while waiting:
        module = waiting.pop()
        parts = [part for part in module._modules.values() if part is not None]
        shapes = [tuple(tensor.shape) for tensor in module._parameters.values() if tensor is not None]
        found.append((type(module).__qualname__, *module._modules, *shapes))
        waiting += parts
    return found


class _StableSignatures(Signatures):
    """Signatures without memory addresses, the same in every process."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: set[str] = set()
        self._open: set[int] = set()

    def content(self, module: nn.Module) -> tuple[Hashable, ...]:
        """Return everything that goes into the signature of a module."""
        self.of(module)
        for kind in {kind for known in self._kept if isinstance(known, nn.Module) for kind in type(known).__mro__}:
            self.name(kind)
        return tuple(self._numbers)

    def name(self, value: Any) -> str:
        """Name a class or function, and remember its module."""
        if isinstance(value, type) and "<locals>" in value.__qualname__:
            raise UnstableError(value.__qualname__)
        self.modules.add(str(value.__module__))
        return f"{value.__module__}.{value.__qualname__}"

    def _identity(self, value: Any) -> Hashable:
        if isinstance(value, nn.Module):
            return "module", self.of(value)
        if isinstance(value, Mutable):
            return "mutable", repr(value)
        if isinstance(value, (type, types.BuiltinFunctionType)):
            return "name", self.name(value)
        if id(value) in self._open:
            raise UnstableError(f"A {type(value).__name__} that holds itself.")
        self._open.add(id(value))
        try:
            return self._parts(value)
        finally:
            self._open.discard(id(value))

    def _parts(self, value: Any) -> Hashable:
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return "function", self.name(value), self.of_value([value.__defaults__, value.__kwdefaults__, cells])
        if not hasattr(value, "__dict__") or isinstance(value, types.ModuleType):
            raise UnstableError(type(value).__name__)
        return "object", self.name(type(value)), self.of_value(vars(value))


def _files(names: set[str]) -> set[Path]:
    """Return the source files of modules, and of those of the user's own that they import."""
    files: dict[str, Path] = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in files or name == "builtins" or name.partition(".")[0] in ("nni_latency", "torch"):
            continue
        path = getattr(module, "__file__", None)
        if path is None:
            raise UnstableError(f"The module {name} has no file.")
        files[name] = Path(path)
        if not _is_installed(path):
            waiting += _imported(module)
    return set(files.values())


def _imported(module: Any) -> Iterator[str]:
    """Yield the user's own modules that one of them imports from."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        path = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
        if path is not None and not _is_installed(path):
            yield str(name)


def _is_installed(path: str) -> bool:
    return path.startswith(_STANDARD) or not _INSTALLED.isdisjoint(Path(path).parts)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _own_source() -> str:
    """Return a digest of the source code that walks spaces."""
    root = Path(__file__).parent.parent
    paths = sorted(path for room in ("spaces", "operators", "estimators") for path in (root / room).rglob("*.py"))
    return "".join(_digest(path) for path in paths)


def cached(kind: Literal["walk", "traces"], key: str | None, compute: Callable[[], _T], *, fresh: bool = False) -> _T:
    """Return what was computed before under a key, or compute it and keep it.

    What is kept is pickled, so it is only read from a folder that no other user can write to. Nothing is kept
    where there is no such folder, or no key.
    """
    folder = cache_folder() / "spaces"
    if key is None or not make_private(folder):
        return compute()
    try:
        with warnings.catch_warnings():
            # Neither a full disk nor a slow one concerns the walk.
            warnings.filterwarnings("ignore", "Unable to (cache|write)|Persisting input arguments")
            memory = Memory(folder, verbose=0)
            function = memory.cache(_compute, ignore=["compute"], cache_validation_callback=lambda _: not fresh)
            known = function.check_call_in_cache(kind, key, compute)
            found: _T = pickle.loads(function(kind, key, compute))
        if not known and kind == "walk":
            memory.reduce_size(_MOST_BYTES)
    except OSError:  # joblib does not catch all that a full disk leads to
        return compute()
    return found


def _compute(kind: str, key: str, compute: Callable[[], object]) -> bytes:
    # Of anything else than bytes joblib makes pickles that are read in Python, ten times as slowly.
    return pickle.dumps(compute())
