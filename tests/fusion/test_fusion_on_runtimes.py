# SPDX-License-Identifier: Apache-2.0
"""Real runtimes: eager torch fuses nothing, TorchScript puts batch normalisation into the convolution before it."""

from __future__ import annotations

import pytest

from nni_latency.fusion import detect_fusion, parse_probes
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import TorchEager, TorchScript

_PROTOCOL = Protocol(n_run=8, time_budget=60.0)


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "fused"), [(TorchEager, False), (TorchScript, True)])
def test_batch_normalisation_joins_a_convolution_where_it_is_compiled(runtime, fused, tmp_path):
    rules = detect_fusion(
        runtime(), _PROTOCOL, tmp_path / "rules.json", probes=parse_probes("conv2d+batch_norm"), store="memory"
    )
    (rule,) = rules.rules
    assert (rule.fused, rule.folds) == (fused, fused), rule
    assert rules.constant < rule.times.last
