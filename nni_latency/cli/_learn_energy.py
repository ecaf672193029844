# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn energy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.documents as documents
import nni_latency.energy as energy
import nni_latency.profiling as profiling
from nni_latency.cli._console import Part, progress, remarks
from nni_latency.cli._option import OutputOptions, grouped
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.cli._training import check_whole, training_of, training_option
from nni_latency.errors import InvalidValueError
from nni_latency.units import format_count, format_percent, format_seconds, number_of

_PROFILE = "nni_latency.operator_profile"

#: Operators of a device at least: three are left where half of them are held out.
_FEWEST = 6

#: What is held out: operators of a device, or all of a device.
_OPERATORS, _DEVICE = "operators", "the device"

#: What is scored, with the name of each line.
_LINES = {
    "time": "time",
    "power": "power",
    "energy": "energy, as power times time",
    "constant": "the same time, times a constant power",
}


@dataclass(frozen=True)
class _Training:
    """How a portable model is fitted: the fields of ``--training``.

    Parameters
    ----------
    trees : int
        Trees of a forest.
    folds : int
        Parts into which the operators of one device are divided.
    seed : int
        Random seed.
    """

    trees: int = 150
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, trees=1, folds=2, seed=0)


@dataclass(frozen=True)
class _EnergyOptions:
    """How a portable model is fitted."""

    training_fields: tuple[tuple[str, Any], ...] = training_option(
        "How the model is fitted, such as trees=50", _Training
    )


@dataclass(frozen=True)
class _Scored:
    """How well operators are predicted: by what was held out and device.

    Parameters
    ----------
    found : tuple of (str, str, EnergyScores)
        What was held out, the device, and the scores.
    """

    found: tuple[tuple[str, str, energy.EnergyScores], ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is reported, a row for each error."""
        rows = []
        for how, device, scores in self.found:
            for what, line in _LINES.items():
                median, mean = getattr(scores, what)
                row = {"held_out": how, "device": device, "operators": scores.operators}
                rows.append({**row, "what": line, "median": median, "mean": mean})
        return rows

    @property
    def bounds(self) -> dict[str, float]:
        """What nine of ten operators stay within on the worst of the devices."""
        within = [scores.bounds for how, _, scores in self.found if how == _OPERATORS]
        return {
            metric: max(1e-9, *(bounds[place] for bounds in within))
            for place, metric in enumerate(("latency", "energy"))
        }


@click.command("energy", cls=ReportingCommand)
@click.argument("data", nargs=-1, required=True, metavar="[NAME=]FILE...")
@grouped(out={"help": "JSON file of the model.  [default: energy.json]"})
def learn_energy(data: tuple[str, ...], fit: _EnergyOptions, output: OutputOptions) -> None:
    """Learn a portable model of time and power.

    A FILE is of one device: a profile of 'nni-latency profile --measure' with a meter, or a CSV file with the columns
    operator, input_shape, latency_s and energy_mj. Operators of several devices are scored by leaving one device
    out, those of each device by cross-validation.
    """
    training = training_of(_Training(), fit.training_fields)
    paths = [Path(item.rpartition("=")[2]) for item in data]
    out = output.path("energy.json")
    if any(path.exists() and out.exists() and path.samefile(out) for path in paths):
        raise InvalidValueError(f"The output {str(out)!r} is an input of this command, too. Name another file.")
    operators, assumed = _read(data)
    model = energy.PortableModel(n_trees=training.trees, random_state=training.seed)
    facts = {name: energy.DeviceFacts.of(items) for name, items in operators.items()}
    with progress(remarks()) as bar:
        scored = _score(operators, facts, model, training, bar)
    model.fit(operators, facts)
    model.bounds_ = scored.bounds
    model.held_out_ = tuple(item for _, _, scores in scored.found for item in scores.held_out)
    model.save(out)
    print_report(_report(scored.rows, facts, [*assumed, f"Wrote {out}"]))


def _read(data: Sequence[str]) -> tuple[dict[str, list[energy.MeasuredOperator]], list[str]]:
    """Read the operators of every device, and say whose power was not measured."""
    found: dict[str, list[energy.MeasuredOperator]] = {}
    assumed: list[str] = []
    for item in data:
        name, _, path = item.rpartition("=")
        own, operators, assumption = _read_file(path)
        if (name or own) in found:
            raise InvalidValueError(f"Two files are of the device {name or own!r}. Name them apart: NAME={path}.")
        if len(operators) < _FEWEST:
            raise InvalidValueError(
                f"{path!r} has {number_of(len(operators), 'operator')} with time and energy; {_FEWEST} are needed, so "
                "that some can be held out."
            )
        found[name or own] = operators
        if assumption is not None:
            assumed.append(
                f"{name or own}: its energy is time times {assumption}, which is an assumption. Nothing can be learned "
                "from it about power."
            )
    return found, assumed


def _read_file(path: str) -> tuple[str, list[energy.MeasuredOperator], str | None]:
    """Read a profile or a table: what its device is called, its operators, and what was assumed about its power."""
    file = documents.SavedFile(path)
    if file.kind != _PROFILE:
        return Path(path).stem, energy.read_operators(path), None
    profile: profiling.OperatorProfile = documents.load(file)
    if profile.meter is None:
        raise InvalidValueError(f"The profile {path!r} holds no energy. Measure one with --meter.")
    return profile.platform.id, profile.measured(), profile.assumption


def _score(
    operators: dict[str, list[energy.MeasuredOperator]],
    facts: dict[str, energy.DeviceFacts],
    model: energy.PortableModel,
    training: _Training,
    bar: Any,
) -> _Scored:
    """Score the model behind a progress bar."""
    part, total = Part(bar, "scoring"), len(operators) + (len(operators) > 1)
    found = list[tuple[str, str, energy.EnergyScores]]()
    for number, (name, items) in enumerate(operators.items(), 1):
        folds = min(training.folds, len(items))
        scores = energy.cross_validate(items, model=model, folds=folds, seed=training.seed, name=name)
        found.append((_OPERATORS, name, scores))
        part(number / total)
    if len(operators) > 1:
        left_out = energy.leave_one_device_out(operators, facts, model)
        found += [(_DEVICE, name, scores) for name, scores in left_out.items()]
        part(1.0)
    return _Scored(tuple(found))


def _report(rows: list[dict[str, Any]], facts: dict[str, energy.DeviceFacts], after: Sequence[str]) -> Report:
    columns = [
        Column("held out", "held_out"),
        Column("device", "device"),
        Column("error of", "what"),
        Column("median", "median", format_percent),
        Column("mean", "mean", format_percent),
        Column("operators", "operators", str),
    ]
    content = {"scores": rows, "devices": {name: vars(item) for name, item in facts.items()}}
    lines = [
        "Energy is worth predicting as far as its error is below that of the time times a constant power.",
        *(f"{name}: {_told(item)}" for name, item in facts.items()),
        *after,
    ]
    return Report(Grid(rows, columns, "Operators that were held out"), content, after=lines)


def _told(facts: energy.DeviceFacts) -> str:
    show: dict[str, Callable[[float], str]] = {"flops": format_count, "bandwidth": format_count}
    return (
        f"{show['flops'](facts.flops)}FLOP/s, {show['bandwidth'](facts.bandwidth)}byte/s, {facts.rest:.3g} to "
        f"{facts.power:.3g} W, shortest operator {format_seconds(facts.launch)}"
    )
