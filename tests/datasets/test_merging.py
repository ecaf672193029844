# SPDX-License-Identifier: Apache-2.0
"""Data sets of two machines as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_platforms import FAST, SLOW

from nni_latency.datasets import load_networks, merge_networks, save_networks
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.measurement import NetworkSummary
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


def _at_speed(saved, files, measured, path, factors):
    """Write a set whose networks take other times, and read both."""
    slower = {
        file.key: replace(found, value=found.value * factor, low=found.low * factor, high=found.high * factor)
        for (file, found), factor in zip(
            ((file, measured[0].latencies[file.key]) for file in files), factors, strict=True
        )
    }
    save_networks(path, files, [replace(measured[0], latencies=slower)])
    return [load_networks(saved).only(platform=FAST.id), load_networks(path)]


def test_mean_is_weighted_by_intervals(saved, files, measured, tmp_path):
    first, second = _at_speed(saved, files, measured, tmp_path / "slower.zip", (1.1, 1.2))
    both = merge_networks([first, second], tmp_path / "both.zip", conflict="mean")
    for found, one, other in zip(both, first, second, strict=True):
        assert found.latency == pytest.approx((one.latency * other.latency) ** 0.5)
        assert found.high / found.low == pytest.approx((one.high / one.low) ** 0.5**0.5)
        assert found.n_visits == one.n_visits + other.n_visits
        assert sum(seconds for _, seconds in found.parts) == pytest.approx(
            sum(seconds for _, seconds in other.parts) * found.latency / other.latency
        )
    assert [run.platform.id for run in both.runs] == [FAST.id]


def test_speeds_are_aligned_by_networks_that_sets_share(saved, files, measured, tmp_path, monkeypatch):
    first, second = _at_speed(saved, files, measured, tmp_path / "slower.zip", (1.3, 1.3))
    with pytest.raises(InvalidValueError, match=rf"Those of {FAST.id} share 2 networks and no anchor\. Measure more"):
        merge_networks([first, second], tmp_path / "both.zip", conflict="last", align_speed=True)
    monkeypatch.setattr("nni_latency.datasets._merging._FEWEST_SHARED", 2)
    both = merge_networks([first, second], tmp_path / "both.zip", align_speed=True)
    assert [entry.latency for entry in both] == pytest.approx([entry.latency for entry in first])
    both = merge_networks([first, second], tmp_path / "both.zip", conflict="last", align_speed=True)
    assert [entry.low for entry in both] == pytest.approx([entry.low for entry in first])
    assert [part for entry in both for part in entry.parts] == [
        (numbers, pytest.approx(seconds / 1.3)) for entry in second for numbers, seconds in entry.parts
    ]


def test_speeds_are_aligned_by_anchors_where_sets_share_few_networks(files, measured, tmp_path):
    about, (first, second) = measured[0], files
    sets = []
    for file, slowness in ((first, 1.0), (second, 1.3)):
        seconds = about.latencies[file.key].value
        summary = NetworkSummary(seconds * slowness, 0.9 * seconds * slowness, 1.2 * seconds * slowness, 20, 4, 0.01)
        alone = replace(
            about,
            latencies={file.key: summary},
            parts={},
            anchors={"resnet-00000": 0.02 * slowness, "vit-00000": 0.01 * slowness},
        )
        save_networks(tmp_path / f"{file.name}.zip", [file], [alone])
        sets.append(load_networks(tmp_path / f"{file.name}.zip"))
    both = merge_networks(sets, tmp_path / "both.zip", align_speed=True)
    assert [entry.latency for entry in both] == pytest.approx([about.latencies[item.key].value for item in files])


def test_two_networks_of_one_name_are_refused(saved, files, measured, tmp_path):
    first, second = files
    swapped = [replace(second, name=first.name)]
    about = measured[0]
    latencies = {swapped[0].key: about.latencies[second.key]}
    save_networks(tmp_path / "swapped.zip", swapped, [replace(about, platform=OTHER, latencies=latencies)])
    with pytest.raises(InvalidValueError, match="Two networks have the name 'toy-00000-b1'"):
        merge_networks([load_networks(saved), load_networks(tmp_path / "swapped.zip")], tmp_path / "both.zip")


def test_unknown_conflict_is_refused(saved, elsewhere, tmp_path):
    parts = [load_networks(path) for path in (saved, elsewhere)]
    with pytest.raises(InvalidValueError, match=r"must be one of error, first, last, mean\. Got 'median'"):
        merge_networks(parts, tmp_path / "both.zip", conflict="median")


def test_one_set_cannot_be_merged(saved, tmp_path):
    with pytest.raises(InvalidValueError, match=r"At least two data sets can be merged\. Got 1"):
        merge_networks([load_networks(saved)], tmp_path / "both.zip")
