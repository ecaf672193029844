"""The names of NNI that the spaces are built of."""

from __future__ import annotations

from nni_latency.imports import quiet_nni

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

__all__ = ["LayerChoice", "ModelSpace"]
