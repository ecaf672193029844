"""A predictor that learns from a database: every version is kept, and a worse one never answers."""

from __future__ import annotations

from functools import partial

import pytest
from measured_graphs import FAST, latency, measured
from sqlalchemy import text

from nni_latency.database import DatabaseStore, predictor_versions, take_predictor
from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import GraphPredictor
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject
from nni_latency.operators import graph_key
from nni_latency.plots import draw_evolution
from nni_latency.query import evolve, is_held_out, known_networks, load_current, load_version

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


def test_what_queries_measure_is_learned_from(store, networks):
    _know(store, networks[:5])
    found = known_networks(store)
    keys = {graph_key(item.graph): item for item in networks[:5]}
    assert {item.name for item in found} == set(keys)
    for item in found:
        assert item.latency == pytest.approx(latency(item.graph))
        assert graph_key(item.graph) == item.name


@pytest.mark.slow
def test_versions_are_kept_and_rolled_back(store, networks):
    # Those that are held out are known from the beginning.
    networks = sorted(networks, key=lambda item: not is_held_out(graph_key(item.graph)))
    _know(store, networks[:30])
    first = evolve(store, at_least=10, make=_SMALL)
    assert first.version.is_current
    assert first.before is None
    assert "It answers from now on" in first.reason
    assert first.version.errors["all"] > 0
    assert "latencies are new, and 10 are needed" in evolve(store, at_least=10, make=_SMALL).reason
    _know(store, networks[30:])
    second = evolve(store, at_least=1, make=partial(_SMALL, epochs=20))
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
    good = evolve(store, at_least=1, make=partial(_SMALL, epochs=20))

    class _Worse(GraphPredictor):
        def estimate(self, graph):
            return {name: item.scaled(100.0) for name, item in super().estimate(graph).items()}

    with store.database.writing() as connection:
        connection.execute(text("UPDATE predictors SET n_networks = 1"))
    bad = evolve(store, at_least=1, make=partial(_Worse, hidden=8, epochs=1, n_folds=2, n_members=1))
    assert not bad.version.is_current
    assert "It was not taken: It was off by" in bad.reason
    assert next(item for item in predictor_versions(store.database) if item.is_current).number == good.version.number


@pytest.mark.slow
def test_no_version_learns_from_networks_held_out(store, networks):
    _know(store, networks)
    found = evolve(store, at_least=1, make=_SMALL).version
    keys = {graph_key(item.graph) for item in networks}
    held_out = sum(map(is_held_out, keys))
    assert held_out >= 3
    assert (found.n_networks, found.n_held_out) == (len(keys) - held_out, held_out)


def test_too_little_is_one_sentence(store, networks):
    assert evolve(store).reason == "0 latencies are new, and 20 are needed for another version."
    few = [item for item in networks if not is_held_out(graph_key(item.graph))][:3]
    _know(store, few)
    assert "0 networks are held out" in evolve(store, at_least=1).reason


@pytest.mark.slow
def test_versions_are_drawn(store, networks, tmp_path):
    with pytest.raises(InvalidValueError, match=r"There is no version of the predictor to draw"):
        draw_evolution([], tmp_path / "none.png")
    _know(store, networks)
    evolve(store, at_least=1, make=_SMALL)
    assert draw_evolution(predictor_versions(store.database), tmp_path / "a.png").stat().st_size > 1000
