# SPDX-License-Identifier: Apache-2.0
"""A search that is interrupted goes on where it was saved, and finds what it would have found."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from toys import Toy, pictures, profiler_of, seeded

from nni_latency.errors import FileFormatError, MismatchError, OutputError
from nni_latency.nas import (
    STRATEGIES,
    Checkpoint,
    Dataset,
    SearchAim,
    SearchSettings,
    SearchState,
    is_one_shot,
    make_strategy,
    run_search,
    run_trials,
)

SETTINGS = SearchSettings(epochs=3, final_epochs=2, batch_size=16)
ASKED = {"space": "toy", "limit": 8e-3, "shape": (1, 2)}


class StoppedError(Exception):
    """What stops a search."""


def _search(name, checkpoint, *, stop_after=None, stop_in_final=None, seed=0):
    """Search, and stop after so many epochs or trials, or in the final training."""
    space = seeded(Toy)
    profiler = profiler_of(space)
    strategy = make_strategy(name, SearchAim(profiler, limit=8e-3, trials=4, learning_rate=0.1, seed=seed))
    dataset = Dataset("toy", pictures(48), pictures(32, seed=2), num_classes=2, input_size=8)

    def on_step(step):
        if step.index == stop_after:
            raise StoppedError

    def on_final_epoch(index):
        if index == stop_in_final:
            raise StoppedError

    how = {"profiler": profiler, "checkpoint": checkpoint, "on_final_epoch": on_final_epoch}
    if is_one_shot(name):
        return run_search(space, dataset, strategy, SETTINGS, limit=8e-3, on_epoch=on_step, **how)
    return run_trials(space, dataset, strategy, SETTINGS, trials=4, on_trial=on_step, **how)


@pytest.fixture
def checkpoint(tmp_path):
    """Make a checkpoint anew, as another process would."""
    return lambda asked=ASKED: Checkpoint(tmp_path / "found" / "checkpoint.safetensors", asked)


def _figures(result):
    """Return what a search found, without the times."""
    steps = [{name: value for name, value in vars(step).items() if name != "duration"} for step in result.history]
    weights = {name: value.tolist() for name, value in result.network.state_dict().items()}
    return result.sample, result.latency, result.accuracy, steps, weights


@pytest.mark.parametrize("name", STRATEGIES)
def test_interrupted_search_finds_the_same(name, checkpoint):
    whole = _figures(_search(name, None))
    for stop in ({"stop_after": 1}, {"stop_in_final": 0}):
        with pytest.raises(StoppedError):
            _search(name, checkpoint(), **stop)
    assert _figures(_search(name, checkpoint())) == whole


def test_every_epoch_is_saved_before_it_is_reported(checkpoint):
    with pytest.raises(StoppedError):
        _search("darts", checkpoint(), stop_after=0)
    state = checkpoint().state
    assert (state.stage, state.done, len(state.history), state.sample) == ("search", 1, 1, None)
    with pytest.raises(StoppedError):
        _search("darts", checkpoint(), stop_in_final=1)
    state = checkpoint().state
    assert (state.stage, state.done, len(state.history)) == ("final", 2, 3)
    assert set(state.sample) == {"a", "b", "c"}


def test_trials_that_are_drawn_differently_are_refused(checkpoint):
    with pytest.raises(StoppedError):
        _search("random", checkpoint(), stop_after=1)
    with pytest.raises(MismatchError, match="draws another network for trial 1 than before"):
        _search("random", checkpoint(), seed=1)


def test_checkpoint_of_another_search_is_refused(checkpoint):
    checkpoint().save(SearchState("search", 1, (), {}))
    with pytest.raises(MismatchError, match=r"other options: limit=0\.008 in it, limit=0\.5 requested; epochs=None"):
        checkpoint({**ASKED, "limit": 0.5, "epochs": 3}).state  # noqa: B018


@pytest.mark.parametrize(
    "content",
    [
        None,
        "rubbish",
        {},
        {"nni_latency": "[]"},
        {"nni_latency": "[" * 100_000},
        {"nni_latency": json.dumps({"format": "nni_latency.checkpoint", "version": 2})},
        {"nni_latency": json.dumps({"format": "nni_latency.checkpoint", "version": 1, "asked": 3})},
        {
            "nni_latency": json.dumps(
                {"format": "nni_latency.checkpoint", "version": 1, "asked": ASKED, "stage": "search", "done": 1}
                | {"history": 3, "sample": None}
            )
        },
    ],
)
def test_file_that_is_no_checkpoint_is_refused(checkpoint, content):
    made = checkpoint()
    made.path.parent.mkdir()
    if isinstance(content, dict):
        save_file({"random": torch.zeros(1)}, made.path, metadata=content)
    else:
        made.path.write_bytes((content or "").encode())
    with pytest.raises(FileFormatError, match="is not a checkpoint of a search"):
        made.state  # noqa: B018


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (SearchState("search", 1, ({"index": 0, "colour": 3},), {}), "does not hold a search of this kind"),
        (SearchState("search", 1, (), {"random": torch.get_rng_state()}), "is not of this network"),
        (SearchState("search", 1, (), {}), "is not of this network"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused(checkpoint, state, complaint):
    checkpoint().save(state)
    with pytest.raises((FileFormatError, MismatchError), match=complaint):
        _search("darts", checkpoint())


def test_checkpoint_that_cannot_be_written_leaves_the_older_one(checkpoint, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    made = checkpoint()
    made.save(SearchState("search", 1, (), {}))
    monkeypatch.setattr("nni_latency.nas._checkpoint.save_file", full)
    with pytest.raises(OutputError, match="No space left on device"):
        made.save(SearchState("search", 2, (), {}))
    assert checkpoint().state.done == 1
    made.remove()
    assert list(made.path.parent.iterdir()) == []


def test_checkpoint_behind_a_link_is_removed_with_what_an_interrupted_writing_left(checkpoint, tmp_path):
    made, real = checkpoint(), tmp_path / "elsewhere" / "real.safetensors"
    made.path.parent.mkdir()
    made.path.symlink_to(real)
    made.save(SearchState("search", 1, (), {}))
    (real.parent / ".real.safetensors.0123abcd").touch()
    made.remove()
    assert list(real.parent.iterdir()) == []
    assert checkpoint().state is None
