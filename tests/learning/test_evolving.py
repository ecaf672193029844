# SPDX-License-Identifier: Apache-2.0
"""A predictor that learns from a database: every version is kept, and a worse one never answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from measured_graphs import FAST, latency, measured
from sqlalchemy import text

from nni_latency.database import DatabaseStore, latest_platforms, predictor_versions, take_predictor
from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import GraphPredictor
from nni_latency.kernels import (
    KernelPredictors,
    Sampling,
    build_predictors,
    find_types,
    read_kernels,
)
from nni_latency.learning import (
    evolve,
    is_held_out,
    known_networks,
    lessons,
    load_current,
    load_version,
)
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject
from nni_latency.operators import graph_key, work_of
from nni_latency.platforms import Platform
from nni_latency.plots import draw_evolution
from nni_latency.testing import FakeRuntime

_SMALL = partial(GraphPredictor, hidden=8, epochs=2, n_folds=2, n_members=1)


def _know(store, networks):
    """Put networks into a database, as a query leaves them."""
    for item in networks:
        key = graph_key(item.graph)
        header = CampaignHeader("query", {"subject": key}, item.platform, Protocol())
        graph = GraphDocument.of(item.graph).model_dump(mode="json")
        with store.campaign(header) as log:
            log.admit(Subject(key, dict, (1,), "network", key, {"graph": graph}))
            log.append(Record(1e-3, (), {"latency": (item.latency,) * 3}, (key,), 0, 0, 0.1, 1.7e9))


@pytest.fixture
def store(tmp_path):
    made = DatabaseStore(str(tmp_path / "m.sqlite"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def networks():
    return [item for item in measured(12) if item.platform == FAST]


def _evolved(store, **how):
    """Evolve, and return what became of the predictor of networks, which is the only one."""
    (found,) = evolve(store, **how)
    return found


def test_what_queries_measure_is_learned_from(store, networks):
    _know(store, networks[:5])
    found = known_networks(store)
    keys = {graph_key(item.graph): item for item in networks[:5]}
    assert {item.name for item in found} == set(keys)
    for item in found:
        assert item.latency == pytest.approx(latency(item.graph))
        assert graph_key(item.graph) == item.name


@pytest.mark.slow
def test_a_database_with_less_than_was_learned_from_has_nothing_new(store, networks):
    # Those that are held out are known from the beginning.
    _know(store, sorted(networks, key=lambda item: not is_held_out(graph_key(item.graph)))[:30])
    assert _evolved(store, at_least=10, make=_SMALL).version.is_current
    with store.database.writing() as connection:
        connection.execute(text("UPDATE predictors SET n_networks = 1000"))
    assert "The database has 0 new latencies" in _evolved(store, at_least=1, make=_SMALL).reason


@pytest.mark.slow
def test_versions_are_kept_and_rolled_back(store, networks):
    # Those that are held out are known from the beginning.
    networks = sorted(networks, key=lambda item: not is_held_out(graph_key(item.graph)))
    _know(store, networks[:30])
    first = _evolved(store, at_least=10, make=_SMALL)
    assert first.version.is_current
    assert first.before is None
    assert "It answers from now on" in first.reason
    assert first.version.errors["all"] > 0
    assert "new latencies, and another version needs 10." in _evolved(store, at_least=10, make=_SMALL).reason
    _know(store, networks[30:])
    second = _evolved(store, at_least=1, make=partial(_SMALL, epochs=20))
    versions = predictor_versions(store.database, "evolving")
    assert [item.number for item in versions] == [first.version.number, second.version.number]
    assert sum(item.is_current for item in versions) == 1
    assert second.version.is_current == (second.version.errors["all"] <= second.before)
    for item in versions:
        assert take_predictor(store.database, "evolving", item.number).is_current
        assert load_current(store).platforms_ == load_version(store, item.number).platforms_
    with pytest.raises(UnknownNameError, match=r"Unknown version of 'evolving' '99'"):
        take_predictor(store.database, "evolving", 99)


@pytest.mark.slow
def test_a_worse_version_does_not_answer(store, networks):
    _know(store, networks)
    good = _evolved(store, at_least=1, make=partial(_SMALL, epochs=20))

    class _Worse(GraphPredictor):
        def estimate_platforms(self, graph):
            return {name: item.scaled(100.0) for name, item in super().estimate_platforms(graph).items()}

    with store.database.writing() as connection:
        connection.execute(text("UPDATE predictors SET n_networks = 1"))
    bad = _evolved(store, at_least=1, make=partial(_Worse, hidden=8, epochs=1, n_folds=2, n_members=1))
    assert not bad.version.is_current
    assert "It was not taken: It was off by" in bad.reason
    assert next(item for item in predictor_versions(store.database) if item.is_current).number == good.version.number


@pytest.mark.slow
def test_no_version_learns_from_networks_held_out(store, networks):
    _know(store, networks)
    found = _evolved(store, at_least=1, make=_SMALL).version
    keys = {graph_key(item.graph) for item in networks}
    held_out = sum(map(is_held_out, keys))
    assert held_out >= 3
    assert (found.n_networks, found.n_held_out) == (len(keys) - held_out, held_out)


def test_too_little_is_one_sentence(store, networks):
    assert _evolved(store).reason == "The database has 0 new latencies, and another version needs 20."
    few = [item for item in networks if not is_held_out(graph_key(item.graph))][:3]
    _know(store, few)
    assert "0 networks held out" in _evolved(store, at_least=1).reason


@pytest.mark.slow
def test_versions_are_drawn(store, networks, tmp_path):
    with pytest.raises(InvalidValueError, match=r"There is no version of the predictor to draw"):
        draw_evolution([], tmp_path / "none.png")
    _know(store, networks)
    _evolved(store, at_least=1, make=_SMALL)
    assert draw_evolution(predictor_versions(store.database), tmp_path / "a.png").stat().st_size > 1000


_BOARD = Platform("board", "fake", facts={"runtime.version": "1"})
_KINDS = find_types(["add_block", "add_relu", "relu_block"])


def _measure_kernels(store, tmp_path, seed=0, platform=_BOARD, slower=1.0, count=20):
    """Measure kernels on an invented device into a database; return what is learned of them at once."""

    def seconds(op):
        found = work_of(op)[0]
        return slower * (1e-6 + 3e-10 * (found.inputs + found.outputs))

    return build_predictors(
        _KINDS,
        FakeRuntime(seconds, platform=platform),
        tmp_path / f"{platform.facts['runtime.version']}-{seed}.json",
        protocol=Protocol(n_warmup=0, n_run=1, time_budget=600.0, half_width=0.05, processes=1, outlier=0.0),
        sampling=Sampling(init_sample_num=count, finegrained_sample_num=2, iteration=0, seed=seed),
        store=store,
    )


def test_campaigns_say_of_kernels_what_was_learned_from_them_at_once(store, tmp_path):
    built = _measure_kernels(store, tmp_path)
    found = read_kernels(store.campaigns(kind="kernels"))
    assert found.kernels == built.kernels
    assert (found.platform, found.constant, found.protocol) == (_BOARD, 0.0, built.protocol)
    assert (found.rounds, found.duration) == (built.rounds, built.duration)
    assert read_kernels([]) is None


def test_kernels_of_several_campaigns_are_put_together(store, tmp_path):
    first, second = (_measure_kernels(store, tmp_path, seed) for seed in (0, 1))
    found = read_kernels(store.campaigns(kind="kernels"))
    both = {item.kernel for item in (*first.kernels, *second.kernels)}
    assert len(both) > len(first.kernels)
    assert {item.kernel for item in found.kernels} == both


def test_kernels_of_a_kind_that_nobody_knows_are_left_out(store, tmp_path):
    _measure_kernels(store, tmp_path)
    with store.database.writing() as connection:
        connection.execute(text("UPDATE subjects SET key = replace(key, 'add_relu', 'nope_relu')"))
    kinds = {item.kernel.kind for item in read_kernels(store.campaigns(kind="kernels")).kernels}
    assert kinds == {"add_block", "relu_block"}


@pytest.mark.slow
def test_predictors_of_kernels_evolve_by_the_same_rule(store, tmp_path):
    _measure_kernels(store, tmp_path)
    networks, first = evolve(store, at_least=10)
    assert networks.reason == "The database has 0 new latencies, and another version needs 10."
    assert first.name == first.version.name == f"evolving:{_BOARD.id}"
    assert first.version.is_current
    assert set(first.version.errors) <= {"add", "relu_block", "all"}
    (lesson,) = [item for item in lessons(store) if item.thing == "kernel"]
    held_out = sum(is_held_out(item.kernel.key) for item in lesson.examples)
    assert (first.version.n_networks, first.version.n_held_out) == (len(lesson.examples) - held_out, held_out)
    current = load_current(store, first.name)
    assert isinstance(current, KernelPredictors)
    assert not any(is_held_out(item.kernel.key) for item in current.kernels)
    assert "new latencies, and another version needs 10." in evolve(store, at_least=10)[1].reason
    _measure_kernels(store, tmp_path, seed=1)
    second = evolve(store, at_least=5, name=f"evolving:{_BOARD.id}")[0]
    assert second.version.is_current == (second.version.errors["all"] <= second.before)
    assert take_predictor(store.database, first.name, first.version.number).is_current
    assert load_current(store, first.name).kernels == current.kernels
    assert load_version(store, second.version.number).kernels != current.kernels


@pytest.mark.slow
def test_another_state_of_a_platform_is_a_new_beginning(store, tmp_path):
    _measure_kernels(store, tmp_path)
    first = evolve(store, at_least=10)[1].version
    updated = replace(_BOARD, facts={"runtime.version": "2"})
    _measure_kernels(store, tmp_path, platform=updated, slower=2.0)
    assert latest_platforms(store.database, "kernels") == [updated]
    second = evolve(store, at_least=10)[1]
    assert second.before is None
    assert second.version.is_current
    assert second.version.n_networks == first.n_networks
    assert load_current(store, first.name).platform == updated


def test_a_platform_without_kernels_is_named(store):
    with pytest.raises(UnknownNameError, match=r"Unknown platform with kernels 'board'. Available: none"):
        evolve(store, name="evolving:board")


@pytest.mark.slow
def test_versions_of_several_predictors_are_drawn(store, tmp_path):
    _measure_kernels(store, tmp_path)
    version = evolve(store, at_least=10)[1].version
    other = replace(version, name="evolving", errors={"all": 0.2, "before": 0.3})
    assert draw_evolution([version, other], tmp_path / "a.png").stat().st_size > 1000
