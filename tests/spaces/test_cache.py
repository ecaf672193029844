# SPDX-License-Identifier: Apache-2.0
"""Walks and traces that are kept in the user's cache."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nni_latency.files import cache_folder
from nni_latency.imports import quiet_nni
from nni_latency.operators import freeze_inputs
from nni_latency.spaces import draw_samples, hub_space, make_space, operator_plan, operators_of_space, space_key

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

INPUTS = torch.zeros(1, 3, 16, 16)

SMALL = {"stem_out_channels": 16, "num_stacks": 1, "num_modules_per_stack": 1}

_CALLS = []

OWN = """
from beside import activation
from nni.nas.nn.pytorch import LayerChoice, ModelSpace
from torch import nn

class Own(ModelSpace):
    def __init__(self, width=4):
        super().__init__()
        self.layer = LayerChoice([nn.Conv2d(3, width, 1), nn.Conv2d(3, width, 3)], label="layer")

    def forward(self, inputs):
        return activation(self.layer(inputs))
"""


class Counting(ModelSpace):
    """Counts how often its forward runs."""

    def __init__(self, steps=1):
        super().__init__()
        self.layer = LayerChoice([nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3)], label="layer")
        self.steps = steps

    def forward(self, inputs):
        _CALLS.append(inputs)
        return self.layer(inputs)


def _n_runs(function):
    _CALLS.clear()
    function()
    return len(_CALLS)


def _key(space, inputs=INPUTS, *more):
    return space_key(space, freeze_inputs(inputs), *more)


def test_a_walk_is_kept():
    space = Counting()
    assert _n_runs(lambda: operators_of_space(space, INPUTS)) == 1
    assert _n_runs(lambda: operators_of_space(space, INPUTS)) == 0
    assert _n_runs(lambda: operators_of_space(Counting(), INPUTS)) == 0
    assert _n_runs(lambda: operators_of_space(space, INPUTS, fresh=True)) == 1
    assert (cache_folder() / "spaces").stat().st_mode & 0o777 == 0o700


def test_what_is_kept_is_what_was_walked():
    space = hub_space("nasbench101", **SMALL)
    walked, kept = operators_of_space(space, INPUTS), operators_of_space(space, INPUTS)
    assert kept is not walked
    assert kept.distinct == walked.distinct
    for sample in draw_samples(space, 5):
        assert kept.operators_of(sample) == walked.operators_of(sample)


@pytest.mark.slow
def test_another_process_finds_the_walk(tmp_path):
    (tmp_path / "beside.py").write_text("from torch import relu as activation\n")
    (tmp_path / "mine.py").write_text(OWN)
    code = (
        "import torch; from nni_latency.spaces import make_space, space_key\n"
        "from nni_latency.operators import freeze_inputs\n"
        "spaces = [make_space('mine.py:Own'), make_space('nasbench201'), make_space('darts', {'num_cells': 3})]\n"
        "print(*(space_key(space, freeze_inputs(torch.zeros(1, 3, 32, 32))) for space in spaces))"
    )
    run = [sys.executable, "-W", "ignore", "-c", code]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    first, second = (subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=env) for env in seeds)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "None" not in first.stdout


def test_the_key_tells_what_makes_a_difference(monkeypatch):
    space = hub_space("nasbench201", num_modules_per_stack=1)
    keys = [
        _key(space),
        _key(space, torch.zeros(2, 3, 16, 16)),
        _key(space, INPUTS.double()),
        _key(space, INPUTS, "graph"),
        _key(hub_space("nasbench201", num_modules_per_stack=2)),
        _key(Counting()),
        _key(Counting(2)),
    ]
    space.stem = nn.Conv2d(3, 16, 1)
    keys.append(_key(space))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.append(_key(space))
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("name", "folder", "is_same"),
    [("mine.py", "", False), ("beside.py", "", False), ("beside.py", "lib/site-packages", True)],
    ids=["its own", "beside", "installed elsewhere"],
)
def test_an_edited_file_is_another_space(name, folder, is_same, tmp_path, monkeypatch):
    beside = tmp_path / folder / "beside.py"
    beside.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(beside.parent), *sys.path])
    beside.write_text(
        "from torch.nn.functional import relu as inner\n\ndef activation(value):\n    return inner(value)\n"
    )
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    importlib.invalidate_caches()
    before = _key(make_space(f"{tmp_path / 'mine.py'}:Own"))
    edited = beside if name == "beside.py" else tmp_path / name
    edited.write_text(edited.read_text() + "\n# edited\n")
    assert before is not None
    assert (_key(make_space(f"{tmp_path / 'mine.py'}:Own")) == before) is is_same
    monkeypatch.delitem(sys.modules, "beside", raising=False)


def test_what_cannot_be_recognised_is_not_kept():
    class Local(Counting):
        pass

    assert _key(Local()) is None
    assert [_n_runs(lambda: operators_of_space(Local(), INPUTS)) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("harm", ["open", "link", "file", "above"])
def test_a_folder_that_others_can_write_to_is_not_used(harm, tmp_path, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "spaces"
    folder.mkdir(parents=True, mode=0o700)
    if harm == "open":
        folder.chmod(0o770)
    elif harm == "above":
        folder.parent.chmod(0o777)
    else:
        folder.rmdir()
        folder.write_text("") if harm == "file" else folder.symlink_to(tmp_path)
    assert [_n_runs(lambda: operators_of_space(Counting(), INPUTS)) for _ in range(2)] == [1, 1]
    assert not folder.is_dir() or harm == "link" or not any(folder.iterdir())


def test_a_damaged_walk_is_walked_again():
    operators_of_space(Counting(), INPUTS)
    (path,) = (cache_folder() / "spaces").rglob("output.pkl")
    path.write_bytes(path.read_bytes()[:20])
    assert _n_runs(lambda: operators_of_space(Counting(), INPUTS)) == 1
    assert _n_runs(lambda: operators_of_space(Counting(), INPUTS)) == 0


def test_a_full_disk_does_not_stop_a_walk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        found = operators_of_space(Counting(), INPUTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(found.distinct) == 2
    assert _n_runs(lambda: operators_of_space(Counting(), INPUTS)) == 1


def test_traces_of_planned_networks_are_kept():
    plans = [operator_plan(Counting(), n_networks=1, input_size=16) for _ in range(2)]
    assert _n_runs(lambda: plans.append(operator_plan(Counting(), n_networks=1, input_size=16))) == 0
    assert plans[0].networks[0].trace == plans[2].networks[0].trace
    assert len([*Path(cache_folder()).rglob("output.pkl")]) == 2
