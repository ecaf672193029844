# SPDX-License-Identifier: Apache-2.0
"""Lazy exports and optional packages."""

from __future__ import annotations

import ast
import configparser
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import nni_latency
from nni_latency.errors import InvalidValueError, MissingDependencyError
from nni_latency.imports import FILE_PREFIX, import_place, require
from nni_latency.plugins import SEPARATE


def test_require_returns_the_module():
    assert require("json.decoder", "The test", "json").__name__ == "json.decoder"


def test_require_says_what_to_install():
    with pytest.raises(MissingDependencyError, match=r"The test needs the package 'no_such_thing'.*install 'thing>=1'"):
        require("no_such_thing.part", "The test", "thing>=1")


#: What takes long to load.
_SLOW = {"torch", "nni", "sklearn", "scipy.stats", "scipy.optimize", "matplotlib", "sqlalchemy", "pandas"}
_SLOW |= {"onnxruntime", "pytorch_lightning", "torch._dynamo", "torchvision"}

_ROOT = Path(nni_latency.__file__).parents[1]

#: Where the package lies, and the plugins that have rooms as it has.
_FOLDERS = (_ROOT, _ROOT / "plugins" / "nni_latency_farm", _ROOT / "plugins" / "nni_latency_service")

#: The rooms of the package, and those of its plugins.
_ROOMS = [
    ".".join(path.parent.relative_to(folder).parts)
    for folder in _FOLDERS
    for path in sorted(folder.glob("nni_latency*/**/__init__.pyi"))
]


@pytest.mark.parametrize("room", _ROOMS)
def test_names_of_a_room_are_those_of_its_stub(room):
    package = importlib.import_module(room)
    listed = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text()).body[-1].value
    assert sorted(ast.literal_eval(listed)) == sorted(package.__all__) == sorted(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)


def _loaded_by(code):
    """Return which slow packages a process has loaded after it ran some code."""
    code = f"{code}\nimport sys; print(sorted({_SLOW!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_importing_every_room_loads_nothing_slow():
    assert _loaded_by("\n".join(f"import {room}" for room in _ROOMS)) == "[]"


def test_listing_plugins_loads_nothing_slow():
    folders = [_ROOT / "plugins" / folder for folder in sorted({*SEPARATE.values()})]
    points = []
    for folder in folders:
        parser = configparser.ConfigParser()
        parser.read(folder / "setup.cfg", encoding="utf-8")
        points.append(tuple(parser["options.entry_points"]["nni_latency"].strip().split(" = ")))
    code = f"""
import sys
from importlib import metadata
from nni_latency.plugins import GROUP, collect

sys.path[:0] = {list(map(str, folders))}
registry = collect([metadata.EntryPoint(*point, GROUP) for point in {points}])
assert [plugin.error for plugin in registry.plugins if plugin.error] == []
assert set(registry.runtimes) == set(registry.runtimes_on_devices) | {{"torch-fx"}}
"""
    assert _loaded_by(code) == "[]"


def test_predicting_an_onnx_file_loads_nothing_slow_but_torch(tmp_path):
    path = tmp_path / "net.onnx"
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 3, 3, 3], [0.5] * 216)
    ends = [value("x", onnx.TensorProto.FLOAT, [1, 3, 9, 9])], [value("y", onnx.TensorProto.FLOAT, [1, 8, 7, 7])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "net", *ends, [weights])), path)
    code = f"from nni_latency.cli import main\nmain(['predict', {str(path)!r}], standalone_mode=False)"
    assert _loaded_by(code) == "['torch']"


def test_importing_the_package_loads_neither_torch_nor_nni():
    code = "import sys, nni_latency; print(sorted({'torch', 'nni', 'numpy', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    package = importlib.import_module("nni_latency")
    assert sorted(package.__all__) == package.__dir__()
    assert all(getattr(package, name).__name__ for name in package.__all__ if name != "hookimpl")


@pytest.fixture
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("_path")
def test_file_is_imported_with_what_lies_beside_it(tmp_path):
    (tmp_path / "lying_beside.py").write_text("value = 3\n")
    (tmp_path / "file.py").write_text("from lying_beside import value\n")
    module = import_place(str(tmp_path / "file.py"))
    assert module.value == 3
    assert module.__name__.startswith(FILE_PREFIX)


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("as_package", [False, True], ids=["module", "package"])
def test_files_of_two_folders_have_what_lies_beside_each(tmp_path, as_package):
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        beside = folder / f"of_one_name_{as_package}" / "__init__.py"
        beside = beside if as_package else beside.parent.with_suffix(".py")
        beside.parent.mkdir(parents=True)
        beside.write_text(f"value = {folder.name!r}\n")
        (folder / "file.py").write_text(f"from of_one_name_{as_package} import value\n")
        found.append(import_place(str(folder / "file.py")))
    assert [module.value for module in found] == ["one", "two"]
    assert import_place(str(tmp_path / "one" / "file.py")) is found[0]


@pytest.mark.usefixtures("_path")
def test_a_folder_of_files_hides_no_package(tmp_path, monkeypatch):
    """Such as a folder of results that has the name of a package of the folder in which the command runs."""
    for name in ("of_a_package", "nni_latency"):
        (tmp_path / "here" / name).mkdir(parents=True)
    (tmp_path / "of_a_package").mkdir()
    (tmp_path / "of_a_package" / "__init__.py").write_text("")
    (tmp_path / "here" / "nni_latency" / "__init__.py").write_text("")
    (tmp_path / "here" / "file.py").write_text("import of_a_package\n")
    monkeypatch.chdir(tmp_path)
    before = import_place("of_a_package")
    monkeypatch.chdir(Path(nni_latency.__file__).parents[1])
    own = import_place("nni_latency.units")
    assert import_place(str(tmp_path / "here" / "file.py")).of_a_package is before
    assert sys.modules["nni_latency.units"] is own


@pytest.mark.usefixtures("_path")
def test_a_folder_beside_a_file_that_may_not_be_read_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("value = 3\n")
    (tmp_path / "lost+found").mkdir()
    exists = Path.exists

    def refusing(path, **options):
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refusing)
    assert import_place(str(tmp_path / "net.py")).value == 3


@pytest.mark.usefixtures("_path")
def test_file_is_run_again_only_after_it_changed(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("value = object()\n")
    first = import_place(str(path)).value
    assert import_place(str(path)).value is first
    path.write_text("value = 4\n")
    assert import_place(str(path)).value == 4


@pytest.mark.usefixtures("_path")
def test_file_that_raises_is_no_module_afterwards(tmp_path):
    (tmp_path / "file.py").write_text("raise KeyError('mine')\n")
    before = set(sys.modules)
    with pytest.raises(KeyError, match="mine"):
        import_place(str(tmp_path / "file.py"))
    assert set(sys.modules) == before


@pytest.mark.usefixtures("_path")
def test_module_of_the_current_folder_is_imported(tmp_path, monkeypatch):
    (tmp_path / "of_this_folder.py").write_text("value = 5\n")
    monkeypatch.chdir(tmp_path)
    assert import_place("of_this_folder").value == 5


def test_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InvalidValueError, match=r"^There is no file '.*file\.py'\.$"):
        import_place(str(tmp_path / "file.py"))


def _imports():
    """Yield (importing module, imported module, name) for the package and its plugins, also for type checkers alone."""
    found = [(path, folder) for folder in _FOLDERS for path in sorted(folder.glob("nni_latency*/**/*.py"))]
    for path, folder in found:
        own = ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nni_latency"):
                yield from ((own, node.module, item.name) for item in node.names)
            elif isinstance(node, ast.Import):
                yield from ((own, item.name, "") for item in node.names if item.name.startswith("nni_latency."))


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


def _room_of(module):
    return [part for part in module.split(".")[:2] if not _is_private(part)]


@pytest.mark.slow
def test_no_room_imports_private_names_of_another():
    wrong = [
        f"{own}: {module} {name}"
        for own, module, name in _imports()
        if _room_of(own) != _room_of(module) and any(map(_is_private, [*module.split("."), name]))
    ]
    assert wrong == []


def test_imports_of_spaces_make_no_circle():
    graph = {}
    for own, module, _ in _imports():
        if own.startswith("nni_latency.spaces._") and not own.endswith("__init__"):
            graph.setdefault(own, set()).add(module)
    graphlib.TopologicalSorter(graph).prepare()
    assert "nni_latency.spaces._symbolic" in graph["nni_latency.spaces._walker"]
