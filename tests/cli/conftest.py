# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: a runner, tables made in a moment, and a small data set."""

from __future__ import annotations

import inspect
import re

import pytest
import sklearn.datasets
from click.testing import CliRunner
from narrow import check_narrow
from sklearn.utils import Bunch
from tiny import TINY, TINY_OPTIONS, make_table

from nni_latency.cli import Grid, _report, _search_report, main
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable

# Before click 8.2 both streams are one unless a runner is told otherwise; since then they never are.
_APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


@pytest.fixture(scope="session", autouse=True)
def _own_database(tmp_path_factory):
    """Keep what fixtures of a module or of the session measure out of the user's database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Run every command in an empty folder, and print as wide as a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def _filled_columns(request, monkeypatch):
    """Fail where a printed table has a column whose value no row has, or is more than one table on a narrow screen.

    The slow tests print the same tables.
    """
    if request.node.get_closest_marker("slow") is None:
        printed = _report.print_part

        def checked(part):
            if isinstance(part, Grid) and part.rows:
                known = {key for row in part.rows for key in row}
                assert known.issuperset(column.key for column in part.columns), (part.title, known)
                check_narrow(part)
            printed(part)

        monkeypatch.setattr(_report, "print_part", checked)
        monkeypatch.setattr(_search_report, "print_part", checked)


@pytest.fixture(scope="session")
def invoke():
    """Run a command in this process, however it ends."""
    return lambda arguments: CliRunner(**_APART).invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def run(invoke):
    """Run a command in this process."""

    def checked(*arguments, code=0):
        result = invoke(arguments)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return checked


@pytest.fixture
def fails(run):
    """Run a command that must fail as a person expects; return the sentence.

    One sentence on standard error, with nothing before it but click's own usage line or what is being loaded, exit code
    2, and no traceback.
    """

    def invoke(*arguments):
        result = run(*arguments, code=2)
        assert isinstance(result.exception, SystemExit)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        before, sentence = re.fullmatch(r"(?ms)(.*?)^Error: (.*)", result.stderr).groups()
        shown = r"Loading PyTorch,[^\n]*\n(The target excludes no network: [^\n]*\n)?"
        assert not before or before.startswith("Usage: ") or re.fullmatch(shown, before)
        assert sentence.count("\n") == 1
        return sentence.rstrip("\n")

    return invoke


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Save tables of invented numbers; by name, their paths."""
    folder = tmp_path_factory.mktemp("tables")
    tiny, full, here = FBNetSpace(**TINY), FBNetSpace(), Platform.current("cpu")
    holes = [("layer0", "k3_e1"), ("layer2", "skip")]
    made = {
        "tiny": make_table(tiny, platform=here),
        "full": make_table(full),
        "holes": make_table(tiny, leave_out=holes, platform=here),
        "elsewhere": make_table(tiny),
        "energy": make_table(tiny, metric="energy", platform=here),
        "batch": make_table(tiny, platform=here),
    }
    plan = tiny.measure_plan(4)
    batch = LookupTable(space=plan.space, platform=here, layers=made["tiny"].layers, input_shape=plan.input_shape)
    made["batch"] = batch
    return {name: table.save(folder / f"{name}.json") for name, table in made.items()}


@pytest.fixture(scope="session")
def built(run, tmp_path_factory):
    """Build the table of the tiny space on this machine; return the path and what was printed."""
    out = tmp_path_factory.mktemp("built") / "table.json"
    return out, run(
        "build-lut",
        *TINY_OPTIONS,
        "--budget",
        "10min",
        "--protocol",
        "rounds=4",
        "--protocol",
        "processes=1",
        "--out",
        out,
    )


@pytest.fixture(scope="module")
def _few_digits():
    """Leave 120 pictures of scikit-learn's data set."""
    whole = sklearn.datasets.load_digits()
    few = Bunch(images=whole.images[:120], target=whole.target[:120])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", lambda: few)
        yield
