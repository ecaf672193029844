# SPDX-License-Identifier: Apache-2.0
"""Tables of operators on the command line: build-lut, show and validate for any space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from nni_latency.cli import _remote_options
from nni_latency.cli._space_options import operator_table_name
from nni_latency.operators import work_of
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable
from nni_latency.testing import FakeRuntime

OWN = f"{Path(__file__).parent.parent / 'spaces' / 'own_space.py'}:OwnSpace"
NEEDY = OWN.replace("OwnSpace", "NeedsArguments")


def seconds(op):
    """Return the time of an operator on the invented machine."""
    work, _ = work_of(op)
    return 1e-5 + 1e-9 * (work.macs + work.inputs + work.outputs + work.params)


@pytest.fixture(scope="module")
def _invented():
    """Put an invented machine under the commands."""

    def make(*arguments):
        return FakeRuntime(seconds, platform=Platform.current("cpu"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_remote_options, "make_runtime", make)
        yield


@pytest.fixture(scope="module")
def table(run, tmp_path_factory, _invented):
    """Build a table of the invented machine; return its path and what was printed."""
    out = tmp_path_factory.mktemp("operators") / "own.json"
    options = ("--networks", "6", "--protocol", "rounds=3", "--space-args", '{"widths": [8, 16, 24], "num_labels": 5}')
    return out, run("build-lut", "--space", OWN, "--out", out, *options)


@pytest.mark.slow
def test_a_real_space_of_ones_own_is_built_and_shown(run, tmp_path):
    out = tmp_path / "real.json"
    few = ("--networks", "3", "--protocol", "rounds=2", "--protocol", "processes=1")
    built = run("build-lut", "--space", OWN, *few, "--out", out)
    assert "operators in 3 networks" in built.stdout
    assert LookupTable.load(out).space.name == OWN
    shown = run("show", out, "--plot", tmp_path / "t.png")
    assert "conv2d dense" in shown.stdout
    assert imread(tmp_path / "t.png").ndim == 3


def test_a_compiled_runtime_is_refused(fails):
    assert "cannot time the operators of a network one by one" in fails(
        "build-lut", "--space", OWN, "--runtime", "torchscript"
    )


def test_a_table_of_energy_is_built_shown_and_validated(run, _invented, tmp_path):
    out = tmp_path / "energy.json"
    words = ["--networks", 4, "--protocol", "rounds=3", "--metric", "energy", "--meter", "constant:2"]
    built = run("build-lut", "--space", OWN, *words, "--out", out)
    assert "operators in 4 networks, 3 rounds" in built.stdout
    assert "a constant power of 2 W, which is an assumption" in built.stderr
    assert LookupTable.load(out).metric == "energy"
    assert "energy [uJ]" in run("show", out).stdout


def test_estimated_tables_of_two_metrics_have_two_names(run, table, tmp_path):
    latency = LookupTable.load(table[0])
    latency.with_entries(lambda entry: entry.scaled(2.0), metric="energy").save(tmp_path / "measured.json")
    space = ["--space", OWN, "--networks", 2, "--space-args", '{"widths": [8, 16, 24], "num_labels": 5}']
    for source, metric in ((table[0], "latency"), (tmp_path / "measured.json", "energy")):
        run("build-lut", *space, "--from", source, "--metric", metric)
    platform = Platform.current("cpu").id
    metrics = {path.name: LookupTable.load(path).metric for path in tmp_path.glob("own_space-*.json")}
    assert metrics == {
        f"own_space-OwnSpace-16x16-b1.{platform}.json": "latency",
        f"own_space-OwnSpace-16x16-b1.{platform}.energy.json": "energy",
    }


def test_a_table_says_what_it_rests_on(run, table):
    out, built = table
    assert f"Wrote {out}" in built.stdout
    assert "operators in 6 networks, 3 rounds" in built.stdout
    assert "Measuring 6 networks of" in built.stderr
    facts = json.loads(run("show", out, "--format", "json").stdout)
    assert facts["space"] == {"name": OWN, "arguments": {"widths": [8, 16, 24], "num_labels": 5}}
    assert facts["networks"] == 6
    assert facts["coverage"] > 0.5
    assert "conv2d dense" in facts["spreads"]


def test_a_validation_draws_other_networks_of_the_tables_own_space(run, table, tmp_path):
    out = table[0]
    content = json.loads(
        run("validate", out, "--space", OWN, "--networks", "4", "--protocol", "rounds=3", "--format", "json").stdout
    )
    known = [dict(network.sample) for network in LookupTable.load(out).networks]
    assert len(content["networks"]) == 4
    assert not [network for network in content["networks"] if network["selection"] in known]
    assert content["scores"]["within10"] == 1.0
    # What is told of a table beside it.
    (out.parent / "own.validation.json").write_text(json.dumps(content))
    assert "4 networks: MAPE" in run("show", out).stdout


def test_options_that_do_not_fit_the_table_are_refused(fails, table):
    own = ["validate", table[0], "--space", OWN]
    assert ", not to 'fbnet'." in fails("validate", table[0], "--space", "fbnet")
    assert "num_labels=5 in the table, num_labels=4 requested" in fails(*own, "--space-args", "num_labels=4")
    assert "measured with batch size 1, not with 2" in fails(*own, "--batch-size", "2")
    assert "input_size=16 in the table, input_size=32 requested" in fails(*own, "--input-size", "32")


def test_bad_input_is_told_in_one_sentence(run, fails, table):
    out = table[0]
    assert "width" in fails("build-lut", "--space", "mobilenetv3", "--space-args", "breadth=2")
    assert "a name and a value" in fails("build-lut", "--space", OWN, "--space-args", "3")
    assert "Cannot import the space 'nothing:Space'" in run("build-lut", "--space", "nothing:Space", code=2).stderr
    assert "missing a required argument: 'width'" in fails("build-lut", "--space", NEEDY)
    sizes = fails("build-lut", "--space", NEEDY, "--space-args", '{"width": 4}')
    assert "Give the input image size" in sizes
    assert "A table of operators holds latency or energy" in fails(
        "build-lut", "--space", OWN, "--metric", "throughput"
    )
    assert "omit --networks" in fails("build-lut", "--networks", "3")
    assert "--overwrite" in fails("build-lut", "--space", OWN, "--out", out)


def test_a_file_is_named_after_space_input_and_platform():
    platform = Platform("cpu", "torch")
    assert (
        operator_table_name("folder/mine.py:Space", (2, 3, 16, 16), platform, "latency")
        == "mine-Space-16x16-b2.cpu.torch.fp32.t1.json"
    )
    assert operator_table_name("darts", (1, 8), platform, "energy") == "darts-1x8-b1.cpu.torch.fp32.t1.energy.json"
