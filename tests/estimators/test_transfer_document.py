# SPDX-License-Identifier: Apache-2.0
"""The file of a transfer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from devices import SPACE, costs_of, draw, known_devices, latencies_of

from nni_latency import TableEstimator, load_estimator
from nni_latency.documents import load
from nni_latency.errors import FileFormatError
from nni_latency.estimators import TransferEstimator, transfer_schema
from nni_latency.platforms import Platform

NETWORKS = draw(60)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    estimator = TransferEstimator(SPACE, platform=Platform("new"), confidence=0.8).fit_sources(
        NETWORKS, known_devices(NETWORKS)
    )
    picks = estimator.suggest(6)
    estimator.fit(NETWORKS[picks], latencies_of(costs_of(9), NETWORKS)[picks])
    return estimator, estimator.save(tmp_path_factory.mktemp("transfer") / "new.json")


@pytest.mark.slow
def test_saved_transfer_predicts_the_same(saved):
    estimator, path = saved
    again = load(path)
    for ours, theirs in zip(estimator.predict_interval(NETWORKS), again.predict_interval(NETWORKS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert again.platform == Platform("new")
    assert again.suggest(3, NETWORKS).tolist() == estimator.suggest(3, NETWORKS).tolist()


@pytest.mark.slow
def test_saved_transfer_is_loaded_as_its_table(saved):
    assert isinstance(load_estimator(saved[1]), TableEstimator)


def test_sources_alone_can_be_saved(tmp_path):
    series = dict(list(known_devices(NETWORKS).items())[:2])
    estimator = TransferEstimator(SPACE).fit_sources(NETWORKS, series)
    again = TransferEstimator.load(estimator.save(tmp_path / "sources.json"))
    assert again.sources_ == estimator.sources_
    again.fit(NETWORKS[:5], latencies_of(costs_of(9), NETWORKS)[:5])


@pytest.mark.slow
def test_schema_names_every_field(saved):
    assert set(json.loads(saved[1].read_text())) == set(transfer_schema()["properties"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.update(version=2), "has version 2, this nni_latency reads up to 1"),
        (lambda content: content.update(extra=1), "extra"),
        (lambda content: content["latencies"].pop(), "it has 5 latencies for 6 measured networks"),
        (lambda content: content["noises"].pop(), "it has 4 noises for 5 devices"),
        (lambda content: content["devices"][0]["coefficients"].pop(), "'device 0' has 23 of 24 coefficients"),
        (lambda content: content["similar_prior"]["centre"].pop(), "of 5 variances"),
        (lambda content: content["measured"][0].__setitem__(0, 9), "outside the space"),
        (lambda content: content["devices"].clear(), "devices"),
    ],
)
def test_altered_file_is_refused(saved, tmp_path, change, words):
    content = json.loads(saved[1].read_text())
    change(content)
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=words):
        TransferEstimator.load(path)


def test_cut_off_file_is_refused(saved, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(saved[1].read_text()[:500])
    with pytest.raises(FileFormatError, match="not whole JSON"):
        TransferEstimator.load(path)
    with pytest.raises(FileFormatError, match="Cannot read"):
        TransferEstimator.load(tmp_path / "absent.json")
