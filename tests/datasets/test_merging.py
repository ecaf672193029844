"""Data sets of two machines as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_platforms import FAST, SLOW

from nni_latency.datasets import load_networks, merge_networks, save_networks
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.platforms import Platform

OTHER = Platform("elsewhere", "onnxruntime")


@pytest.fixture
def elsewhere(files, measured, tmp_path):
    """Save what another machine said of the same networks."""
    path = tmp_path / "elsewhere.zip"
    save_networks(path, files, [replace(measured[0], platform=OTHER, campaign="8")])
    return path


def test_merged_sets_have_the_latencies_of_both(saved, elsewhere, tmp_path):
    parts = [load_networks(path) for path in (saved, elsewhere)]
    merge_networks(parts, tmp_path / "both.zip")
    both = load_networks(tmp_path / "both.zip")
    wanted = [entry for part in parts for entry in part]
    for found, entry in zip(both, wanted, strict=True):
        assert (found.name, found.platform, found.latency, found.n_visits) == (
            entry.name,
            entry.platform,
            entry.latency,
            entry.n_visits,
        )
        assert found.graph == entry.graph
        assert found.parts == entry.parts
        assert both.onnx(found.name) == parts[0].onnx(found.name)
    assert [(run.platform.id, run.campaign) for run in both.runs] == [(FAST.id, "7"), (SLOW.id, "7"), (OTHER.id, "8")]
    assert both.failures == {FAST.id: {}, SLOW.id: {"toy-00001": "it cannot"}, OTHER.id: {}}
    assert "3 latencies of 2 networks" in load_networks(saved).card
    assert "5 latencies of 2 networks" in both.card


def test_part_of_a_set_is_merged_without_the_rest(saved, elsewhere, tmp_path):
    merge_networks([load_networks(saved).only(platform=SLOW.id), load_networks(elsewhere)], tmp_path / "both.zip")
    both = load_networks(tmp_path / "both.zip")
    assert [item.id for item in both.platforms] == [SLOW.id, OTHER.id]
    assert [run.platform.id for run in both.runs] == [SLOW.id, OTHER.id]


@pytest.mark.parametrize(("conflict", "factor"), [("first", 1.0), ("last", 1.5)])
def test_conflict_says_which_latency_is_kept(saved, files, measured, tmp_path, conflict, factor):
    slower = {
        key: replace(found, value=1.5 * found.value, high=2 * found.value)
        for key, found in measured[0].latencies.items()
    }
    save_networks(tmp_path / "slower.zip", files, [replace(measured[0], latencies=slower)])
    parts = [load_networks(saved), load_networks(tmp_path / "slower.zip")]
    with pytest.raises(FileFormatError, match=r"Two latencies of one network disagree in 'the data sets': .*toy-00001"):
        merge_networks(parts, tmp_path / "both.zip")
    assert not (tmp_path / "both.zip").exists()
    both = merge_networks(parts, tmp_path / "both.zip", conflict=conflict)
    assert [entry.latency for entry in both.only(platform=FAST.id)] == pytest.approx([factor * 0.001] * 2)
    assert len(both) == 3


def test_two_networks_of_one_name_are_refused(saved, files, measured, tmp_path):
    first, second = files
    swapped = [replace(second, name=first.name)]
    about = measured[0]
    latencies = {swapped[0].key: about.latencies[second.key]}
    save_networks(tmp_path / "swapped.zip", swapped, [replace(about, platform=OTHER, latencies=latencies)])
    with pytest.raises(InvalidValueError, match="Two networks have the name 'toy-00000-b1'"):
        merge_networks([load_networks(saved), load_networks(tmp_path / "swapped.zip")], tmp_path / "both.zip")


def test_one_set_cannot_be_merged(saved, tmp_path):
    with pytest.raises(InvalidValueError, match=r"At least two data sets can be merged\. Got 1"):
        merge_networks([load_networks(saved)], tmp_path / "both.zip")
