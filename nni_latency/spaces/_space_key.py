"""The plan and the choices of a space, and the cache of what was walked and traced, by a key of the space."""

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

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.files import cache_folder, make_private
from nni_latency.operators import Inputs, freeze_shapes
from nni_latency.spaces._finding import reference_of
from nni_latency.spaces._hub import hub_name
from nni_latency.spaces._nni import Mutable, nni_version
from nni_latency.spaces._symbolic import TensorSpec, TooManyChoicesError, as_key
from nni_latency.spaces._walker import Signatures
from nni_latency.tables import MeasurePlan, measure_plan_of

#: Where installed packages and the standard library lie: what they import is not looked at.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))

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
        if not path.startswith(_INSTALLED):
            waiting += _imported(module)
    return set(files.values())


def _imported(module: Any) -> Iterator[str]:
    """Yield the user's own modules that one of them imports from."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        path = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
        if path is not None and not path.startswith(_INSTALLED):
            yield str(name)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _own_source() -> str:
    """Return a digest of the source code that walks spaces."""
    root = Path(__file__).parent.parent
    paths = sorted(path for room in ("spaces", "operators", "estimators") for path in (root / room).rglob("*.py"))
    return "".join(_digest(path) for path in paths)


def plan_of(space: Any, example_inputs: Any = None) -> MeasurePlan | None:
    """Return the measure plan of a space, or None if the space does not make one.

    Parameters
    ----------
    space : ModelSpace
        A space; one with a method ``measure_plan(batch_size)`` has a plan.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the network; without it, a batch of one of the space's own input size.

    Raises
    ------
    MismatchError
        If the inputs are of another size than the space's.
    """
    if not hasattr(space, "measure_plan"):
        return None
    if example_inputs is None:
        return measure_plan_of(space)
    shape = tuple(freeze_shapes(example_inputs)[0].shape)
    plan = measure_plan_of(space, shape[0])
    if shape != plan.input_shape:
        raise MismatchError(f"The example inputs have shape {shape}, the space is made for {plan.input_shape}.")
    return plan


def choices_of(space: Any) -> dict[str, list[Any]]:
    """List the labels of a space, each with its choices in the order of their indices.

    Raises
    ------
    InvalidValueError
        If it is not a model space, has no choices, or one that is not a plain list of values.
    """
    if not hasattr(space, "simplify"):
        raise InvalidValueError(f"The space must be an NNI model space. Got {type(space).__name__}.")
    mutables = space.simplify()
    if not mutables:
        raise InvalidValueError(f"The space {type(space).__name__} has no choices: there is nothing to search.")
    for label, mutable in mutables.items():
        # A choice of several values (NNI's InputChoice, even of one input) has samples that are lists.
        if not hasattr(mutable, "values") or hasattr(mutable, "n_chosen"):
            raise InvalidValueError(f"The label {label!r} is not a choice among values but a {type(mutable).__name__}.")
    return {label: list(mutable.values) for label, mutable in mutables.items()}


def list_choices(space: Any) -> tuple[dict[str, tuple[Any, ...]], Callable[[dict[str, Any]], dict[str, Any]]]:
    """List the choices of every label, hashable, and return what turns such a sample into NNI's form.

    Labels without values, such as constraints, are left out.

    Raises
    ------
    TooManyChoicesError
        If a label has no finite list of values.
    """
    values: dict[str, tuple[Any, ...]] = {}
    raws: dict[str, dict[Any, Any]] = {}
    for label, mutable in space.simplify().items():
        if not hasattr(mutable, "values"):
            if hasattr(mutable, "low") or not hasattr(mutable, "freeze"):
                raise TooManyChoicesError(
                    f"The label {label!r} is not a choice among values but a {type(mutable).__name__}."
                )
            continue
        listed = list(mutable.grid()) if hasattr(mutable, "n_chosen") else list(mutable.values)
        raws[label] = {as_key(value): value for value in listed}
        values[label] = tuple(raws[label])

    def raw(sample: dict[str, Any]) -> dict[str, Any]:
        return {label: raws[label][value] for label, value in sample.items()}

    return values, raw


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
