# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn transfer``, and ``build-lut`` from tables of other devices."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from tiny import TINY, make_table

from nni_latency.cli import _remote_options
from nni_latency.estimators import TransferEstimator
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable
from nni_latency.testing import FakeRuntime

_LAYERS = 7
_SPACE = ["--space-args", "input_size=32,num_classes=10,width=0.25,depth=0.25"]


def _write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def _read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def files(tmp_path):
    """Write 60 networks, two known devices and a new one, in milliseconds."""
    draw = np.random.default_rng(0)
    networks, base = draw.integers(0, 9, (60, _LAYERS)), draw.uniform(1, 5, (_LAYERS, 9))

    def latencies(power):
        return 2 + (base**power)[np.arange(_LAYERS), networks].sum(axis=1)

    known = np.stack([latencies(1.0), latencies(0.6)], axis=1)
    return {
        "--architectures": _write(
            tmp_path / "A.csv",
            ["index", *(f"layer{layer}" for layer in range(_LAYERS))],
            [[place, *row] for place, row in enumerate(networks.tolist())],
        ),
        "--from": _write(
            tmp_path / "L.csv", ["index", "a", "b"], [[place, *row] for place, row in enumerate(known.tolist())]
        ),
        "--measured": _write(tmp_path / "T.csv", ["index", "new"], list(enumerate(latencies(0.8).tolist()))),
    }


def _options(files, *names):
    return [part for name in names or files for part in (name, files[name])]


def test_transfer_writes_predictions_and_says_how_good_they_are(run, files, tmp_path):
    shown = run(
        "learn", "transfer", *_SPACE, *_options(files), "--samples", "12", "--out", "P.csv", "--table", "T.json"
    )
    assert "Measured: 12 networks" in shown.stdout
    assert re.search(r"On 48 other networks: Spearman (0\.9|1\.0)", shown.stdout)
    rows = _read(tmp_path / "P.csv")
    assert rows[0] == ["index", "predicted_ms", "low_ms", "high_ms"]
    assert len(rows) == 61
    assert float(rows[1][2]) <= float(rows[1][1]) <= float(rows[1][3])
    assert LookupTable.load("T.json").coverage == 1.0


@pytest.mark.slow
def test_transfer_writes_a_table_of_the_default_space(run, tmp_path):
    names, draw = [f"layer{place}" for place in range(22)], np.random.default_rng(0)
    networks = draw.integers(0, 9, (40, 22))
    seconds = 2 + draw.uniform(0.1, 1, (22, 9))[np.arange(22), networks].sum(axis=1)
    rows = {
        "--architectures": (names, networks),
        "--from": (["a", "b"], np.stack([seconds, 2 * seconds], 1)),
        "--measured": (["new"], 1.5 * seconds[:, None]),
    }
    files = {
        option: _write(
            tmp_path / f"{option[2:]}.csv",
            ["index", *header],
            [[place, *row] for place, row in enumerate(content.tolist())],
        )
        for option, (header, content) in rows.items()
    }
    run("learn", "transfer", *_options(files), "--out", "P.csv", "--table", "T.json")
    assert LookupTable.load("T.json").space.arguments["preset"] == "cifar"


def test_transfer_without_a_target_says_what_to_measure(run, files, tmp_path):
    run("learn", "transfer", *_SPACE, *_options(files, "--architectures", "--from"), "--samples", "5", "--out", "M.csv")
    rows = _read(tmp_path / "M.csv")
    assert rows[0][:2] == ["index", "layer0"]
    assert len(rows) == 6


def test_transfer_takes_a_target_of_few_networks_whole_and_saves_the_estimator(run, files, tmp_path):
    rows = _read(files["--measured"])
    files["--measured"] = _write(tmp_path / "few.csv", rows[0], rows[5:13])
    shown = run(
        "learn", "transfer", *_SPACE, *_options(files), "--out", "P.csv", "--save", "E.json", "--platform", "pixel-3"
    )
    assert "Measured: 8 networks, 4, 5, 6, 7, 8, 9, 10, 11" in shown.stdout
    assert TransferEstimator.load("E.json").platform.device == "pixel-3"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--measured", "T.csv:old"], "has no series 'old'. Available: new."),
        (["--measured", "L.csv"], "The file 'L.csv' has a, b. Name one of them: --measured L.csv:NAME."),
        (["--measured", "L.csv:a,b"], "The new device is one series."),
        (["--from", "L.csv:a,c"], "has no series 'c'. Available: a, b."),
        (["--from", "L.csv:"], "Names of series must follow the colon, as in L.csv:NAME. Got 'L.csv:'."),
        (["--from", "absent.csv"], "Cannot read 'absent.csv': No such file or directory."),
    ],
)
def test_transfer_says_what_is_wrong(fails, files, options, sentence):
    assert sentence in fails("learn", "transfer", *_SPACE, *_options(files), "--out", "P.csv", *options)


def test_transfer_takes_the_series_that_are_named(run, files, tmp_path):
    options = {**files, "--from": "L.csv:b", "--measured": "L.csv:a"}
    shown = run("learn", "transfer", *_SPACE, *_options(options), "--out", "P.csv")
    assert "Most similar: b" in shown.stdout
    # A file that exists is a file, whatever its name.
    options["--measured"] = (tmp_path / "L.csv").rename(tmp_path / "L:a.csv")
    assert "Cannot read 'L.csv'" in run("learn", "transfer", *_SPACE, *_options(options), "--out", "Q", code=2).stderr
    options["--from"] = "L:a.csv:b"
    assert "has a, b." in run("learn", "transfer", *_SPACE, *_options(options), "--out", "Q", code=2).stderr


def test_transfer_never_writes_to_a_file_that_it_reads(fails, files):
    options = {**files, "--from": "L.csv:a,b"}
    complaint = fails("learn", "transfer", *_SPACE, *_options(options), "--out", "L.csv", "--overwrite")
    assert "The output 'L.csv' is an input of this command, too." in complaint


def test_transfer_names_a_target_of_another_unit(fails, files, tmp_path):
    rows = _read(files["--measured"])
    seconds = [[place, float(value) / 1e3] for place, value in rows[1:]]
    files["--measured"] = _write(tmp_path / "seconds.csv", rows[0], seconds)
    assert "1,000 times too small" in fails("learn", "transfer", *_SPACE, *_options(files), "--out", "P.csv")
    assert not (tmp_path / "P.csv").exists()


@pytest.fixture
def known(tmp_path):
    """Save tables of two other devices."""
    space = FBNetSpace(**TINY)
    tables = {
        name: make_table(space, seed=seed, platform=Platform(name)) for seed, name in enumerate(("pixel-3", "pi-4"))
    }
    return [table.save(tmp_path / f"{name}.json") for name, table in tables.items()]


@pytest.fixture
def machine(monkeypatch):
    runtime = FakeRuntime(lambda op: 1e-6 * (1 + sum(map(ord, op.op_key)) % 997), platform=Platform.current("cpu"))
    monkeypatch.setattr(_remote_options, "make_runtime", lambda *arguments: runtime)


@pytest.mark.slow
def test_adapt_measures_few_networks_and_writes_a_table(run, machine, known):
    shown = run("build-lut", *_from(known), "--samples", "6", "--protocol", "rounds=2", "--out", "new.json")
    table = LookupTable.load("new.json")
    assert table.platform == Platform.current("cpu")
    assert "6 networks in" in shown.stdout
    assert sum(entry.n_samples for entry in table.searched[0].entries.values()) == 6
    assert table.protocol is not None
    assert "known devices: pixel-3" in table.remarks[0]


@pytest.mark.slow
def test_adapt_from_one_table_says_what_that_means(run, machine, known):
    shown = run("build-lut", *_from(known[:1]), "--samples", "5", "--protocol", "rounds=2", "--out", "new.json")
    assert "There is one known device, 'pixel-3.torch.fp32.t1'" in shown.stderr


def _from(tables):
    return [part for table in tables for part in ("--from", table)]


def test_adapt_refuses_what_it_can_not_use(fails, machine, known, tmp_path):
    words = ("build-lut", "--samples", 10, "--out", "new.json")
    assert "no file 'absent'" in fails(*words, "--from", "absent")
    assert "is given twice" in fails(*words, *_from([known[0]] * 3))
    other = make_table(FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25), platform=Platform("x"))
    assert "do not belong together" in fails(*words, *_from([known[0], other.save(tmp_path / "other.json")]))
    assert "--space-args has no effect with --from and --samples" in fails(
        *words, *_from(known), "--space-args", "width=0.5"
    )
    assert "--samples has no effect without --from. Omit it." in fails(*words)
    assert "Give one --from, or --samples as well." in fails("build-lut", *_from(known))
    (tmp_path / "new.json").write_text("{}")
    assert "exists" in fails(*words, *_from(known))
