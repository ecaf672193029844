# SPDX-License-Identifier: Apache-2.0
"""The plugins of plugins/ installed for real and used through their entry points, next to plugins that misbehave."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from nni_latency import LookupTable, TableEstimator
from nni_latency.spaces import FBNetSpace

_PLUGINS = ("nni_latency_roofline", "nni_latency_fx", "nni_latency_cpu_energy", "nni_latency_ghost")
_FOLDER = Path(__file__).parents[1] / "plugins"


def _reason_to_skip():
    if importlib.util.find_spec("pip") is None:
        return "needs pip"
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        return "needs setuptools"
    return "" if int(version.partition(".")[0]) >= 77 else f"needs setuptools 77, found {version}"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.installs,
    pytest.mark.skipif(bool(_reason_to_skip()), reason=_reason_to_skip() or "-"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install copies of the plugins' folders, without the network, into a new folder."""
    folder = tmp_path_factory.mktemp("plugin")
    sources, target = [folder / name for name in _PLUGINS], folder / "target"
    for source in sources:
        ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        shutil.copytree(_FOLDER / source.name, source, ignore=ignored)
    _install(target, *sources)
    return target


def _install(target, *sources):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), *map(str, sources)], check=True, capture_output=True)


def _run(code, folders, cwd, plugins=None):
    """Return what code prints as JSON, in a process that sees the plugins of some folders."""
    environment = {name: value for name, value in os.environ.items() if name != "NNI_LATENCY_PLUGINS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    if plugins is not None:
        environment["NNI_LATENCY_PLUGINS"] = plugins
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run(installed, tmp_path):
    """Run code in a process that sees the installed plugin, and whatever else a test lays beside it."""
    return lambda code, **options: _run(code, [installed, tmp_path], tmp_path, **options)


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
    from nni_latency.plugins import load_registry

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1, bias=False), torch.nn.ReLU())
    try:
        result = load_estimator("roofline:100,20").estimate(model, torch.zeros(1, 3, 32, 32)).value
        plugins = {item.name: [item.distribution, item.version, item.error] for item in load_registry().plugins}
        estimators = sorted(load_registry().estimators)
    except LatencyError as error:
        result, plugins, estimators = str(error), {}, []
"""
_PRINT = """
    print(json.dumps({"result": result, "plugins": plugins, "estimators": estimators}))
"""

# 1024 pixels: the convolution reads 3, writes 8, holds 24 weights; the activation reads 8, writes 8; 4 bytes each.
_SECONDS = 4 * (1024 * (3 + 8) + 24 + 1024 * 16) / 20e9


def test_installed_plugin_keeps_the_contract_and_is_used_through_its_entry_point(run, installed):
    code = """
    import nni_latency_roofline.plugin
    from nni_latency.testing import check_plugin

    check_plugin(nni_latency_roofline.plugin)
    print(json.dumps([nni_latency_roofline.__file__, result, plugins, estimators]))
    """
    place, result, plugins, estimators = run(_USE + code)
    assert Path(place).is_relative_to(installed)
    assert (installed / "nni_latency_roofline" / "py.typed").exists()
    assert result == pytest.approx(_SECONDS)
    assert "roofline" in estimators
    assert plugins["roofline"] == ["nni_latency_roofline", "0.1.0", None]


def test_broken_plugin_is_reported_by_name_and_the_rest_work(run, distribution):
    distribution("crumbling", "raise ZeroDivisionError('on import')")
    found = run(_USE + _PRINT)
    assert found["plugins"]["crumbling_point"] == ["crumbling", "1.0", "ZeroDivisionError: on import"]
    assert {"roofline", "table"} <= set(found["estimators"])
    assert found["result"] == pytest.approx(_SECONDS)


def test_clash_of_names_is_reported_with_both_owners(run, distribution):
    distribution("clashing", _CLASH)
    message = run(_USE + _PRINT)["result"]
    assert "Two plugins register the estimator 'roofline': 'clashing_point' and 'roofline'" in message
    assert "NNI_LATENCY_PLUGINS" in message


def test_clash_is_settled_by_naming_the_plugins_to_load(run, distribution):
    distribution("clashing", _CLASH)
    assert run(_USE + _PRINT, plugins="roofline")["result"] == pytest.approx(_SECONDS)


_RUNTIME = """
    import json
    from nni_latency.plugins import load_registry
    from nni_latency.measurement import Protocol
    from nni_latency.spaces import FBNetSpace
    from nni_latency.tables import build_table
    from nni_latency.testing import check_runtime

    registration = load_registry().find("runtime", "torch-fx")
    runtime = registration.make("cpu", threads=1)
    check_runtime(runtime)
    plan = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25).measure_plan()
    table = build_table(plan, runtime, Protocol(rounds=2, processes=1), "t.json", store="memory")
    other = registration.make("cpu", threads=1, fold="false")
    print(json.dumps([table.platform.id, table.coverage, other.platform.differences(runtime.platform)]))
"""

_METER = """
    import json
    import torch
    from nni_latency.measurement import MemoryStore, NetworkSchedule, Protocol, Subject
    from nni_latency.measurement.runtimes import TorchEager
    from nni_latency.plugins import load_registry
    from nni_latency.tables import Measuring
    from nni_latency.testing import check_meter

    meter = load_registry().find("meter", "cpu-energy").make("cpu")
    matrix = torch.ones(256, 256)
    check_meter(meter, lambda: matrix @ matrix)
    protocol, store = Protocol(rounds=3, processes=1), MemoryStore()
    subject = Subject.of_module(torch.nn.Conv2d(16, 64, 3), (1, 16, 64, 64))
    Measuring(TorchEager(), protocol, store, meters=(meter,)).run(NetworkSchedule([subject], protocol), {})
    (campaign,) = store.campaigns()
    powers = [record.samples["energy"][0] / min(record.samples["latency"]) for record in campaign.records]
    print(json.dumps([len(powers), min(powers), max(powers)]))
"""


def test_installed_runtime_measures_a_table(run):
    platform, coverage, differences = run(_RUNTIME)
    assert platform.endswith(".torch-fx.fp32.t1")
    assert coverage == 1.0
    assert differences == ["runtime.fold: False against True"]


def test_installed_meter_is_read_in_the_worker_and_its_samples_are_kept(run):
    """One busy processor is assumed to take ten watts."""
    count, low, high = run(_METER)
    assert count == 3
    assert 1.0 < low <= high < 100.0


_KERNEL = """
    import json
    import nni_latency_ghost
    from nni_latency.kernels import Kernel, Sampling, build_predictors, find_types
    from nni_latency.loading import load_kernel_types
    from nni_latency.measurement import Protocol
    from nni_latency.testing import FakeRuntime, check_plugin

    check_plugin(nni_latency_ghost)
    kinds = find_types(["ghost_module"], load_kernel_types())
    protocol, sampling = Protocol(n_warmup=0, time_budget=600.0), Sampling(10, iteration=0)
    runtime = FakeRuntime(lambda op: 1e-6)
    found = build_predictors(kinds, runtime, "k.json", protocol=protocol, sampling=sampling, store="memory")
    kernel = Kernel.of("ghost_module", HW=28, CIN=40, COUT=120, KERNEL_SIZE=3)
    kinds_of_ops = [op.kind for op in kinds[0].ops(kernel)]
    print(json.dumps([found.estimate_kernel(kernel).value, len(found.kernels), kinds_of_ops]))
"""


def test_installed_kernel_is_measured_and_predicted(run):
    seconds, count, kinds = run(_KERNEL)
    assert seconds == pytest.approx(7e-6, rel=0.1)
    assert count == 10
    assert kinds == ["conv2d", "batch_norm", "relu", "conv2d", "batch_norm", "relu", "cat"]


def _documented(caption):
    """Return the code of the page on plugins that has a caption; without one, the first that has none."""
    page = (_FOLDER.parent / "docs" / "plugins.rst").read_text()
    option = rf"\n +:caption: {re.escape(caption)}" if caption else ""
    block = re.search(rf"\.\. code-block:: \w+{option}\n\n((?:(?: {{3}}.*)?\n)+)", page)
    assert block, caption
    return textwrap.dedent(block[1])


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """Install the example of the page on plugins as it stands there, and lay a table of FBNet beside it."""
    folder = tmp_path_factory.mktemp("documented")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for name in ("nni_latency_scaled.py", "setup.cfg", "pyproject.toml"):
        (source / name).write_text(_documented(name))
    _install(target, source)
    space = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25)
    latencies = {layer.name: dict.fromkeys(layer.candidates, 0.001) for layer in space.measure_plan().searched}
    table = LookupTable.from_latencies(space, latencies)
    table.save(target / "table.json")
    return target, table


def test_documented_plugin_installs_and_works_as_it_stands_in_the_page(documented, tmp_path):
    folder, table = documented
    (tmp_path / "table.json").write_text((folder / "table.json").read_text())
    code = """
    import json
    import sys
    import nni_latency_scaled
    from nni_latency.plugins import load_registry

    registered = {item.name: [item.distribution, item.error] for item in load_registry().plugins}
    quick = not {"torch", "nni"} & set(sys.modules)
    from nni_latency.testing import check_plugin

    check_plugin(nni_latency_scaled)
    exec(compile(open("used.py").read(), "used.py", "exec"))
    found = load_estimator("scaled:1.8:table.json")
    print(json.dumps([registered["scaled"], quick, found.predict([[0] * len(found.table.searched)]).tolist()]))
    """
    (tmp_path / "used.py").write_text(_documented(""))
    registered, quick, predicted = _run(code, [folder], tmp_path)
    assert registered == ["nni_latency_scaled", None]
    assert quick, "a list of plugins imports no torch"
    assert predicted == pytest.approx(1.8 * TableEstimator(table).predict([[0] * len(table.searched)]))


@pytest.mark.parametrize("name", ["nni_latency_fx", "nni_latency_cpu_energy", "nni_latency_ghost"])
def test_example_plugin_is_one_short_module(name):
    (module,) = (_FOLDER / name).glob("*.py")
    assert len(module.read_text().splitlines()) <= 150
