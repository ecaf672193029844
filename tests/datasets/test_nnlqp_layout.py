# SPDX-License-Identifier: Apache-2.0
"""A data set goes out in NNLQP's layout and comes in again."""

from __future__ import annotations

import zipfile

import pytest

from nni_latency.datasets import export_nnlqp, import_nnlqp, load_networks
from nni_latency.errors import FileFormatError, InvalidValueError


def test_a_data_set_goes_out_and_in(saved, tmp_path):
    before = load_networks(saved)
    path = export_nnlqp(before, tmp_path / "out")
    assert path.read_text().splitlines()[0] == "toy-00000 onnx/toy-00000-b1.onnx 1 1 toy toy.onnxruntime.fp32.t1"
    assert (tmp_path / "out" / "onnx" / "toy-00001-b1.onnx").stat().st_size < 5000
    import_nnlqp(tmp_path / "out", tmp_path / "back.zip")
    after = load_networks(tmp_path / "back.zip")
    kept = ("name", "family", "batch_size", "latency", "graph_key", "stage")
    assert [[getattr(entry, name) for name in kept] for entry in after] == [
        [getattr(entry, name) for name in kept] for entry in before
    ]
    assert [entry.platform.id for entry in after] == [entry.platform.id for entry in before]
    assert after[0].graph == before[0].graph


def test_all_files_that_cannot_be_read_are_named(saved, tmp_path):
    export_nnlqp(load_networks(saved), tmp_path)
    for name in ("toy-00000-b1", "toy-00001-b1"):
        (tmp_path / "onnx" / f"{name}.onnx").write_text("none")
    with pytest.raises(FileFormatError, match=r"toy-00000-b1\.onnx' is not an ONNX file.*toy-00001-b1\.onnx' is not"):
        import_nnlqp(tmp_path, tmp_path / "back.zip")
    assert not (tmp_path / "back.zip").exists()


def test_a_name_does_not_lead_out_of_the_folder(saved, tmp_path):
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(tmp_path / "networks.zip", "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "dataset.json":
                content = content.replace(b'"toy-00001-b1"', b'"../../evil"')
            target.writestr(name.replace("toy-00001-b1", "../../evil"), content)
    networks = load_networks(tmp_path / "networks.zip")
    assert networks.onnx("../../evil")
    with pytest.raises(InvalidValueError, match=r"must lie in the folder of the data set\. Got 'onnx/\.\./\.\./evil"):
        export_nnlqp(networks, tmp_path / "one" / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["networks.zip"]
