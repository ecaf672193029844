# SPDX-License-Identifier: Apache-2.0
"""A new device from a handful of networks."""

from __future__ import annotations

import numpy as np
import pytest
from devices import SPACE, costs_of, draw, known_devices, latencies_of
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from nni_latency import FBNetSpace, LatencyProfiler, TableEstimator, load_estimator
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import FewSourcesWarning, TransferEstimator, score
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable

NETWORKS = draw(200)
NEW = costs_of(9, 0.35)
TRUTH = latencies_of(NEW, NETWORKS)


@pytest.fixture(scope="module")
def learned():
    return TransferEstimator(SPACE, platform=Platform("new")).fit_sources(NETWORKS, known_devices(NETWORKS))


@pytest.fixture
def adapted(learned):
    picks = learned.suggest(10)
    return learned.fit(NETWORKS[picks], latencies_of(NEW, NETWORKS, 0.005)[picks])


@pytest.mark.slow
def test_transfer_predicts_networks_that_were_not_measured(adapted):
    others = draw(300, seed=5)
    scores = score(adapted.predict(others), latencies_of(NEW, others))
    assert scores.spearman > 0.97
    assert scores.within10 == 1.0


@pytest.mark.slow
def test_transfer_predicts_one_network(adapted):
    expected = adapted.predict(NETWORKS[:1])[0]
    sample = {label: choices[place] for (label, choices), place in zip(SPACE.items(), NETWORKS[0], strict=True)}
    assert adapted.predict(NETWORKS[0]) == adapted.predict(NETWORKS[0].tolist()) == adapted.predict(sample) == expected
    found = adapted.estimate_sample(sample)
    assert found.low < found.value == expected < found.high


@pytest.mark.slow
def test_transfer_beats_what_few_measurements_say_alone(adapted, learned):
    picks = learned.suggest(10)
    alone = TableEstimator.from_networks(SPACE, NETWORKS[picks], TRUTH[picks])
    assert score(adapted.predict(NETWORKS), TRUTH).mape < 0.5 * score(alone.predict(NETWORKS), TRUTH).mape


@pytest.mark.slow
def test_transfer_intervals_hold_most_measurements(adapted):
    others = draw(300, seed=6)
    measured = latencies_of(NEW, others, 0.005, seed=7)
    values, low, high = adapted.predict_interval(others)
    assert (low <= values).all()
    assert (values <= high).all()
    assert np.mean((low <= measured) & (measured <= high)) >= 0.85


@pytest.mark.slow
def test_transfer_suggests_networks_that_tell_more_than_random_ones(learned):
    def error(picks):
        return score(learned.fit(NETWORKS[picks], TRUTH[picks]).predict(NETWORKS), TRUTH).mape

    random = [error(np.random.default_rng(seed).permutation(200)[:6]) for seed in range(8)]
    assert error(learned.suggest(6)) < np.mean(random)


def test_transfer_suggests_others_than_those_measured(learned):
    first = learned.suggest(5)
    more = learned.suggest(5, measured=first)
    assert len({*first.tolist(), *more.tolist()}) == 10


@pytest.mark.slow
def test_transfer_is_the_same_for_the_same_seed(learned):
    again = TransferEstimator(SPACE).fit_sources(NETWORKS, known_devices(NETWORKS))
    picks = learned.suggest(7)
    assert again.suggest(7).tolist() == picks.tolist()
    fitted = (item.fit(NETWORKS[picks], TRUTH[picks]).predict(NETWORKS) for item in (learned, again))
    np.testing.assert_array_equal(*fitted)


@pytest.mark.slow
def test_transfer_scales_with_the_unit_of_all(learned):
    factor = 1e3
    scaled = TransferEstimator(SPACE).fit_sources(
        NETWORKS, {name: values * factor for name, values in known_devices(NETWORKS).items()}
    )
    picks = learned.suggest(8)
    assert scaled.suggest(8).tolist() == picks.tolist()
    ours = learned.fit(NETWORKS[picks], TRUTH[picks]).predict(NETWORKS)
    np.testing.assert_allclose(
        scaled.fit(NETWORKS[picks], TRUTH[picks] * factor).predict(NETWORKS), ours * factor, 1e-4
    )


def test_transfer_names_the_device_that_the_new_one_is_like(learned):
    picks = learned.suggest(10)
    learned.fit(NETWORKS[picks], 3 * latencies_of(costs_of(4, 1.0), NETWORKS)[picks])
    assert max(learned.similarity_, key=learned.similarity_.get) == "device 4"
    assert sum(learned.similarity_.values()) == pytest.approx(1)


@pytest.mark.slow
def test_transfer_is_not_led_astray_by_one_measurement(learned):
    picks = learned.suggest(12)
    measured = TRUTH[picks].copy()
    measured[3] *= 8
    scores = score(learned.fit(NETWORKS[picks], measured).predict(NETWORKS), TRUTH)
    assert 3 in learned.suspects_
    assert scores.mape < 0.05


@pytest.mark.slow
def test_transfer_is_not_led_astray_by_corrupt_rows_of_a_source(learned):
    series = known_devices(NETWORKS)
    series["device 1"][::20] = 1e-8
    picks = learned.suggest(10)
    robust = TransferEstimator(SPACE).fit_sources(NETWORKS, series).fit(NETWORKS[picks], TRUTH[picks])
    assert score(robust.predict(NETWORKS), TRUTH).spearman > 0.97


def test_transfer_takes_whole_milliseconds(learned):
    picks = learned.suggest(12)
    rounded = np.maximum(1e-3, np.round(TRUTH[picks], 3))
    assert score(learned.fit(NETWORKS[picks], rounded).predict(NETWORKS), TRUTH).mape < 0.05


def test_transfer_makes_an_ordinary_table(adapted, tmp_path):
    table = adapted.to_table()
    again = LookupTable.load(table.save(tmp_path / "table.json"))
    np.testing.assert_allclose(TableEstimator(again).predict(NETWORKS), adapted.predict(NETWORKS), rtol=0.02)
    assert again.platform.id == "new.torch.fp32.t1"
    assert table.coverage == 1.0
    assert sum(entry.n_samples for layer in table.layers for entry in layer.entries.values()) == 10 * len(SPACE)
    assert "10 networks measured" in table.remarks[0]


@pytest.mark.slow
def test_transfer_steers_searches_of_fbnet():
    space = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25)
    networks = np.random.default_rng(0).integers(0, 9, (120, 7))
    ops = [list(layer.candidates.values()) for layer in space.measure_plan().searched]
    from nni_latency.operators import features_of

    def latencies(power):
        work = np.array([[(features_of(item.op).macs + 1e3) ** power for item in layer] for layer in ops])
        return 1e-3 * (1 + work / work.mean())[np.arange(7), networks].sum(axis=1)

    estimator = TransferEstimator(space).fit_sources(
        networks, {f"p{power}": latencies(power) for power in (0.3, 0.6, 0.9)}
    )
    picks = estimator.suggest(8)
    estimator.fit(networks[picks], latencies(0.45)[picks])
    assert isinstance(load_estimator(estimator), TableEstimator)
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=estimator)
    names = [list(layer.candidates) for layer in space.measure_plan().searched]
    sample = {f"layer{layer}": names[layer][index] for layer, index in enumerate(networks[3])}
    assert profiler.profile(sample) == pytest.approx(latencies(0.45)[3], rel=0.05)
    assert estimator.estimate_sample(sample).value == pytest.approx(profiler.profile(sample), rel=1e-3)


def test_transfer_learns_from_tables():
    tables = {
        f"device {seed}": LookupTable.from_latencies(
            SPACE,
            {
                label: dict(zip(SPACE[label], row, strict=True))
                for label, row in zip(SPACE, costs_of(seed, mood), strict=True)
            },
        )
        for seed, mood in ((0, 0.0), (1, 0.5), (2, 1.0))
    }
    estimator = TransferEstimator().fit_tables(tables)
    picks = estimator.suggest(10, NETWORKS)
    estimator.fit(NETWORKS[picks], TRUTH[picks])
    assert score(estimator.predict(NETWORKS), TRUTH).spearman > 0.97


def test_transfer_of_tables_of_two_spaces_is_refused():
    tables = {
        name: LookupTable.from_latencies({"a": choices}, {"a": dict.fromkeys(choices, 1e-3)})
        for name, choices in (("one", ["x", "y"]), ("two", ["x", "z"]))
    }
    with pytest.raises(MismatchError, match="'one' and 'two' do not belong together"):
        TransferEstimator().fit_tables(tables)


def test_transfer_with_one_source_warns_and_works():
    series = {"only": known_devices(NETWORKS)["device 1"]}
    with pytest.warns(FewSourcesWarning, match="one known device, 'only'"):
        estimator = TransferEstimator(SPACE).fit_sources(NETWORKS, series)
    picks = estimator.suggest(12)
    assert score(estimator.fit(NETWORKS[picks], TRUTH[picks]).predict(NETWORKS), TRUTH).spearman > 0.9


def test_transfer_is_an_estimator_of_scikit_learn(learned):
    assert clone(learned).get_params()["random_state"] == 0
    fresh = TransferEstimator(SPACE)
    for call in (lambda: fresh.suggest(3), lambda: fresh.fit(NETWORKS[:3], TRUTH[:3]), lambda: fresh.predict(NETWORKS)):
        with pytest.raises(NotFittedError):
            call()


def test_transfer_without_measurements_can_not_stand_in_a_search():
    estimator = TransferEstimator(SPACE).fit_sources(NETWORKS[:40], {"a": TRUTH[:40], "b": TRUTH[:40] * 2})
    with pytest.raises(NotFittedError):
        estimator.predict(NETWORKS)
    with pytest.raises(InvalidValueError, match="is not fitted to the new device"):
        load_estimator(estimator)


@pytest.mark.slow
def test_transfer_takes_cells_as_strings():
    names = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    indices = np.random.default_rng(0).integers(0, 5, (80, 6))
    strings = [
        "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*(names[index] for index in row)) for row in indices.tolist()
    ]

    def latencies(weights):
        return 1e-3 * (1 + np.array(weights)[indices].sum(axis=1))

    known = {"a": latencies([0, 1, 2, 5, 1]), "b": latencies([0, 1, 3, 4, 2]), "c": latencies([0, 0, 1, 6, 1])}
    estimator = TransferEstimator().fit_sources(strings, known)
    picks = estimator.suggest(6)
    truth = latencies([0, 0.5, 2, 5, 1.5])
    estimator.fit([strings[pick] for pick in picks], truth[picks])
    assert score(estimator.predict(strings), truth).spearman > 0.98
    np.testing.assert_allclose(estimator.predict(indices), estimator.predict(strings))
    with pytest.raises(InvalidValueError, match="has no lookup table"):
        estimator.to_table()
    assert load_estimator(estimator) is estimator
