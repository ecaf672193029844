"""The plugin of plugins/ installed for real and used through its entry point, next to plugins that misbehave."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / "plugins" / "nni_latency_roofline"


def _reason_to_skip():
    if importlib.util.find_spec("pip") is None:
        return "needs pip"
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        return "needs setuptools"
    return "" if int(version.partition(".")[0]) >= 77 else f"needs setuptools 77, found {version}"


pytestmark = [pytest.mark.installs, pytest.mark.skipif(bool(_reason_to_skip()), reason=_reason_to_skip() or "-")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install a copy of the plugin's folder, without the network, into a folder of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    source, target = folder / "source", folder / "target"
    shutil.copytree(_FOLDER, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True)
    return target


@pytest.fixture
def run(installed, tmp_path):
    """Run code in a process that sees the installed plugin, and whatever else a test lays beside it."""

    def run_code(code, *, plugins=None):
        environment = {name: value for name, value in os.environ.items() if name != "NNI_LATENCY_PLUGINS"}
        environment["PYTHONPATH"] = os.pathsep.join([str(installed), str(tmp_path)])
        if plugins is not None:
            environment["NNI_LATENCY_PLUGINS"] = plugins
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_code


@pytest.fixture
def distribution(tmp_path):
    """Lay a made-up distribution into the folder, as an installer would leave it."""

    def make(name, code):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[nni_latency]\n{name}_point = {name}\n")

    return make


_CLASH = """
    from nni_latency import hookimpl

    @hookimpl
    def register_estimators(register):
        register("roofline", dict)
"""

_USE = """
    import json
    import torch
    from nni_latency import LatencyError, load_estimator

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1, bias=False), torch.nn.ReLU())
    try:
        result = load_estimator("roofline:100,20").estimate(model, torch.zeros(1, 3, 32, 32)).value
    except LatencyError as error:
        result = str(error)
    print(json.dumps(result))
"""

# 1024 pixels: the convolution reads 3, writes 8, holds 24 weights; the activation reads 8, writes 8; 4 bytes each.
_SECONDS = 4 * (1024 * (3 + 8) + 24 + 1024 * 16) / 20e9

_LIST = """
    import json
    from nni_latency.plugins import load_registry

    registry = load_registry()
    print(json.dumps({
        "estimators": sorted(registry.estimators),
        "plugins": {plugin.name: [plugin.distribution, plugin.version, plugin.error] for plugin in registry.plugins},
    }))
"""


def test_installed_plugin_is_used_through_its_entry_point(run):
    assert run(_USE) == pytest.approx(_SECONDS)


def test_installed_plugin_is_the_one_that_was_installed(run, installed):
    found = run("import json, nni_latency_roofline; print(json.dumps(nni_latency_roofline.__file__))")
    assert Path(found).is_relative_to(installed)
    assert (installed / "nni_latency_roofline" / "py.typed").exists()


def test_installed_plugin_keeps_the_contract(run):
    code = """
        import json
        import nni_latency_roofline.plugin
        from nni_latency.testing import check_plugin

        print(json.dumps(check_plugin(nni_latency_roofline.plugin)))
    """
    assert run(code) is None


def test_installed_plugin_is_listed_with_its_distribution(run):
    found = run(_LIST)
    assert "roofline" in found["estimators"]
    assert found["plugins"]["roofline"] == ["nni_latency_roofline", "0.1.0", None]


def test_broken_plugin_is_reported_by_name_and_the_rest_work(run, distribution):
    distribution("crumbling", "raise ZeroDivisionError('on import')")
    found = run(_LIST)
    assert found["plugins"]["crumbling_point"] == ["crumbling", "1.0", "ZeroDivisionError: on import"]
    assert {"roofline", "table"} <= set(found["estimators"])
    assert run(_USE) == pytest.approx(_SECONDS)


def test_clash_of_names_is_reported_with_both_owners(run, distribution):
    distribution("clashing", _CLASH)
    message = run(_USE)
    assert "Two plugins register the estimator 'roofline': 'clashing_point' and 'roofline'" in message
    assert "NNI_LATENCY_PLUGINS" in message


def test_clash_is_settled_by_naming_the_plugins_to_load(run, distribution):
    distribution("clashing", _CLASH)
    assert run(_USE, plugins="roofline") == pytest.approx(_SECONDS)
