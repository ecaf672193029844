# SPDX-License-Identifier: Apache-2.0
"""Whatever the package saves, it loads again, and it is equal; what could not be loaded is not written.

Every kind of file is tried with names, numbers and shapes that are unusual and allowed. Of what is fitted, one is made,
and what is cheap is varied around it.
"""

from __future__ import annotations

import copy
import functools
import string
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nni_latency.cli._search_document import SEARCH
from nni_latency.datasets import NetworkFile, PlatformLatencies, load_networks, save_networks
from nni_latency.documents import KINDS, SavedFile
from nni_latency.energy import DeviceFacts, HeldOutOperator, MeasuredOperator, PortableModel
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import ActsEstimator, Estimate, TransferEstimator
from nni_latency.fusion import read_rules, save_rules
from nni_latency.graphs import GraphPredictor, shipped_predictor
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel, Prior
from nni_latency.measurement import NetworkSummary, Protocol
from nni_latency.micro_benchmarks import BenchmarkPoint, BenchmarkPoints
from nni_latency.operators import FusionRule, FusionRules, FusionTimes, OpSpec, export_onnx
from nni_latency.platforms import PRECISIONS, Platform
from nni_latency.profiling import AloneCost, ModelProfile, OperatorProfile, Part, ProfiledOperator
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasuredNetwork,
    Residency,
    SpaceReference,
    TableLayer,
)
from nni_latency.units import METRIC_UNITS
from nni_latency.validation import NetworkResult, Validation, read_validation, save_validation

#: Texts that a file could confuse with something else.
_ODD = (
    *(
        "",
        " ",
        "1",
        "1.0",
        "-1",
        "null",
        "true",
        "NaN",
        "inf",
        "-inf",
        "[]",
        "{}",
        "a,b.json",
        "a:b",
        "a b",
        "ä ö",
        "日本",
    ),
    *(
        "e\u0301",
        "\u00e9",
        "\U0001f600",
        "\u2028",
        "\ufeff",
        "\ufffe",
        "\x00",
        "\x1f",
        "\r\n",
        '"',
        "\\",
        "\\ud800",
        "%s",
    ),
)

#: Half of a character: no text of any encoding, and no name.
_HALF = "name\ud800"


def _mapping(keys, values, **sizes):
    return st.dictionaries(keys, values, **{"max_size": 3, **sizes})


def _tuples(items, **sizes):
    return st.lists(items, **{"max_size": 3, **sizes}).map(tuple)


texts = st.sampled_from(_ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 2**40)
positive = st.sampled_from([5e-324, 1e-300, 1e-9, 1.0, 1e15]) | st.floats(0, 1e15, exclude_min=True)
shares = st.floats(0, 1, exclude_min=True, exclude_max=True)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.booleans() | st.integers(-(2**60), 2**60) | numbers | texts
shapes = _tuples(st.integers(1, 64), min_size=1)
reasons = _mapping(texts, texts)
platforms = st.builds(
    Platform,
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True),
    st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8),
    st.sampled_from(PRECISIONS),
    st.integers(1, 999_999),
    _mapping(texts, plain),
)
protocols = st.builds(Protocol, n_run=st.integers(1, 10**6), half_width=shares, seed=counts, timeout=positive)
# Names that are those of the fields of an operator are not attributes.
attributes = _mapping(texts.filter(lambda name: name not in ("dtype", "kind")), plain | _tuples(st.integers(-9, 9)))
operators = st.builds(
    lambda kind, inputs, dtype, named: OpSpec.of(kind, inputs, dtype=dtype, **named),
    texts,
    _tuples(_tuples(st.integers(0, 64))),
    texts,
    attributes,
)
spaces = st.builds(
    SpaceReference,
    texts.filter(lambda name: name != "operators"),
    _mapping(texts, st.recursive(st.none() | plain, _tuples, max_leaves=4)),
)


@st.composite
def _costs(draw, record, /, **fields):
    """Draw a record of a cost: with an interval that is empty on one side or the other, or on both."""
    low, value, high = sorted(draw(st.tuples(*[positive] * 3)))
    return record(value=value, low=low, high=high, **draw(st.fixed_dictionaries(fields)))


@st.composite
def _headers(draw, metrics=("latency", "energy", "weighted", "throughput")):
    fields = {
        "space": spaces,
        "platform": platforms,
        "metric": st.sampled_from(metrics),
        "protocol": st.none() | protocols,
        "rounds": counts,
        "duration": positive,
        "calibration": positive,
        "residency": st.none() | st.builds(Residency, st.floats(0, 0.99), positive),
        "network_error": st.none() | positive,
        "drift": _tuples(positive),
        "conditions": _mapping(texts, _mapping(texts, plain | st.lists(st.integers() | numbers | texts, max_size=2))),
        "remarks": _tuples(texts),
        "campaign": st.none() | texts,
        "package_version": st.none() | texts,
    }
    return draw(st.fixed_dictionaries(fields))


@st.composite
def _layers(draw):
    names = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    entries = _costs(Entry, n_samples=counts, n_dropped=counts, op=st.none() | operators)
    layers = []
    for name in names:
        choices = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
        known = draw(st.lists(st.sampled_from(choices), unique=True))
        failed = {choice: draw(texts) for choice in choices if choice not in known and draw(st.booleans())}
        searched = draw(st.booleans())
        default = None if searched else draw(st.sampled_from(choices))
        costs = {choice: draw(entries) for choice in known}
        layers.append(TableLayer(name, tuple(choices), costs, searched, default, failed))
    return tuple(layers)


tables = st.builds(
    lambda header, layers, shape, reference: LookupTable(
        **header, layers=layers, input_shape=shape, reference=reference
    ),
    _headers(),
    _layers(),
    shapes,
    st.none() | positive,
)

_json = st.recursive(
    st.none() | plain, lambda inner: st.lists(inner, max_size=2) | _mapping(texts, inner), max_leaves=4
)

operator_tables = st.builds(
    lambda header, **fields: LookupTable(**header, **fields),
    _headers(),
    input_shape=shapes,
    operators=_tuples(
        _costs(Entry, op=operators, n_samples=counts, n_places=counts, names=_tuples(texts)), min_size=1
    ).map(lambda items: tuple({item.op.op_key: item for item in items}.values())),
    networks=_tuples(_costs(MeasuredNetwork, sample=_mapping(texts, _json), entries=positive, n_samples=counts)),
    operator_coverage=st.floats(0, 1),
    failures=reasons,
)

estimates = _costs(Estimate, missing=_tuples(texts))
validations = st.builds(
    Validation,
    texts,
    st.sampled_from(list(METRIC_UNITS)),
    platforms,
    _tuples(
        st.builds(
            NetworkResult,
            texts,
            _mapping(texts, _json),
            estimates,
            st.floats(1e-9, 1e9),
            numbers,
            numbers,
            st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9)),
            counts,
        ).map(lambda item: replace(item, predicted=item.predicted.scaled(1e-9))),
        min_size=1,
    ),
    positive,
    _tuples(numbers),
    numbers,
    reasons,
    _tuples(texts),
)

rules = st.builds(
    FusionRules,
    platforms,
    st.lists(
        st.builds(
            FusionRule,
            _tuples(texts.filter(bool), min_size=2),
            st.booleans(),
            st.booleans(),
            st.booleans(),
            st.none() | st.builds(FusionTimes, *[st.floats(1e-9, 1e9)] * 3, st.floats(0, 1e9)),
            texts,
        ),
        max_size=3,
        unique_by=lambda rule: rule.kinds,
    ).map(tuple),
    positive,
    reasons,
    st.none() | texts,
    _tuples(texts),
    _mapping(texts, st.integers(1, 2**40)),
)

_words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
kernels = st.builds(lambda kind, sizes: Kernel.of(kind, **sizes), _words, _mapping(_words, counts))
priors = st.builds(Prior, _mapping(texts, _mapping(kernels, counts)))

points = st.builds(
    lambda header, **fields: BenchmarkPoints(**header, **fields),
    _headers(),
    points=_tuples(
        _costs(
            BenchmarkPoint,
            block=texts,
            kind=texts,
            input_shape=shapes,
            ops=_tuples(operators, min_size=1),
            n_samples=counts,
        )
    ),
    failures=reasons,
)


@st.composite
def _profiles(draw):
    alone = _costs(AloneCost, watts=st.none() | positive, n_samples=counts)
    ops = draw(st.lists(operators, min_size=1, max_size=3, unique_by=lambda op: op.op_key))
    ways = st.fixed_dictionaries({}, optional={"reused": alone, "memory": alone})
    parts = st.dictionaries(
        st.sampled_from([op.op_key for op in ops]), st.builds(Part, st.integers(1, 2**40), positive), min_size=1
    )
    models = _costs(
        ModelProfile,
        name=texts,
        inputs=_tuples(_tuples(st.integers(0, 64))),
        marked=positive,
        parts=parts,
        watts=st.none() | positive,
        n_samples=counts,
    )
    return OperatorProfile(
        **draw(_headers()),
        batch_size=draw(st.integers(1, 2**40)),
        target=draw(st.floats(0, 1, exclude_min=True)),
        models=draw(_tuples(models, min_size=1)),
        operators=tuple(ProfiledOperator(op, draw(ways)) for op in ops),
        significant=draw(_tuples(texts)),
        failures=draw(reasons),
        meter=draw(st.none() | texts),
        assumption=draw(st.none() | texts),
    )


@functools.cache
def _portable():
    ops = [MeasuredOperator(OpSpec.of("relu", [(1, 2**power)]), 1e-6 + 2**power * 1e-9, 1e-4) for power in range(8, 14)]
    return PortableModel(n_trees=2).fit({"mine": ops}, {"mine": DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)})


def _varied(model, **fields):
    """Return a fitted model with other values of some of its attributes."""
    varied = copy.copy(model)
    vars(varied).update(fields)
    return varied


portable = st.builds(
    lambda **fields: _varied(_portable(), **fields),
    devices_=_mapping(texts, st.builds(DeviceFacts, *[positive] * 5)),
    powers_=_mapping(texts, positive),
    bounds_=_mapping(st.sampled_from(["latency", "energy"]), positive),
    groups_=st.lists(texts, max_size=3),
    share_=positive,
    held_out_=_tuples(st.builds(HeldOutOperator, texts, texts, *[positive] * 5, st.booleans())),
    random_state=counts,
    max_features=shares,
)


@functools.cache
def _kernel_predictor():
    seen = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(4, 64, 4)]
    return KernelPredictor(candidates=("process",)).fit(seen, [1e-8 * kernel["CIN"] for kernel in seen])


kernel_files = st.builds(
    lambda header, known, **fields: KernelPredictors(
        **header, predictors={_kernel_predictor().group_: _kernel_predictor()} if known else {}, **fields
    ),
    _headers(),
    st.booleans(),
    kernels=_tuples(_costs(MeasuredKernel, kernel=kernels, n_samples=counts)),
    tested=_tuples(_costs(MeasuredKernel, kernel=kernels, n_samples=counts)),
    constant=positive,
    sampling=_mapping(texts, st.none() | st.integers() | numbers | texts),
    failures=reasons,
)


@functools.cache
def _graph_predictor():
    return GraphPredictor.load(shipped_predictor())


@st.composite
def _graph_predictors(draw):
    known = _graph_predictor()
    size = len(known.platforms_)
    return _varied(
        known,
        platforms_=tuple(draw(st.lists(platforms, min_size=size, max_size=size))),
        families_=draw(_tuples(texts)),
        kinds_=draw(_tuples(texts)),
        unmeasured_spread_=draw(st.floats(0, 100) | st.just(np.inf)),
        held_out_families_=tuple(draw(st.lists(texts, min_size=1, max_size=1)) * len(known.held_out_)),
        doubt_weights_=np.array(draw(st.lists(st.floats(0, 100), min_size=2, max_size=2))),
        confidence=draw(shares),
        random_state=draw(counts),
        members_=known.members_[:1],
        n_members=1,
    )


@functools.cache
def _acts(variant):
    sizes = [(1, 2 ** (1 + number % 9), 8, 8) for number in range(30)]
    blocks = [
        [OpSpec.of("conv2d", [shape], out_channels=8, kernel_size=1, stride=1, groups=1, bias=True)] for shape in sizes
    ]
    times = [1e-5 + 1e-8 * shape[1] * (1 + 0.01 * (number % 3)) for number, shape in enumerate(sizes)]
    return ActsEstimator(variant=variant).fit(blocks, times, platform=Platform("pi"))


acts = st.builds(
    lambda variant, **fields: _varied(_acts(variant), **fields),
    st.sampled_from(["refined", "published"]),
    platform=platforms,
    confidence=shares,
    random_state=st.integers(),
)


@st.composite
def _transfers(draw):
    names, choices = (draw(st.lists(texts, min_size=2, max_size=3, unique=True)) for _ in range(2))
    costs = np.random.default_rng(0).uniform(1, 5, (len(names), len(choices)))

    def table(power):
        layers = (
            TableLayer(
                name,
                tuple(choices),
                {choice: Entry(*[float(cost**power)] * 3) for choice, cost in zip(choices, row, strict=True)},
            )
            for name, row in zip(names, costs, strict=True)
        )
        return LookupTable(space=space, platform=Platform("known"), layers=tuple(layers), input_shape=(1, 3))

    space = draw(spaces)
    known = {
        name: table(power) for power, name in enumerate(draw(st.lists(texts, min_size=2, max_size=2, unique=True)), 1)
    }
    estimator = TransferEstimator(platform=draw(platforms), confidence=draw(shares), check_units=draw(st.booleans()))
    return estimator.fit_tables(known)


metrics = st.sampled_from(sorted(METRIC_UNITS))

searches = st.fixed_dictionaries(
    {
        "space": texts, "space_arguments": _mapping(texts, _json), "strategy": texts, "estimator": texts,
        "platform": texts, "metric": metrics, "unit": texts, "dataset": texts, "target": numbers, "predicted": numbers,
        "measured": st.none() | numbers, "measured_at_speed": st.none() | numbers,
        "meets_target": st.none() | st.booleans(), "not_measured": st.none() | texts, "accuracy": numbers,
        "choices": _mapping(texts, texts), "history": st.lists(_mapping(texts, _json), max_size=3),
        "sample": _mapping(texts, _json), "missing": st.lists(texts, max_size=3),
    }
)  # fmt: skip


@functools.cache
def _onnx():
    folder = Path(tempfile.mkdtemp())
    path = folder / "net.onnx"
    path.write_bytes(export_onnx(nn.Linear(4, 2).eval(), (torch.zeros(1, 4),)).model.SerializeToString())
    return path


@st.composite
def _data_sets(draw):
    """Draw what `save_networks` takes: networks of one batch size, and what they take on a platform."""
    names = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    networks = [NetworkFile(name, _onnx(), draw(texts), draw(st.none() | counts)) for name in names]
    summaries = _costs(NetworkSummary, n_samples=counts, n_visits=counts, repeatability=positive)
    measured = PlatformLatencies(
        draw(platforms),
        1,
        draw(protocols),
        draw(texts),
        {network.key: draw(summaries) for network in networks},
        duration=draw(positive),
        conditions=draw(_mapping(texts, _mapping(texts, plain))),
    )
    return networks, [measured]


def _facts(found):
    """Return what is told of a record, with the facts of its platform, which its equality leaves out."""
    return found, dict(found.platform.facts)


def _model(*names):
    """Return what tells the state of a fitted model: some of its attributes, and its parameters."""
    return lambda found: ({name: getattr(found, name) for name in names}, found.__class__, _parameters(found))


def _parameters(found):
    return {
        name: getattr(found, name)
        for name in ("confidence", "random_state", "n_trees", "check_units")
        if hasattr(found, name)
    }


def _kernel_state(found):
    rows = [Kernel.of("relu_block", HW=8, CIN=count) for count in (4, 30)]
    fields = {name: value for name, value in vars(found).items() if name != "predictors"}
    return fields, dict(found.platform.facts), found.predict(rows).tolist() if found.predictors else []


def _save_set(found, path):
    save_networks(path, *found)


def _set_state(found):
    """Return the entries of a data set, and how they were measured; of what is saved, what they must be."""
    if isinstance(found, tuple):
        networks, (measured,) = found
        rows = [
            (f"{item.name}-b1", item.family, item.seed, measured.platform, asdict(measured.latencies[item.key]))
            for item in networks
        ]
        return rows, dict(measured.platform.facts), measured.campaign, dict(measured.conditions), measured.duration
    summary = list(asdict(NetworkSummary(1, 1, 1)))
    rows = [
        (item.name, item.family, item.seed, item.platform, {name: getattr(item, name) for name in summary})
        for item in found
    ]
    run = found.runs[0]
    return rows, dict(found[0].platform.facts), run.campaign, run.conditions, run.duration


def _save(found, path):
    found.save(path)


def _load_search(path):
    return SEARCH.load(path, lambda found: found.model_dump(exclude_unset=True, exclude={"format", "version"}))


#: By format: what is drawn, how it is saved and loaded, and what of it is compared.
_KINDS = {
    "nni_latency.lookup_table": (tables | operator_tables, _save, LookupTable.load, _facts),
    "nni_latency.validation": (validations, save_validation, read_validation, _facts),
    "nni_latency.fusion": (rules, save_rules, read_rules, _facts),
    "nni_latency.kernels": (kernel_files, _save, KernelPredictors.load, _kernel_state),
    "nni_latency.kernel_prior": (priors, _save, Prior.load, lambda found: found),
    "nni_latency.operator_profile": (_profiles(), _save, OperatorProfile.load, _facts),
    "nni_latency.energy": (
        portable, _save, PortableModel.load, _model("devices_", "powers_", "bounds_", "groups_", "share_", "held_out_")
    ),
    "nni_latency.graph_predictor": (
        _graph_predictors(), _save, GraphPredictor.load,
        _model("platforms_", "families_", "kinds_", "held_out_families_", "unmeasured_spread_"),
    ),
    "nni_latency.networks": (_data_sets(), _save_set, load_networks, _set_state),
    "nni_latency.benchmark_points": (points, _save, BenchmarkPoints.load, _facts),
    "nni_latency.acts": (acts, _save, ActsEstimator.load, _model("platform", "variant")),
    "nni_latency.transfer": (
        _transfers(), _save, TransferEstimator.load, _model("platform", "sources_", "labels_")
    ),
    "nni_latency.search": (
        searches,
        lambda found, path: SEARCH.save(path, found),
        _load_search,
        lambda found: found,
    ),
}  # fmt: skip

#: Whose files are too large to be written often.
_FEW = {"nni_latency.graph_predictor": 5, "nni_latency.networks": 15, "nni_latency.transfer": 6}

#: Whose files may have what is in them in another order when they are written again.
_UNORDERED = ("nni_latency.networks", "nni_latency.operator_profile", "nni_latency.search")


def test_every_kind_of_file_is_tried():
    assert set(_KINDS) == set(KINDS)


@pytest.mark.parametrize("name", _KINDS)
def test_whatever_is_saved_is_loaded_and_equal(name, tmp_path):
    found, save, load, state = _KINDS[name]

    @settings(max_examples=_FEW.get(name, 40))
    @given(found)
    def check(item):
        path, again = tmp_path / "file", tmp_path / "again"
        save(item, path)
        assert SavedFile(path).kind == name
        loaded = load(path)
        assert state(loaded) == state(item)
        if name not in _UNORDERED:
            save(loaded, again)
            assert again.read_bytes() == path.read_bytes()

    check()


def _table_of(name):
    return LookupTable.from_latencies({name: ["x"]}, {name: {"x": 1.0}})


@pytest.mark.parametrize(
    ("found", "save"),
    [
        (_table_of(_HALF), _save),
        (replace(_table_of("a"), remarks=(_HALF,)), _save),
        (replace(_table_of("a"), platform=Platform("pi", facts={_HALF: 1})), _save),
        (FusionRules(Platform("pi"), failures={"a": _HALF}), save_rules),
        (Prior({_HALF: {}}), _save),
    ],
)
def test_half_of_a_character_is_refused_before_a_file_is_written(found, save, tmp_path):
    with pytest.raises(InvalidValueError, match=r"cannot be written to '.*file': a text has half of a character"):
        save(found, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_half_of_a_character_is_refused_in_models(tmp_path):
    for found in (_varied(_portable(), groups_=[_HALF]), _varied(_graph_predictor(), families_=(_HALF,))):
        with pytest.raises(InvalidValueError, match="a text has half of a character"):
            found.save(tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"duration": float("nan")}, "not JSON compliant"),
        ({"duration": object()}, "not JSON serializable"),
        ({"drift": (0.0,)}, "drift.0 must be greater than 0"),
        ({"input_shape": (0,)}, "input_shape.0 must be greater than 0"),
        ({"layers": (TableLayer("a", (), {}),)}, "layers.0.choices must have 1 or more items"),
    ],
)
def test_what_could_not_be_read_is_not_written(fields, reason, tmp_path):
    path = _table_of("a").save(tmp_path / "table.json")
    before = path.read_bytes()
    with pytest.raises(InvalidValueError, match=rf"^The table cannot be written to '.*table.json': .*{reason}"):
        replace(_table_of("a"), **fields).save(path)
    assert path.read_bytes() == before


def test_table_by_hand_needs_choices_of_different_names():
    with pytest.raises(
        InvalidValueError, match=r"^The layer 'a' has two choices that are both called '1' in a table\."
    ):
        LookupTable.from_latencies({"a": [1, "1"]}, {})
    with pytest.raises(InvalidValueError, match=r"^The layer 'a' has two costs of the choice '1'\."):
        LookupTable.from_latencies({"a": [1, 2]}, {"a": {1: 1.0, "1": 2.0}})
    with pytest.raises(InvalidValueError, match=r"^The layer 'b' has no choices\. Name its choices, or leave it out\."):
        LookupTable.from_latencies({"a": [1], "b": []}, {})
    assert LookupTable.from_latencies({1: [1, 2]}, {1: {2: 1.0}})["1"]["2"].value == 1.0


def test_coverage_of_layers_without_choices_is_nothing():
    assert replace(_table_of("a"), layers=(TableLayer("a", (), {}),)).coverage == 0.0


def test_transfer_of_a_space_with_tuples_is_read(tmp_path):
    space = SpaceReference("mine", {"kernels": ((3, 3), [5]), "width": 0.5})
    table = LookupTable.from_latencies({"a": "xyz", "b": "xyz"}, {name: {"x": 1, "y": 2, "z": 4} for name in "ab"})
    known = {name: replace(table.with_entries(lambda entry: entry.scaled(2.0)), space=space) for name in ("one", "two")}
    estimator = TransferEstimator().fit_tables(known)
    path = estimator.save(tmp_path / "transfer.json")
    assert '"kernels": [[3, 3], [5]]' in path.read_text()
    again = TransferEstimator.load(path).save(tmp_path / "again.json")
    assert again.read_bytes() == path.read_bytes()
