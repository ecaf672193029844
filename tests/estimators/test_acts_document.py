# SPDX-License-Identifier: Apache-2.0
"""The file of an ACTS fit: what goes in comes out, and everything else is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from acts_points import draw_blocks, noisy, time_of, totals_of

from nni_latency import load_estimator
from nni_latency.errors import FileFormatError, OutputError
from nni_latency.estimators import ActsEstimator
from nni_latency.nas import FBNet
from nni_latency.platforms import Platform


def _fit(**settings):
    blocks = draw_blocks(40)
    return ActsEstimator(**settings).fit(
        blocks, noisy([time_of(block) for block in blocks]), platform=Platform("pi-4", "torch", facts={"os": "linux"})
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return _fit().save(tmp_path_factory.mktemp("acts") / "pi.json")


@pytest.mark.parametrize("settings", [{"variant": "published"}, {}, {"confidence": 0.5, "random_state": 4}])
def test_what_is_saved_is_what_is_loaded(settings, tmp_path):
    made = _fit(**settings)
    loaded = ActsEstimator.load(made.save(tmp_path / "fit.json"))
    new = draw_blocks(20, seed=5)
    assert loaded.predict(new) == pytest.approx(made.predict(new), rel=1e-12)
    assert loaded.predict([totals_of(block) for block in new]) == pytest.approx(
        made.predict([totals_of(block) for block in new])
    )
    assert loaded.get_params() == made.get_params()
    names = ("a_", "b_", "c_", "d_", "breakpoint_", "slope_", "offset_", "shares_", "bound_", "correction_")
    assert [getattr(loaded, name) for name in names] == [getattr(made, name) for name in names]
    assert loaded.interval_factor_ == made.interval_factor_
    assert loaded.platform == made.platform
    assert dict(loaded.platform.facts) == {"os": "linux"}


@pytest.mark.parametrize("correction", ["none", "curve", "residual"])
def test_every_correction_is_kept(correction, tmp_path, monkeypatch):
    monkeypatch.setattr("nni_latency.estimators.acts._estimator.choose_correction", lambda errors: correction)
    made = _fit()
    loaded = ActsEstimator.load(made.save(tmp_path / "fit.json"))
    new = draw_blocks(20, seed=5)
    assert loaded.correction_ == correction
    assert loaded.predict(new) == pytest.approx(made.predict(new), rel=1e-12)
    assert np.median(np.abs(loaded.predict(new) / [time_of(block) for block in new] - 1)) < 0.05


def test_it_is_found_by_file_and_by_plugin(saved):
    for source in (saved, str(saved), f"acts:{saved}"):
        assert isinstance(load_estimator(source), ActsEstimator)


def test_the_strategy_takes_it(saved):
    assert FBNet(latency_estimator=f"acts:{saved}", target=0.012) is not None


def _altered(content, path, value):
    *places, last = path
    inner = content
    for place in places:
        inner = inner[place]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


def _residual(n_traits):
    work = [{"group": "block", "traits": [1.0] * n_traits, "weight": 1.0}]
    return {"kernel": "matern12", "reach": 1.0, "centre": [0.0] * n_traits, "scale": [1.0] * n_traits, "work": work}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, "has version 2, this nni_latency reads up to 1"),
        (["line", "a"], -1.0, "line.a must be at least 0"),
        (["line", "d"], None, "line.d is missing"),
        (["interval_factor"], 0.5, "interval_factor must be at least 1"),
        (["model", "costs", "shared"], [1.0], "model.costs.shared must have "),
        (["correction"], "curve", "the correction 'curve' is not in the file"),
        (["platform", "device"], "Two Words", "lower-case letters"),
        (["surprise"], 1, "surprise is not a field of such a file"),
        (["model", "residual"], _residual(2), "there must be 10 traits of operators, or 3 of totals"),
    ],
)
def test_an_altered_file_is_refused(saved, tmp_path, path, value, message):
    content = _altered(json.loads(saved.read_text()), path, value)
    if path == ["correction"]:
        content["model"]["curve"] = None
    other = tmp_path / "altered.json"
    other.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=message):
        load_estimator(other)


def test_a_file_that_was_cut_off_is_refused(saved, tmp_path):
    other = tmp_path / "cut.json"
    other.write_text(saved.read_text()[:-200])
    with pytest.raises(FileFormatError, match="is not whole JSON"):
        load_estimator(other)


def test_a_file_of_another_kind_is_refused_by_the_plugin(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"format": "nni_latency.lookup_table"}')
    with pytest.raises(FileFormatError, match=r"is not an ACTS fit: its format must be 'nni_latency.acts'"):
        load_estimator(f"acts:{other}")
    with pytest.raises(FileFormatError, match="Cannot read the fit"):
        load_estimator(f"acts:{tmp_path / 'none.json'}")


def test_no_file_is_half_written(saved, tmp_path):
    with pytest.raises(OutputError, match="Cannot write"):
        ActsEstimator.load(saved).save(tmp_path)
