# SPDX-License-Identifier: Apache-2.0
"""Transfer and recovery held to published measurements of HELP (NeurIPS 2021), where they lie beside the checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nni_latency import FBNetSpace, TableEstimator
from nni_latency.estimators import TransferEstimator, score
from nni_latency.estimators.transfer import architectures_of, encoding_of, latencies_of, read_columns

FOLDER = Path(__file__).parents[3] / "shared" / "data"
VALIDATION = ("titanx_1", "titanx_32", "titanx_64", "titanx_256", "gold_6240")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the published data do not lie beside the checkout"),
]


def _load(folder, space):
    content = read_columns(FOLDER / folder / "architectures.csv")
    encoding = encoding_of(space)
    networks = encoding.indices(architectures_of(content, encoding.labels))
    return networks, latencies_of(read_columns(FOLDER / folder / "latency_ms.csv"), content.index, "ms")


def _correlation(predicted, measured):
    tenth = len(measured) // 10
    kept = np.argsort(measured)[tenth:-tenth]
    return score(predicted[kept], measured[kept]).spearman


def _transfer(folder, space, first, last):
    """Return the correlations of the devices of the validation after ten suggested measurements."""
    networks, series = _load(folder, space)
    known = {name: values[:first] for name, values in series.items() if name not in VALIDATION}
    estimator = TransferEstimator(space).fit_sources(networks[:first], known)
    picks = estimator.suggest(10)
    found = {}
    for name in set(series) & set(VALIDATION):
        estimator.fit(networks[picks], series[name][picks])
        found[name] = _correlation(estimator.predict(networks[first:last]), series[name][first:last])
    return found


def test_ten_networks_are_enough_for_fbnet():
    found = _transfer("help-fbnet", FBNetSpace(num_classes=100, input_size=32), 4000, 5000)
    assert np.mean(list(found.values())) > 0.97
    assert min(found.values()) > 0.945


def test_ten_networks_are_enough_for_nasbench201():
    found = _transfer("help-nasbench201", "nasbench201", 900, 1900)
    assert np.mean(list(found.values())) > 0.965


@pytest.mark.parametrize("device", ["titanx_1", "1080ti_64"])
def test_three_hundred_networks_recover_a_table(device):
    space = FBNetSpace(num_classes=100, input_size=32)
    networks, series = _load("help-fbnet", space)
    found = TableEstimator.from_networks(space, networks[:300], series[device][:300])
    assert _correlation(found.predict(networks[4000:]), series[device][4000:]) > 0.98
