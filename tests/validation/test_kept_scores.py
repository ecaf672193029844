# SPDX-License-Identifier: Apache-2.0
"""Validations that hold the scores of networks, and not the networks."""

from __future__ import annotations

import json

import pytest

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.estimators import score
from nni_latency.platforms import Platform
from nni_latency.plots import draw_validation
from nni_latency.validation import KeptScores, Validation, read_summary, read_validation, save_validation


def _validation(predicted=(1.0, 2.1, 2.9, 4.2)):
    kept = KeptScores(score(predicted, [1.0, 2.0, 3.0, 4.0]), 0.75)
    return Validation("an estimator", "latency", Platform("pixel-3", "unknown"), (), 1.0, (), 0.0, {}, kept=kept)


def test_scores_are_those_that_were_kept():
    found = _validation()
    assert (found.scores.n, found.coverage, found.repeatability) == (4, 0.75, None)
    assert repr(found) == "Validation(an estimator, 4 networks on pixel-3.unknown.fp32.t1: MAPE 3.3 %, Spearman 1.000)"


@pytest.mark.parametrize("predicted", [(1.0, 2.1, 2.9, 4.2), (2.0, 2.0, 2.0, 2.0)])
def test_file_holds_them(tmp_path, predicted):
    path = save_validation(_validation(predicted), tmp_path / "table.validation.json")
    found = read_validation(path)
    assert vars(found.scores) == pytest.approx(vars(_validation(predicted).scores), nan_ok=True)
    assert (found.coverage, found.repeatability) == (0.75, None)
    assert read_summary(path).scores.mape == found.scores.mape
    assert read_summary(path).repeatability is None


def test_neither_networks_nor_scores_are_refused():
    with pytest.raises(InvalidValueError, match=r"results of networks or their scores alone"):
        Validation("an estimator", "latency", Platform("pixel-3", "unknown"), (), 1.0, (), 0.0, {})


def test_file_without_networks_needs_the_coverage(tmp_path):
    path = save_validation(_validation(), tmp_path / "table.validation.json")
    content = json.loads(path.read_text())
    content["coverage"] = None
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"networks: .*without networks must have their coverage"):
        read_validation(path)


def test_there_is_nothing_to_plot(tmp_path):
    with pytest.raises(InvalidValueError, match=r"of an estimator has scores alone\. There are no networks to plot"):
        draw_validation(_validation(), tmp_path / "picture.png")
