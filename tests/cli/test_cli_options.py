# SPDX-License-Identifier: Apache-2.0
"""Typed groups of options, and the options of a platform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from tiny import TINY_OPTIONS

from nni_latency.cli import DURATION, PlatformOptions, grouped, make_runtime, option
from nni_latency.cli._measuring import DeviceOptions
from nni_latency.cli._option import BATCH_SIZES, fields_option
from nni_latency.errors import InvalidValueError
from nni_latency.platforms import PRECISIONS, Platform
from nni_latency.tables import LookupTable


@dataclass(frozen=True)
class _Group:
    count: int = option("How many.", type=click.IntRange(1), default=2)
    kind: Literal["a", "b"] = option("Which.", default="a")
    again: bool = option("Once more.", default=True)
    quiet: bool = option("Say nothing.", "--hush", default=False)
    place: Path | None = option("Where.")
    names: tuple[str, ...] = option("Who.", "--name", multiple=True)
    sizes: tuple[int, ...] = option("How large.", type=BATCH_SIZES, default="1")
    budget: float = option("How long.", type=DURATION, default="1min")
    fields: tuple[tuple[str, Any], ...] = fields_option("What else.", "--field")


@pytest.fixture
def parse():
    """Parse arguments with a command of one group; return the group."""
    found = []

    @click.command()
    @click.argument("first")
    @grouped(count={"default": 3})
    def command(first: str, group: _Group) -> None:
        found.append((first, group))

    def invoke(*arguments):
        result = CliRunner().invoke(command, arguments)
        return found.pop() if found else result.output

    return invoke


def test_defaults_are_those_of_the_fields_and_of_the_command(parse):
    assert parse("x") == ("x", _Group(3, "a", True, False, None, (), (1,), 60.0, ()))


def test_values_have_the_types_of_the_fields(parse):
    given = ["--count", "4", "--kind", "b", "--no-again", "--hush", "--place", "p", "--name", "n", "--name", "m"]
    _, group = parse("x", *given, "--sizes", "1,8", "--budget", "90")
    assert group == _Group(4, "b", False, True, Path("p"), ("n", "m"), (1, 8), 90.0, ())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--count", "0"], "0 is not in the range x>=1"),
        (["--kind", "c"], "'c' is not one of 'a', 'b'"),
        (["--budget", "soon"], "Invalid value for '--budget': A duration must be a positive number"),
        (["--sizes", f"1,{'9' * 5000}"], "Batch sizes must be whole numbers >= 1"),
        (["--count", "9" * 5000], "Invalid value for '--count'"),
        (["--hush", "--no-hush"], "No such option"),
        (["--field", "a"], "It must be a name and a value, as in NAME=VALUE. Got 'a'."),
        (["--field", "a=1,a=2"], "'a' is given twice, as 1 and as 2. Give it once."),
    ],
)
def test_bad_values_are_usage_errors(parse, arguments, complaint):
    assert complaint in parse("x", *arguments)


def test_help_shows_defaults_and_kinds(parse):
    shown = " ".join(parse("--help").split())
    for text in ("How many. [default: 3; x>=1]", "--again / --no-again", "--hush Say nothing.", "--budget DURATION"):
        assert text in shown


def test_fields_are_json_or_text_and_joined(parse):
    _, group = parse("x", "--field", "a=true,b=2", "--field", "c=fast, d=x=y,e=[1,2]", "--field", '{"f": null}')
    assert group.fields == (("a", True), ("b", 2), ("c", "fast"), ("d", "x=y"), ("e", [1, 2]), ("f", None))


def _platform(*options, runtime="torch"):
    return PlatformOptions("cpu", runtime, options, "fp32", 1)


def test_options_reach_the_runtime():
    assert make_runtime(_platform(("channels_last", True))).name == "torch-nhwc"
    assert make_runtime(DeviceOptions("cpu", ()).of(Platform("x", "torchscript", threads=2))).threads == 2


@pytest.mark.parametrize(
    ("runtime", "name", "value", "complaint"),
    [
        ("torch", "speed", 2, r"'torch' has no option 'speed'\. Its options: channels_last, allocator\."),
        ("torch", "threads", 2, r"'torch' has no option 'threads'\."),
        (
            "torch-nhwc",
            "channels_last",
            False,
            r"has no option 'channels_last'\. Its options: allocator\.",
        ),
        ("torch", "channels_last", "yes", r"must be a bool, such as channels_last=false\. Got 'yes'\."),
    ],
)
def test_options_that_a_runtime_does_not_have_are_refused(runtime, name, value, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        make_runtime(_platform((name, value), runtime=runtime))


def test_build_takes_options_of_the_runtime(run, fails, tmp_path):
    command = ["build-lut", *TINY_OPTIONS, "--metric", "parameter_memory", "--out", "t.json", "--runtime-option"]
    run(*command, "channels_last=true")
    assert LookupTable.load(tmp_path / "t.json").platform.runtime == "torch-nhwc"
    assert "Its options: channels_last, allocator." in fails(*command, "speed=2", "--overwrite")
    assert "must be a name and a value" in fails(*command, "speed")


def test_precision_takes_every_known_one(run):
    assert f"[{'|'.join(PRECISIONS)}]" in run("build-lut", "--help").stdout
