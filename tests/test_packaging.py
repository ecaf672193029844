# SPDX-License-Identifier: Apache-2.0
"""What is installed: every package of the tree, the tables that ship, and the mark that it is typed."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from nni_latency import LookupTable, TableEstimator, __version__
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


def test_picture_of_the_rooms_has_all_of_them_in_the_order_of_the_layers():
    layers = _setup()["importlinter:contract:rooms"]["layers"].split()
    rows = " ".join(layers).replace(" | ", "|").split()
    place = {name.removeprefix("nni_latency."): row for row, names in enumerate(rows) for name in names.split("|")}
    picture = (ROOT / "docs" / "images" / "rooms.svg").read_text(encoding="utf-8")
    shown = re.findall(r'text-anchor="middle">(\w+)<', picture)
    assert sorted(shown) == sorted(place)
    assert shown == sorted(shown, key=place.__getitem__)


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


#: Plugin whose wheel is built and installed beside that of the package.
_WITH = "nni_latency_roofline"


def _pip(*words: str | Path) -> None:
    """Run pip offline, with what is installed here to build with."""
    offline = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", words[0], *offline, *words[1:]]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the wheels of copies of the package and of a plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    package, plugin = folder / "package", folder / "plugin"
    package.mkdir()
    for path in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(path, package)
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("nni_latency", "lut", "tests"):
        shutil.copytree(ROOT / name, package / name, ignore=ignored)
    shutil.copytree(ROOT / "plugins" / _WITH, plugin, ignore=ignored)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", folder, package, plugin)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheels into a folder of their own."""
    folder = tmp_path_factory.mktemp("installed")
    _pip("install", "--target", folder, *wheels)
    return folder


def _content(wheel: Path) -> dict[str, str]:
    """Return the files of a wheel, with what they hold where it is metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        return {name: archive.read(name).decode() if name.endswith("/METADATA") else "" for name in names}


@pytest.mark.slow
@pytest.mark.installs
def test_wheel_holds_every_file_of_the_package(wheels):
    files = (path for folder in ("nni_latency", "lut") for path in (ROOT / folder).rglob("*"))
    kept = {path.relative_to(ROOT) for path in files if path.is_file() and "__pycache__" not in path.parts}
    names = {("nni_latency/" if path.parts[0] == "lut" else "") + path.as_posix() for path in kept}
    assert {"nni_latency/py.typed", "nni_latency/lut/THIRD-PARTY.txt", "nni_latency/datasets/networks.zip"} <= names
    assert names <= set(_content(wheels[0]))


@pytest.mark.slow
@pytest.mark.installs
def test_wheels_say_who_made_them_and_under_which_licence(wheels):
    for wheel in wheels:
        (text,) = filter(None, _content(wheel).values())
        assert {"Author: the nni_latency developers", "License: Apache-2.0"} <= set(text.splitlines())


@pytest.mark.slow
@pytest.mark.installs
def test_source_distribution_has_what_the_readme_names_and_no_part_of_the_tests(wheels, tmp_path):
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    folder = wheels[0].parent / "package"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "lut/THIRD-PARTY.txt"} <= names
    assert not [name for name in names if name.startswith("tests/")]


#: Where links and pictures of Markdown lead.
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_links_of_the_readme_work_in_the_repository():
    targets = _TARGET.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert all(target.startswith("https://") or (ROOT / target).is_file() for target in targets)


@pytest.mark.parametrize("path", sorted((ROOT / "plugins").glob("*/README.md")), ids=lambda path: path.parent.name)
def test_descriptions_of_plugins_have_no_link_into_the_repository(path):
    assert all(target.startswith("https://") for target in _TARGET.findall(path.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.installs
def test_description_of_the_wheel_has_no_link_into_the_repository(wheels):
    (text,) = filter(None, _content(wheels[0]).values())
    assert "\n# nni_latency\n" in text
    assert "\nLicence: Apache-2.0.\n" in text
    assert all(target.startswith("https://") for target in _TARGET.findall(text))


_INSTALLED = """
import json
import nni_latency, nni_latency.datasets
from nni_latency.graphs import shipped_predictor
from nni_latency.plugins import load_registry
from nni_latency.tables import shipped_tables, table_schema

platform = load_registry().find("estimator", "roofline").make("100,20").platform
files = [nni_latency.__file__, shipped_predictor(), *shipped_tables().values()]
networks = nni_latency.datasets.load_networks()
print(json.dumps([list(map(str, files)), len(networks), table_schema()]))
"""


@pytest.mark.slow
@pytest.mark.installs
def test_wheels_install_and_run_outside_of_the_repository(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("NNI_LATENCY_PLUGINS", "roofline")

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-m", "nni_latency", "--version") == f"nni-latency, version {__version__}\n"
    files, count, schema = json.loads(run("-c", _INSTALLED))
    assert len(files) > 10
    assert all(Path(file).is_relative_to(installed) and Path(file).is_file() for file in files)
    assert count > 100
    assert schema == json.loads((ROOT / "docs/reference/lookup_table.schema.json").read_text(encoding="utf-8"))


def test_plugins_have_author_licence_and_classifiers_of_the_package():
    def metadata(path: Path) -> tuple[str, str, set[str]]:
        parser = configparser.ConfigParser()
        parser.read(path, encoding="utf-8")
        found = parser["metadata"]
        typed = {"Typing :: Typed"}
        return found["author"], found["license"], set(found["classifiers"].strip().splitlines()) - typed

    package = metadata(ROOT / "setup.cfg")
    assert all(metadata(path) == package for path in (ROOT / "plugins").glob("*/setup.cfg"))


def test_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    metadata = _setup()["metadata"]
    assert (citation["version"], citation["license"]) == (__version__, metadata["license"])
    assert [author["name"] for author in citation["authors"]] == [metadata["author"]]


def test_hooks_before_a_commit_are_the_linters_of_make():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == re.findall(
        r"^\t@(.*)$", recipe.replace("$(BIN)", ".venv/bin"), re.MULTILINE
    )


def test_hosted_services_run_what_a_contributor_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    pages = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text(encoding="utf-8"))
    assert (ROOT / pages["sphinx"]["configuration"]).is_file()
    installed = re.findall(r"-e ['.]*(/[^ \[]*)?", " ".join(pages["build"]["jobs"]["install"]))
    assert len(installed) == 1 + len(_PLUGINS)
    assert all((ROOT / path.removeprefix("/") / "setup.cfg").is_file() for path in installed)


def test_templates_of_issues_say_what_they_are_for():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir():
        _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
        assert {"name", "about"} <= set(yaml.safe_load(head))
        assert body.strip()


def test_targets_that_contributors_read_about_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"[`$] ?make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert {"check", "test"} <= named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


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


def test_every_python_file_names_its_licence():
    folders = ("nni_latency", "lut", "plugins", "examples", "tests", "docs", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py*") if path.suffix in (".py", ".pyi")]
    line = "# SPDX-License-Identifier: Apache-2.0"
    tops = {path: path.read_text(encoding="utf-8").splitlines()[:2] for path in files if "build" not in path.parts}
    assert len(tops) > 800
    # A shebang stays first.
    assert not [path for path, top in tops.items() if line not in (top if top[0].startswith("#!") else top[:1])]
