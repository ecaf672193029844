# SPDX-License-Identifier: Apache-2.0
"""The file of a data set: what is written is read, as far as it is asked for, and what is broken is named."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import replace

import pytest
from toy_platforms import FAST, SLOW

import nni_latency.datasets._network_set as network_set
from nni_latency.datasets import GraphDocument, load_networks, save_networks
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.measurement import NetworkSummary
from nni_latency.operators import Graph, OpSpec, TracedOperator, graph_key, read_onnx


def test_latencies_are_read_as_they_were_written(saved):
    found = load_networks(saved)
    assert [(entry.name, entry.platform, entry.latency) for entry in found] == [
        ("toy-00000-b1", FAST, 0.001),
        ("toy-00001-b1", FAST, 0.001),
        ("toy-00000-b1", SLOW, 0.004),
    ]
    assert (found[0].low, found[0].high) == pytest.approx((0.0009, 0.0012))
    assert (found[0].n_samples, found[0].n_visits, found[0].repeatability, found[0].seed) == (20, 4, 0.01, 0)
    assert repr(found) == "NetworkSet(3 latencies of 2 networks on 2 platforms)"
    assert found.failures == {FAST.id: {}, SLOW.id: {"toy-00001": "it cannot"}}


def test_graphs_are_those_of_the_files(saved, files):
    found = load_networks(saved)
    for entry, file in zip(found[:2], files, strict=True):
        assert entry.graph == read_onnx(file.path)
        assert graph_key(entry.graph) == entry.graph_key
    assert found[0].graph is found[2].graph


def test_a_tensor_that_an_operator_reads_twice_survives_its_document():
    relu, add = OpSpec.of("relu", [(1, 8)]), OpSpec.of("add", [(1, 8), (1, 8)])
    operators = TracedOperator("a", relu), TracedOperator("b", add, (0,), reads=(0, 0))
    graph = Graph(operators, 2, ((1, 8),), ((1, 8),))
    found = GraphDocument.model_validate_json(GraphDocument.of(graph).model_dump_json(exclude_defaults=True))
    assert found.to_graph() == graph


def test_kernels_are_groups_of_operators_that_add_up(saved):
    for entry in load_networks(saved):
        assert math.fsum(seconds for _, seconds in entry.parts) == pytest.approx(entry.latency)
        numbers = [number for some, _ in entry.parts for number in some]
        assert sorted(numbers) == list(range(len(entry.graph.operators)))


def test_a_part_of_a_set_is_a_set(saved):
    found = load_networks(saved)
    assert [entry.platform for entry in found.only(platform=SLOW.id)] == [SLOW]
    assert len(found.only(families=["toy"], batch_size=1)) == len(found[1:]) + 1 == 3
    with pytest.raises(InvalidValueError, match=r"has no network of batch_size 8, families vgg\. Its platforms are"):
        found.only(batch_size=8, families=["vgg"])


def test_what_is_not_asked_for_is_not_read(saved, tmp_path):
    light = tmp_path / "light.zip"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(light, "w") as target:
        target.writestr("dataset.json", source.read("dataset.json"))
    found = load_networks(light)
    assert found[0].latency == 0.001
    assert found[0].parts == ()
    with pytest.raises(FileFormatError, match=r"not a whole one: it lacks 'graphs/\w+\.json'"):
        _ = found[0].graph


def test_equal_data_sets_are_equal_files(saved, files, measured, tmp_path):
    save_networks(tmp_path / "again.zip", files, measured)
    assert (tmp_path / "again.zip").read_bytes() == saved.read_bytes()


def test_card_says_how_it_was_measured(saved):
    card = load_networks(saved).card
    for part in (
        "3 latencies of 2 networks of 1 family",
        f"| {SLOW.id} | 1 | 1 | 1 | 4.00 ms / 4.00 ms / 4.00 ms | 1.0 % | 15.0 % | 1 | 3.5 s |",
        "cannot run toy-00001: it cannot",
        "n_run 1",
        "before: load 0.25",
    ):
        assert part in card, card


def _altered(saved, tmp_path, change):
    path = tmp_path / "altered.zip"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "dataset.json":
                content = json.dumps(change(json.loads(content)))
            target.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: {**content, "version": 2}, "has version 2, this nni_latency reads up to 1"),
        (lambda content: {**content, "format": "other"}, "is not a data set of networks: its format must be"),
        (lambda content: {**content, "extra": 1}, "extra is not a field of such a file"),
        (lambda content: {**content, "networks": []}, "a latency is of network 0 in run 0, and there are 0 networks"),
        (
            lambda content: {
                **content,
                "latencies": [*content["latencies"], {**content["latencies"][0], "value": 0.0011}],
            },
            r"'toy-00000-b1' takes 1 ms and 1\.1 ms on toy",
        ),
    ],
)
def test_an_altered_file_is_refused(saved, tmp_path, change, said):
    with pytest.raises(FileFormatError, match=said):
        load_networks(_altered(saved, tmp_path, change))


def test_a_file_that_is_cut_off_or_no_archive_is_refused(saved, tmp_path):
    (tmp_path / "cut.zip").write_bytes(saved.read_bytes()[:-100])
    (tmp_path / "text.zip").write_text("none")
    for name in ("cut", "text"):
        with pytest.raises(FileFormatError, match="is not a data set of networks, or was cut off"):
            load_networks(tmp_path / f"{name}.zip")
    with pytest.raises(FileFormatError, match=r"^Cannot read the data set '.*none\.zip': No such file or directory\.$"):
        load_networks(tmp_path / "none.zip")


def test_a_damaged_member_is_named(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as source:
        place = source.getinfo("dataset.json").header_offset
    content[place + 60] ^= 255
    (tmp_path / "damaged.zip").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"is damaged at 'dataset\.json'"):
        load_networks(tmp_path / "damaged.zip")


def test_without_a_shipped_one_a_file_must_be_named(monkeypatch, tmp_path):
    monkeypatch.setattr(network_set, "SHIPPED", tmp_path / "none.zip")
    with pytest.raises(InvalidValueError, match=r"No data set ships with this installation\. Name a file"):
        load_networks()


def test_a_network_whose_graph_cannot_be_read_is_a_failure(files, measured, tmp_path):
    text = tmp_path / "text.onnx"
    text.write_text("no graph")
    broken = replace(files[0], name="broken", path=text)
    summary = NetworkSummary(0.001, 0.001, 0.001)
    more = replace(measured[0], latencies={**measured[0].latencies, broken.key: summary})
    found = save_networks(tmp_path / "some.zip", [*files, broken], [more])
    assert "its graph cannot be read: " in found.failures[FAST.id]["broken"]
    assert len(found) == 2
    with pytest.raises(InvalidValueError, match="There is no network for the data set: its graph cannot be read"):
        save_networks(tmp_path / "none.zip", [broken], [more])
    assert not (tmp_path / "none.zip").exists()


def test_an_archive_bomb_is_refused(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    # The size that the list of members says of the first.
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = (2**31 - 1).to_bytes(4, "little")
    (tmp_path / "bomb.zip").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"'dataset\.json' is too large"):
        load_networks(tmp_path / "bomb.zip")
