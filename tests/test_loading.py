# SPDX-License-Identifier: Apache-2.0
"""An estimator from whatever `latency_estimator=` may be."""

from __future__ import annotations

import shutil

import pytest

from nni_latency.energy import DeviceFacts, MeasuredOperator, PortableModel
from nni_latency.errors import FileFormatError, InvalidValueError, MissingEntryError, PluginError, UnknownNameError
from nni_latency.estimators import TableEstimator
from nni_latency.graphs import GraphPredictor, shipped_predictor
from nni_latency.loading import list_estimators, load_estimator, load_table
from nni_latency.operators import OpSpec
from nni_latency.plugins import Registration, Registry
from nni_latency.tables import LookupTable, shipped_tables

_TABLE = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 1.0}})
_WHOLE = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 1.0, "y": 3.0}})


def _fail(argument):
    raise ZeroDivisionError("on purpose")


def _refuse(argument):
    raise InvalidValueError(f"Not {argument!r}.")


@pytest.fixture
def saved(tmp_path):
    return _TABLE.save(tmp_path / "t.json")


@pytest.fixture
def _plugins(monkeypatch):
    """Register estimators that work, that break and that are none."""
    factories = {
        "good": lambda argument: TableEstimator(_TABLE, missing=argument or "error"),
        "bad": _fail,
        "picky": _refuse,
        "odd": lambda argument: 3,
        "half.json": lambda argument: TableEstimator(_TABLE),
    }
    registry = Registry(
        estimators={name: Registration(name, factory, "mine", "estimator") for name, factory in factories.items()}
    )
    monkeypatch.setattr("nni_latency.loading._estimators.load_registry", lambda: registry)


def test_estimator_is_returned_as_it_is():
    estimator = TableEstimator(_TABLE)
    assert load_estimator(estimator) is estimator


def test_table_becomes_an_estimator():
    estimator = load_estimator(_TABLE, missing="nearest")
    assert (estimator.table, estimator.missing) == (_TABLE, "nearest")


@pytest.mark.parametrize("form", [str, lambda path: path, lambda path: f"table:{path}"], ids=["str", "path", "plugin"])
def test_saved_table_is_read(saved, form):
    assert load_estimator(form(saved)).table == _TABLE


def test_saved_table_is_read_by_its_bare_name(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    saved.rename("bare")
    assert load_estimator("bare").table == _TABLE


def test_missing_reaches_the_table(saved):
    assert load_estimator(saved, missing="nearest").estimate_sample({"a": "y"}).value == 1.0
    with pytest.raises(MissingEntryError, match=r"no entry for 'a': y"):
        load_estimator(saved).estimate_sample({"a": "y"})


def test_missing_reaches_a_table_that_a_plugin_reads(saved):
    estimator = load_estimator(f"table:{saved}", missing="nearest")
    assert estimator.estimate_sample({"a": "y"}).missing == ("a:y",)


@pytest.mark.parametrize("source", ["nowhere.json", "some/where", "./nowhere"])
def test_path_of_no_file_is_reported_as_a_file(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileFormatError, match=r"Cannot read the table .*No such file"):
        load_estimator(source)


def test_spoilt_table_is_reported(saved):
    saved.write_text(saved.read_text()[:50])
    with pytest.raises(FileFormatError, match=r"is not whole JSON"):
        load_estimator(saved)


@pytest.mark.parametrize("source", [None, 3, 1.5, ["t.json"], {"a": 1}, object])
def test_wrong_type_is_named(source):
    with pytest.raises(InvalidValueError, match=rf"must be an Estimator, a LookupTable.*Got {type(source).__name__}"):
        load_estimator(source)


@pytest.mark.parametrize("source", [_TABLE, "t.json"])
def test_missing_must_be_one_of_three_words(source, saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    with pytest.raises(
        InvalidValueError, match=r"'missing'.* must be one of 'error', 'nearest', 'predict'\. Got 'guess'"
    ):
        load_estimator(source, missing="guess")


def test_unknown_name_lists_plugins_and_says_that_there_is_no_file():
    with pytest.raises(UnknownNameError, match=r"Unknown estimator 'nothing'\. Available: .*table.*no file 'nothing"):
        load_estimator("nothing:3")


def test_misspelt_file_is_answered_without_the_names_of_plugins():
    with pytest.raises(UnknownNameError, match=r"^There is no file 'table\.jsn', and no shipped table of that name\. "):
        load_estimator("table.jsn")


def test_plugin_gets_its_argument(_plugins):
    assert load_estimator("good:nearest").missing == "nearest"


def test_plugin_without_an_argument_gets_an_empty_one(_plugins):
    assert load_estimator("good").missing == "error"


def test_plugin_may_be_named_like_a_file(_plugins):
    assert load_estimator("half.json").table == _TABLE


def test_plugin_that_fails_is_named(_plugins):
    with pytest.raises(PluginError, match=r"'mine' failed to make 'bad': ZeroDivisionError: on"):
        load_estimator("bad:1")


def test_plugin_that_refuses_its_argument_speaks_for_itself(_plugins):
    with pytest.raises(InvalidValueError, match=r"^Not '7'\.$"):
        load_estimator("picky:7")


def test_plugin_that_makes_something_else_is_named(_plugins):
    with pytest.raises(PluginError, match=r"'mine' must make an Estimator for 'odd'\. Got int"):
        load_estimator("odd")


@pytest.fixture
def commas(tmp_path, monkeypatch):
    """Put tables with commas in their names into the current folder, and one whose name is the beginning of another."""
    monkeypatch.chdir(tmp_path)
    _TABLE.save("a,b.json")
    _WHOLE.save("c, d,e.json")
    _WHOLE.save("a")
    return tmp_path


@pytest.mark.parametrize("source", ["c, d,e.json", "table:c, d,e.json", "weighted:0.5*c, d,e.json,0.5*a"])
def test_path_with_commas_is_a_path(commas, source):
    assert load_estimator(source).estimate_sample({"a": "y"}).value == pytest.approx(3.0)


@pytest.mark.parametrize("second", ["c, d,e.json", "table:c, d,e.json,across-platforms"])
def test_both_files_of_a_fallback_may_have_commas(commas, second):
    found = load_estimator(f"fallback:a,b.json,{second}")
    assert (found.first.table, found.second.table) == (_TABLE, _WHOLE)


def test_members_of_an_ensemble_may_have_commas(commas):
    found = load_estimator("ensemble:table:c, d,e.json, a,b.json,a")
    assert [member.table for member in found.members] == [_WHOLE, _TABLE, _WHOLE]


def test_files_of_models_may_have_commas_in_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ops = [MeasuredOperator(OpSpec.of("relu", [(1, 2**power)]), 1e-6 + 2**power * 1e-9, 1e-4) for power in range(8, 20)]
    facts = {name: DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6) for name in ("mine", "other")}
    PortableModel(n_trees=3).fit(dict.fromkeys(facts, ops), facts).save("energy,1.json")
    assert load_estimator("energy:energy,1.json,mine,metric=latency").metric == "latency"
    with pytest.raises(InvalidValueError, match=r"energy:energy,1\.json,DEVICE\. It knows: mine, other"):
        load_estimator("energy,1.json")
    shutil.copy(shipped_predictor(), "graph,1.safetensors")
    platform = "xeon-6-167-1.torch.fp32.t1"
    assert load_estimator(f"graph-network:graph,1.safetensors,{platform}").platform.id == platform


def test_predictor_that_ships_is_known_by_its_name_everywhere():
    known = GraphPredictor.load(shipped_predictor()).platforms_
    for name in ("pretrained", "graph-network", "graph-network:pretrained", "graph-network: ,"):
        with pytest.raises(
            InvalidValueError, match=rf"'pretrained' knows {len(known)} platforms.*pretrained,{known[0].id}"
        ):
            load_estimator(name)
    named = f"graph-network:pretrained,{known[2].id}"
    assert load_estimator(named).platform == known[2]
    with pytest.raises(InvalidValueError, match=r"which is no table\. Name a table\."):
        load_table(named)


def test_table_that_ships_is_known_by_its_name_everywhere():
    name, path = next(iter(shipped_tables().items()))
    assert load_table(name) == load_table(path) == load_estimator(f"table:{name}").table
    assert load_estimator(f"ensemble:{name},{path}").platform == load_estimator(name).platform


@pytest.mark.parametrize("name", ["kernels", "energy", "acts"])
def test_estimator_that_reads_a_file_needs_its_name(name):
    with pytest.raises(InvalidValueError, match=rf"^The estimator '{name}' needs to know which file\. Write {name}:"):
        load_estimator(name)


@pytest.mark.parametrize("source", ["long" * 2000, "a\0b", "table:" + "long" * 2000, "fallback:a\0b,long"])
def test_what_cannot_be_the_name_of_a_file_is_no_file(source):
    with pytest.raises(UnknownNameError, match=r"(?s)[Tt]here is no file"):
        load_estimator(source)


def test_estimators_are_listed_by_name(_plugins):
    names = list_estimators()
    assert names == [*shipped_tables(), "pretrained", "good", "bad", "picky", "odd", "half.json"]
    for name in shipped_tables():
        assert load_estimator(name).metric
