"""What is installed: every package of the tree, the tables that ship, and the mark that it is typed."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from nni_latency import LookupTable, TableEstimator
from nni_latency.loading import load_estimator
from nni_latency.tables import shipped_tables, validation_path
from nni_latency.validation import read_summary

ROOT = Path(__file__).resolve().parent.parent


def _setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_setup_lists_every_package():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "nni_latency").rglob("__init__.py")}
    found = {".".join(folder.parts) for folder in folders} | {"nni_latency.lut"}
    assert set(_setup()["options"]["packages"].split()) == found


def test_lowest_versions_are_those_that_setup_allows():
    setup = _setup()
    extras = [text for name, text in setup["options.extras_require"].items() if name != "docs"]
    lines = "\n".join([setup["options"]["install_requires"], *extras]).splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").partition("# What they need.")[0]
    lowest = dict(line.split("==") for line in pinned.splitlines() if "==" in line)
    for requirement in requirements:
        (allowed_from,) = [item.version for item in requirement.specifier if item.operator == ">="]
        assert Version(lowest[requirement.name.lower()]) == Version(allowed_from), requirement


#: Plugins that are distributions with rooms, and whose tests run with those of the package.
_PLUGINS = ("nni_latency_farm", "nni_latency_service")


@pytest.mark.parametrize("name", _PLUGINS)
def test_plugin_lists_every_package_and_its_requirements_come_with_the_tests(name):
    folder = ROOT / "plugins" / name
    parser = configparser.ConfigParser()
    parser.read(folder / "setup.cfg", encoding="utf-8")
    found = {".".join(path.parent.relative_to(folder).parts) for path in folder.rglob("__init__.py")}
    assert set(parser["options"]["packages"].split()) == found
    setup = _setup()
    brought = f"{setup['options']['install_requires']}\n{setup['options.extras_require']['test']}".splitlines()
    assert set(parser["options"]["install_requires"].split()) - set(brought) == {"nni_latency>=0.1"}


#: Runs the command line with what the plain install brings, and with nothing else that is installed here.
_PLAINLY = """
import json, sys
from importlib import metadata
from packaging.requirements import Requirement

def named(text):
    return text.lower().replace("-", "_")

found, left = set(), json.loads(sys.argv.pop(1))
while left:
    item = Requirement(left.pop())
    key = (named(item.name), *sorted(item.extras))
    if key not in found:
        found.add(key)
        for line in map(Requirement, metadata.requires(item.name) or []):
            extras = ("", *item.extras)
            if not line.marker or any(line.marker.evaluate({"extra": extra}) for extra in extras):
                line.marker = None
                left.append(str(line))
brought = {name for name, *_ in found} | {"nni_latency"}
owners = metadata.packages_distributions().items()
absent = {module for module, names in owners if not brought.intersection(map(named, names))}
assert {"fastapi", "hypothesis"} <= absent

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from nni_latency.cli import run
run()
"""


def test_plain_install_predicts_a_network_that_it_generates(tmp_path):
    lines = _setup()["options"]["install_requires"].splitlines()
    brought = json.dumps([line for line in lines if line and not line.startswith("#")])

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", _PLAINLY, brought, *arguments]
        # On a machine that has platforms of the predictor, one column more makes names wrap.
        wide = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=wide)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("dataset", "generate", "--family", "squeezenet", "--per-family", "1", "--out", "nets")
    (file,) = tmp_path.glob("nets/*.onnx")
    assert "onnxruntime.fp32.t1" in run("predict", str(file))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel of a copy of the tree; return the names of its files."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("nni_latency", "lut"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


@pytest.mark.slow
@pytest.mark.installs
def test_wheel_is_marked_as_typed(wheel):
    assert "nni_latency/py.typed" in wheel


@pytest.mark.slow
@pytest.mark.installs
def test_wheel_holds_the_tables(wheel):
    tables = {f"nni_latency/lut/{path.name}" for path in (ROOT / "lut").glob("*.json")}
    assert tables
    assert {*tables, "nni_latency/lut/THIRD-PARTY.txt"} <= wheel


#: Its source has no skips where the shape changes.
_WITHOUT_SKIPS = "fbnet-cifar10-32-b1.raspberry-pi-4.tensorflow.fp32.t4"

#: Tables that this project measured; those of others are tested in tests/tables/test_published_devices.py.
_MEASURED = [name for name in shipped_tables() if ".unknown." not in name and name != _WITHOUT_SKIPS]


@pytest.mark.parametrize("name", shipped_tables())
def test_shipped_table_is_whole_and_named_after_its_platform(name):
    table = LookupTable.load(shipped_tables()[name])
    assert table.coverage == 1 or name == _WITHOUT_SKIPS
    assert name.endswith(table.platform.id)
    assert isinstance(load_estimator(f"table:{name}"), TableEstimator)


@pytest.mark.parametrize("name", _MEASURED)
def test_shipped_table_comes_with_a_validation_that_it_passed(name):
    path = shipped_tables()[name]
    summary = read_summary(validation_path(path))
    assert summary.repeatability is not None
    assert summary.scores.within10 >= 0.95
    assert summary.scores.mape <= summary.repeatability.mape + 0.015
    content = json.loads(validation_path(path).read_text(encoding="utf-8"))
    assert content["platform"]["id"] == LookupTable.load(path).platform.id
