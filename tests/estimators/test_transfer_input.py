# SPDX-License-Identifier: Apache-2.0
"""What cannot be learned from is said in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from devices import SPACE, costs_of, draw, known_devices, latencies_of

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import TransferEstimator, encoding_of
from nni_latency.estimators.transfer import architectures_of, read_columns
from nni_latency.estimators.transfer import latencies_of as read_latencies

NETWORKS = draw(60)
SERIES = known_devices(NETWORKS)


def _spoilt(value, row=7):
    values = SERIES["device 2"].copy()
    values[row] = value
    return {**SERIES, "device 2": values}


@pytest.fixture(scope="module")
def learned():
    return TransferEstimator(SPACE).fit_sources(NETWORKS, SERIES)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "1 of 60 are not finite, first that of row 7, nan"),
        (np.inf, "not finite"),
        (0.0, "1 of 60 are zero, first that of row 7"),
        (-1e-3, "1 of 60 are negative"),
        (12.0, "not of one unit: 1 of 60 are more than 200 times the typical"),
    ],
)
def test_sources_that_are_no_latencies_are_refused(value, words):
    with pytest.raises(InvalidValueError, match=f"'device 2'.*{words}"):
        TransferEstimator(SPACE).fit_sources(NETWORKS, _spoilt(value))


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "words"), [(1e3, "1,000 times too large"), (1e-6, "1,000,000 times too small")])
def test_source_of_another_unit_is_named(factor, words):
    series = {**SERIES, "device 2": SERIES["device 2"] * factor}
    with pytest.raises(InvalidValueError, match=f"'device 2' look {words}"):
        TransferEstimator(SPACE).fit_sources(NETWORKS, series)
    TransferEstimator(SPACE, check_units=False).fit_sources(NETWORKS, series)


@pytest.mark.slow
def test_new_device_of_another_unit_is_refused(learned):
    values = latencies_of(costs_of(9), NETWORKS)[:5] * 1e3
    with pytest.raises(InvalidValueError, match=r"'the new device' look 1,000 times too large.*milliseconds"):
        learned.fit(NETWORKS[:5], values)


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        (np.full((40, 6), 4), r"Architecture 0 is outside the space: its index of 'layer0' must be in \[0, 3\]. Got 4"),
        (np.zeros((40, 5), int), r"shape \(n, 6\).*Got int64 of shape \(40, 5\)"),
        (np.zeros((40, 6)), "Got float64"),
        ([{"layer0": "op9"}], "its choice of 'layer0' must be one of op0, op1, op2, op3. Got 'op9'"),
        (["|a~0|"] * 40, "must be an int array"),
    ],
)
def test_architectures_outside_the_space_are_refused(networks, words):
    with pytest.raises(InvalidValueError, match=words):
        TransferEstimator(SPACE).fit_sources(networks, {"a": np.ones(40)})


@pytest.mark.slow
def test_too_few_networks_say_how_many_more(learned):
    with pytest.raises(InvalidValueError, match=r"at least 30 measured networks. Got 12: 18 more are needed"):
        TransferEstimator(SPACE).fit_sources(NETWORKS[:12], {"a": np.ones(12)})
    with pytest.raises(InvalidValueError, match=r"at least 3 measured networks, better 10. Got 1: 2 more are needed"):
        learned.fit(NETWORKS[:1], [1e-3])


def test_no_source_is_refused():
    with pytest.raises(InvalidValueError, match=r"at least one known device"):
        TransferEstimator(SPACE).fit_sources(NETWORKS, {})
    with pytest.raises(InvalidValueError, match="Got no table"):
        TransferEstimator(SPACE).fit_tables({})


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 61])
def test_suggestions_that_are_not_there_are_refused(learned, count):
    with pytest.raises(InvalidValueError, match=r"must be in \[1, 60\]"):
        learned.suggest(count)


def test_series_of_other_length_are_refused():
    with pytest.raises(InvalidValueError, match="as many as the architectures, 60"):
        TransferEstimator(SPACE).fit_sources(NETWORKS, {**SERIES, "short": [1e-3, 2e-3]})


def test_confidence_outside_its_range_is_refused():
    with pytest.raises(InvalidValueError, match=r"'confidence'.*in \(0, 1\)"):
        TransferEstimator(SPACE, confidence=1.0).fit_sources(NETWORKS, SERIES)


def test_space_that_is_none_is_refused():
    with pytest.raises(InvalidValueError, match="The 'space' must be a model space"):
        encoding_of(3)
    with pytest.raises(InvalidValueError, match="Without a 'space'"):
        encoding_of(None, [[0.5]])


def test_cell_that_is_none_is_refused():
    with pytest.raises(InvalidValueError, match="Architecture 1 is not a cell of NAS-Bench-201"):
        encoding_of("nasbench201").indices(["|none~0|+|none~0|none~1|+|none~0|none~1|none~2|", "|conv~0|"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have a header and at least one row"),
        ("index,a\n0,1,2\n", "Row 2 of .* must have 2 cells"),
        ("index,a,a\n0,1,2\n", "must have different names"),
        ("index,a\n0,1\n0,2\n", "more than one row for the network '0'"),
        ("index,a\n9,1\n", "networks that are not among the architectures, first '9'"),
        ("index,a\n0,fast\n", "latency of 'a' for the network '0'.*must be a number. Got 'fast'"),
    ],
)
def test_csv_that_can_not_be_read_says_where(tmp_path, text, words):
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(InvalidValueError, match=words):
        read_latencies(read_columns(path), ["0", "1"], "ms")


def test_csv_gives_seconds_in_the_order_asked_for(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("index,a,b\n1,10,20\n0,30,\n")
    found = read_latencies(read_columns(path), ["0", "1", "2"], "ms")
    np.testing.assert_allclose(found["a"], [0.03, 0.01, np.nan])
    np.testing.assert_allclose(found["b"], [np.nan, 0.02, np.nan])


def test_csv_of_architectures_holds_indices_names_or_strings(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("index,x,y\n0,1,2\n1,0,0\n")
    assert architectures_of(read_columns(path)).tolist() == [[1, 2], [0, 0]]
    path.write_text("index,x,y\n0,op1,op2\n")
    assert architectures_of(read_columns(path), ["x", "y"]) == [{"x": "op1", "y": "op2"}]
    with pytest.raises(InvalidValueError, match="missing: z; unknown: y"):
        architectures_of(read_columns(path), ["x", "z"])
    path.write_text(f"index,x,y\n0,1,{'9' * 5000}\n")
    assert architectures_of(read_columns(path), ["x", "y"]) == [{"x": "1", "y": "9" * 5000}]
    path.write_text("index,arch_str\n0,|a~0|\n")
    assert architectures_of(read_columns(path), ["x", "y"]).tolist() == ["|a~0|"]
