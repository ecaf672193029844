# SPDX-License-Identifier: Apache-2.0
"""``nni-latency search``, from a table to a measured network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from safetensors.torch import load_file
from tiny import TINY, make_table

from nni_latency.cli._search_measure import measure_found, runtime_of
from nni_latency.cli._search_report import FILES
from nni_latency.cli._searched import Searched
from nni_latency.errors import MeasurementError, MismatchError
from nni_latency.estimators import TableEstimator
from nni_latency.measurement import Protocol
from nni_latency.measurement.meters import RaplMeter
from nni_latency.nas import SearchResult
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable
from nni_latency.units import format_metric, format_percent, format_seconds, format_slowdown

#: As few rounds as a network that was found is measured in, however long they take where other processes are busy.
QUICK = ("--protocol", "rounds=4", "--protocol", "processes=1")


def _range(path):
    return TableEstimator(LookupTable.load(path)).cost.range


@pytest.fixture(scope="module")
def searched(run, built, tmp_path_factory, _few_digits):
    """Search on a few digits; return the folder, what was printed, and the target [ms]."""
    out = tmp_path_factory.mktemp("searched") / "found"
    low, high = _range(built[0])
    target = (low + 0.5 * (high - low)) * 1e3
    torch.set_num_threads(1)
    result = run(
        "search", "--latency-estimator", built[0], "--target", f"{target:.4f}ms", "--epochs", 2,
        "--training", "final_epochs=1,batch_size=32", *QUICK, "--out", out,
    )  # fmt: skip
    return out, result, target


def _content(searched, name="search.json"):
    return json.loads((searched[0] / name).read_text())


@pytest.mark.slow
def test_search_writes_its_files(searched):
    assert sorted(path.name for path in searched[0].iterdir()) == sorted(FILES)


@pytest.mark.slow
def test_result_is_a_sample_that_the_space_freezes_with_the_weights(searched):
    network = FBNetSpace(**TINY).freeze(_content(searched, "result.json"))
    missing = network.load_state_dict(load_file(searched[0] / "weights.safetensors"), strict=True)
    assert not missing.missing_keys
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_a_table_of_more_classes_than_the_data_set_has_is_searched(run, tmp_path):
    """As `build-lut --space fbnet` makes it: for the thousand classes of ImageNet."""
    table = make_table(FBNetSpace(**{**TINY, "num_classes": 20})).save(tmp_path / "t.json")
    words = ["search", "--latency-estimator", table, "--target", "2000ms", "--epochs", 1]
    result = run(*words, "--training", "final_epochs=0", "--no-measure", "--out", tmp_path / "found")
    assert result.stderr.count("The target excludes no network: a latency in this space is ") == 1
    weights = load_file(tmp_path / "found" / "weights.safetensors").values()
    assert (20,) in {tuple(tensor.shape) for tensor in weights}


@pytest.mark.slow
def test_result_meets_the_target_with_its_margin(searched, built):
    latency = TableEstimator(LookupTable.load(built[0])).estimate_sample(_content(searched, "result.json")).value
    assert latency <= 0.95 * searched[2] / 1e3


@pytest.mark.slow
def test_picture_is_no_blank_png(searched):
    path = searched[0] / "search.png"
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(path)
    assert pixels.shape[0] > 400
    assert pixels[..., :3].std() > 0.02


@pytest.mark.slow
def test_record_tells_what_was_searched(searched, built):
    content = _content(searched)
    assert content["space"] == "fbnet"
    assert content["estimator"] == str(built[0])
    assert content["platform"] == Platform.current("cpu").id
    assert content["dataset"] == "digits"
    assert (content["metric"], content["unit"]) == ("latency", "s")
    assert content["target"] == pytest.approx(searched[2] / 1e3, rel=1e-3)
    assert content["aim"] == pytest.approx(0.95 * content["target"])


@pytest.mark.slow
def test_record_tells_what_was_found(searched, built):
    content = _content(searched)
    assert content["sample"] == _content(searched, "result.json")
    estimator = TableEstimator(LookupTable.load(built[0]))
    assert content["predicted"] == pytest.approx(estimator.estimate_sample(content["sample"]).value)
    assert content["used"] == pytest.approx(content["predicted"] / content["aim"])
    assert 0 <= content["accuracy"] <= 1


@pytest.mark.slow
def test_record_tells_what_was_measured(searched):
    """As it was, and at the speed of the table: the validation of one network."""
    content = _content(searched)
    assert (content["format"], content["version"]) == ("nni_latency.search", 1)
    (network,) = content["validation"]["networks"]
    assert network["predicted"] == content["predicted"]
    assert network["measured"] == content["measured_at_speed"]
    assert content["measured"] * content["validation"]["speed"] == pytest.approx(content["measured_at_speed"])
    assert content["meets_target"] == (content["measured_at_speed"] <= content["target"])
    assert content["not_measured"] is None


@pytest.mark.slow
def test_record_tells_every_epoch(searched):
    history = _content(searched)["history"]
    assert [epoch["index"] for epoch in history] == [0, 1]
    assert set(history[0]) == {"index", "loss", "accuracy", "cost", "temperature", "duration"}


@pytest.mark.slow
def test_record_and_report_name_every_choice(searched):
    content = _content(searched)
    assert content["choices"] == content["sample"]
    for label, choice in content["choices"].items():
        assert any(label in line and choice in line for line in searched[1].stdout.splitlines())


@pytest.mark.slow
def test_progress_is_told_for_every_epoch(searched):
    stderr = searched[1].stderr
    for text in ("epoch 1: loss", "epoch 2: loss", "accuracy", "expected latency", "temperature 5.00"):
        assert text in stderr


@pytest.mark.slow
def test_summary_lists_layers_and_files(searched):
    stdout = searched[1].stdout
    for text in ("layer0", "layer6", "rest", "accuracy", "on held-out images", "Wrote"):
        assert text in stdout


@pytest.mark.slow
def test_record_is_shown(searched, run):
    shown = run("show", searched[0] / "search.json").stdout
    assert "on held-out images" in shown
    assert "layer0" in shown


@pytest.mark.slow
def test_summary_compares_prediction_and_measurement(searched):
    stdout, content = searched[1].stdout, _content(searched)
    used = f"uses {format_percent(content['used'])} of the target of {format_seconds(content['target'])}"
    assert f"predicted  {format_seconds(content['predicted'])}; {used} less its margin of 5.0 %" in stdout
    how = f"{format_slowdown(1 / content['validation']['speed'])} than when the table was built"
    assert f"measured   {format_seconds(content['measured'])}; the machine is {how}; at the table's speed" in stdout
    error = content["predicted"] / content["measured_at_speed"] - 1
    assert f"prediction {format_percent(error, signed=True)}" in stdout
    verdict = "meets the target" if content["meets_target"] else "misses the target by"
    assert f"verdict    {verdict}" in stdout
    assert "judged at the table's speed" in stdout


@pytest.mark.slow
def test_found_network_can_be_estimated_from_its_file(searched, built, run):
    command = ["predict", f"fbnet@{searched[0] / 'result.json'}", "-e", built[0], "--format", "json"]
    assert json.loads(run(*command).stdout)["latency_s"] == pytest.approx(_content(searched)["predicted"])


@pytest.fixture
def found():
    """Make what a search found: a network of the tiny space with nothing but skips."""
    sample = dict.fromkeys(FBNetSpace(**TINY).simplify(), "skip")
    return SearchResult(sample, torch.nn.Identity(), 1e-3, 0.9, ())


@pytest.mark.slow
def test_network_is_measured_with_the_reference_of_its_space(found, built, tmp_path):
    estimator = TableEstimator(LookupTable.load(built[0]))
    runtime = runtime_of(estimator.platform, None)
    made = measure_found(
        estimator,
        Searched("fbnet", TINY, (1, 3, 32, 32)),
        found,
        runtime,
        Protocol(rounds=4, processes=1),
        store="memory",
    )
    assert [item.name for item in made.results] == ["found"]
    assert made.results[0].predicted.value == 1e-3
    assert made.speed not in (0.0, 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_network_that_fails_to_run_is_reported(found, built, tmp_path):
    estimator = TableEstimator(LookupTable.load(built[0]))
    searched = Searched(f"{Path(__file__).with_name('tiny.py')}:Failing", {}, (1, 3, 8, 8))
    result = replace(found, sample={"layer": "broken"})
    with pytest.raises(MeasurementError, match=r"No network can be run: .*no such kernel"):
        runtime = runtime_of(estimator.platform, None)
        measure_found(estimator, searched, result, runtime, Protocol(rounds=4, processes=1), store="memory")


def test_estimator_of_another_platform_cannot_be_held_to_this_one(tables):
    platform = LookupTable.load(tables["elsewhere"]).platform
    with pytest.raises(MismatchError, match=r"The estimator belongs to another platform \(.*\)\.$"):
        runtime_of(replace(platform, runtime="torch"), "cpu")
    with pytest.raises(MismatchError, match=r"\)\. To measure on its device, name that with --device\.$"):
        runtime_of(replace(platform, runtime="torch"), None)


def test_estimator_of_a_runtime_that_is_not_installed_says_so(tables):
    platform = replace(LookupTable.load(tables["elsewhere"]).platform, device="board", runtime="tensorflow")
    with pytest.raises(MismatchError, match="the runtime 'tensorflow', which is not installed here"):
        runtime_of(platform, None)


@pytest.mark.slow
def test_result_is_written_although_it_cannot_be_measured(run, tables, tmp_path, _few_digits):
    """The table is of a device that is not here."""
    done = run(
        "search", "--latency-estimator", tables["elsewhere"], "--target", "4ms", "--fill", 0.9, "--epochs", 1,
        "--training", "final_epochs=0,batch_size=32", "--margin", 0, "--out", "out",
        "--second-estimator", tables["energy"], "--samples", 20, "--plot", "front.png",
    )  # fmt: skip
    assert imread("front.png").ndim == 3
    said = "The network found will not be measured: The estimator does not say on which device"
    assert done.stderr.index(said) < done.stderr.index("epoch 1: loss")
    content = json.loads((tmp_path / "out" / "search.json").read_text())
    assert content["validation"] is None
    assert content["measured"] is None
    assert content["not_measured"].startswith("The estimator does not say on which device")
    assert 0.9 <= content["used"] <= 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)


@pytest.fixture
def unfinished(run, tables, tmp_path, _few_digits, monkeypatch):
    """Search, and interrupt it while the network found learns on; return the command."""
    command = [
        "search", "--latency-estimator", tables["tiny"], "--target", "4ms", "--epochs", 1,
        "--training", "final_epochs=2,batch_size=32", "--no-measure", "--out", "out",
    ]  # fmt: skip

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("nni_latency.nas._training.accuracy", interrupt)
        said = run(*command, code=130).stderr
    kept = "'out/checkpoint.safetensors' keeps what was learned."
    assert f"Interrupted. Run the same command again to resume: {kept}" in " ".join(said.split())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint.safetensors"]
    return command


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_a_search_interrupted_in_its_first_epoch_says_that_nothing_is_kept(run, tables, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("nni_latency.nas._search.accuracy", interrupt)
    done = run(
        "search", "--latency-estimator", tables["tiny"], "--target", "4ms", "--no-measure", "--out", "out", code=130
    )
    assert "Interrupted. Nothing was kept: the first epoch, or trial, was not over." in done.stderr
    assert not [*tmp_path.glob("out/*")]


@pytest.mark.slow
def test_same_command_goes_on_with_an_unfinished_search(run, fails, unfinished, tmp_path):
    complaint = fails(*unfinished, "--seed", 3)
    assert (
        "'out/checkpoint.safetensors' is of a search with other options: seed=0 in it, seed=3 requested." in complaint
    )
    assert "Choose another folder, or replace what is in it with --overwrite." in complaint
    done = run(*unfinished)
    assert "Going on with the final training from out/checkpoint.safetensors" in done.stderr
    assert "epoch 1" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)
    assert "The folder 'out' is not empty." in fails(*unfinished)


@pytest.mark.slow
def test_results_are_written_before_they_are_measured(run, unfinished, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("nni_latency.cli._search._measure", interrupt)
    run(*[item for item in unfinished if item != "--no-measure"], code=130)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"result.json", "weights.safetensors", "search.json", "checkpoint.safetensors"}
    assert json.loads((tmp_path / "out" / "search.json").read_text())["not_measured"] == "It was interrupted."


@pytest.mark.slow
def test_overwrite_removes_an_older_search_first(run, unfinished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for name in (*FILES, "mine.txt"):
        (out / name).write_text("old")

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("nni_latency.cli._search._run", interrupt)
    run(*unfinished, "--overwrite", code=130)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.fixture
def refused(fails, tables, tmp_path, _few_digits):
    """Search with options that must be refused before anything is learned or written; return the sentence."""

    def search(*options, table="tiny", target=4, out="out"):
        command = ["search", "--latency-estimator", tables.get(table, table), "--target", f"{target}ms", "--out", out]
        before = sorted(tmp_path.rglob("*"))
        complaint = fails(*command, *options)
        assert sorted(tmp_path.rglob("*")) == before
        return complaint

    return search


def test_target_out_of_reach_tells_the_reachable_range(refused, tables):
    complaint = refused(target=0.1)
    low, high = _range(tables["tiny"])
    assert "No network of the space meets a latency of 100 us" in complaint
    assert f"Reachable is {low * 1e3:.3g}"[:16] in complaint
    assert f"{high * 1e3:.2f} ms" in complaint


@pytest.mark.slow
def test_fill_out_of_reach_tells_the_costliest(refused, tables):
    complaint = refused("--fill", "0.95", "--margin", "0", target=100)
    assert "No network of the space uses 95.0 % of a latency of 100 ms: the costliest has " in complaint
    assert f"{_range(tables['tiny'])[1] * 1e3:.2f} ms" in complaint


def test_target_without_room_for_the_margin_tells_the_fastest(refused, tables):
    low, _ = _range(tables["tiny"])
    complaint = refused(target=low * 1.01e3)
    assert "leaves no room for a margin of 5.0 %" in complaint
    assert f"{low * 1e3:.2f} ms" in complaint


@pytest.mark.parametrize("target", ["0", "-1", "nan", "inf", "soon"])
def test_target_that_is_no_positive_number_is_refused_as_it_was_typed(refused, target):
    assert f"such as 12ms, 20mJ, 4MiB or 100/s. Got '{target}ms'." in refused(target=target)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--space", "nasnet"], "The table belongs to the space 'fbnet', not to 'nasnet'"),
        (["--space-args", "width=0.5"], "width=0.25 in the table, width=0.5 requested"),
        (["--batch-size", "4"], "measured with batch size 1, not with 4"),
        (["--device", "tpu"], "Unknown device 'tpu'. Available: cpu"),
        (
            ["--dataset", "mnist"],
            "Unknown data set 'mnist'. Available: digits, cifar10, folder:PATH, PATH.npz, ",
        ),
        (["--epochs", "0"], "--epochs must be an int >= 1. Got 0."),
        (["--training", "batch_size=1"], "The field 'batch_size' of --training must be a whole number >= 2. Got 1."),
        (["--training", "threads=many"], "field 'threads' of --training must be a whole number >= 1. Got 'many'."),
        (["--training", "learning_rate=0"], "field 'learning_rate' of --training must be a number > 0. Got 0."),
        (["--training", "weight=-1"], "The field 'weight' of --training must be a number >= 0. Got -1."),
        (["--training", "epochs=3"], "Unknown field of --training 'epochs'. Available: final_epochs, batch_size, "),
        (["--training", "fast"], "It must be a name and a value, as in NAME=VALUE. Got 'fast'."),
        (["--fill", "1.2"], "--fill must be a share of the target in (0, 1]. Got 1.2."),
        (["--fill", "0"], "--fill must be a share of the target in (0, 1]. Got 0.0."),
        (["--second-estimator", "t.json"], "--second-estimator is drawn by --plot. Name a file for the picture."),
        (["--plot", "front.png", "--second-estimator", "crystal-ball"], "Unknown estimator 'crystal-ball'"),
        (["--margin", "0.6"], "0.6 is not in the range 0<=x<=0.5"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_options_are_refused(refused, options, complaint):
    assert complaint in refused(*options)


def test_missing_candidates_are_named(refused):
    assert "The table lacks 2 candidates: layer0:k3_e1, layer2:skip." in refused(table="holes")


def test_table_of_another_platform_is_refused_with_both(refused):
    complaint = refused("--device", "cpu", table="elsewhere")
    assert "unknown.unknown.fp32.t1" in complaint
    assert Platform.current("cpu").id.partition(".")[0] in complaint


def test_unknown_estimator_lists_what_there_is(refused):
    assert "Unknown estimator 'crystal-ball'. Available: " in refused(table="crystal-ball")


def test_table_of_another_metric_is_refused(refused):
    assert "The estimator gives energy, so --target must have its unit, as in 20mJ." in refused(table="energy")


def test_target_in_joules_out_of_reach_tells_the_reachable_range(fails, tables, _few_digits):
    words = ["search", "--latency-estimator", tables["energy"], "--target", "1e-9J", "--no-measure", "--out", "out"]
    complaint = fails(*words)
    assert "No network of the space meets an energy of" in complaint
    assert "J" in complaint


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("{energy}", ["--target", "5ms"], "The estimator gives energy, so --target must have its unit, as in 20mJ."),
        ("{tiny}", ["--target", "0.004"], "The estimator gives latency, so --target must have its unit, as in 12ms."),
        ("weighted:100*{tiny},20*{energy}", ["--target", "5ms"], "so --target must be a number without a unit."),
        ("{tiny}", [], "Missing option '--target'."),
    ],
)
def test_a_target_is_asked_for_in_the_unit_of_the_metric(fails, tables, source, options, said):
    assert said in fails("search", "--latency-estimator", source.format(**tables), *options)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_costs_of_layers_are_listed_in_the_unit_of_the_metric(run, tables):
    shown = run(
        "search", "--latency-estimator", tables["energy"], "--target", "4mJ", "--epochs", 1,
        "--training", "final_epochs=0,batch_size=32", "--no-measure", "--out", "out",
    ).stdout  # fmt: skip
    assert re.search(r"┃ layer .*┃ energy \[[mu]J\] ┃", shown)
    assert [line for line in shown.splitlines() if line.startswith("│ layer")]


def _joules(tables, *further):
    return [
        "search", "--latency-estimator", tables["energy"], "--target", "4mJ", "--epochs", 1,
        "--training", "final_epochs=0,batch_size=32", "--out", "out", *further,
    ]  # fmt: skip


def test_a_meter_that_is_missing_is_told_before_anything_is_learned(fails, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(RaplMeter, "folder", tmp_path / "absent")
    complaint = fails(*_joules(tables))
    assert "assume a power: constant:WATTS" in complaint
    assert "Without a meter, search with --no-measure." in complaint
    assert "epoch" not in complaint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["{energy}", "weighted:100*{tiny},20*{energy}"])
def test_a_wrong_meter_is_told_before_anything_is_learned(fails, tables, source):
    words = [source.format(**tables) if word == tables["energy"] else word for word in _joules(tables)]
    target = ["--target", "0.5"] if source.startswith("weighted") else []
    assert "Unknown meter 'watts'" in fails(*words, *target, "--meter", "watts:3")


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_a_target_in_joules_is_recorded_in_joules(run, tables, tmp_path):
    run(*_joules(tables, "--meter", "constant:20", "--protocol", "max_measure_execution_time=2", *QUICK))
    content = json.loads((tmp_path / "out" / "search.json").read_text())
    assert (content["metric"], content["unit"], content["target"]) == ("energy", "J", 0.004)
    assert content["not_measured"] is None
    assert content["measured"] > 0
    assert "4 mJ of energy" in run("show", "out/search.json").stdout


@pytest.fixture(scope="module")
def both(run, tables, tmp_path_factory, _few_digits):
    """Search by a weighted sum of latency and energy, and draw them; return the folder and what was printed."""
    folder = tmp_path_factory.mktemp("both")
    result = run(
        "search", "--latency-estimator", f"weighted:100*{tables['tiny']},20*{tables['energy']}", "--target", 0.5,
        "--epochs", 1, "--training", "final_epochs=0,batch_size=32", "--meter", "constant:20",
        "--protocol", "max_measure_execution_time=2", *QUICK, "--samples", 20, "--plot", folder / "front.png",
        "--out", folder / "out",
    )  # fmt: skip
    return folder, result


@pytest.mark.slow
def test_a_weighted_sum_tells_what_it_adds_up(both):
    content = json.loads((both[0] / "out" / "search.json").read_text())
    assert (content["metric"], content["unit"]) == ("weighted", "1")
    latency, energy = content["addends"]
    assert (latency["metric"], latency["unit"], latency["weight"]) == ("latency", "s", 100)
    assert (energy["metric"], energy["unit"], energy["weight"]) == ("energy", "J", 20)
    for name in ("predicted", "measured", "measured_at_speed"):
        assert content[name] == pytest.approx(100 * latency[name] + 20 * energy[name])
    assert content["predicted"] <= content["aim"]
    # The power is assumed.
    assert energy["measured"] == pytest.approx(20 * latency["measured"], rel=0.2)
    # The units depend on how fast the machine is.
    seconds, joules = (format_metric(part["measured"], part["metric"]) for part in (latency, energy))
    assert re.search(rf"\n +[\d.]+ = latency {seconds} x 100 \+ energy {joules} x 20\n", both[1].stdout)


@pytest.mark.slow
def test_a_weighted_sum_is_drawn_by_what_it_adds_up(both):
    pixels = imread(both[0] / "front.png")
    assert pixels[..., :3].std() > 0.02


def test_place_under_a_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "Cannot write 'file/out/result.json'" in refused(out="file/out")
