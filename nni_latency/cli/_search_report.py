# SPDX-License-Identifier: Apache-2.0
"""What ``nni-latency search`` found: as files, and on the screen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import nni_latency.energy as energy
import nni_latency.estimators as estimators
import nni_latency.nas as nas
import nni_latency.plots as plots
import nni_latency.spaces as spaces
import nni_latency.validation as validation
from nni_latency.cli._console import results
from nni_latency.cli._estimator_report import at_constant_power, constant_power_content
from nni_latency.cli._report import Column, Grid, print_part
from nni_latency.cli._search_document import SEARCH
from nni_latency.cli._search_measure import Addend
from nni_latency.cli._searched import FILES, Searched, SearchOptions
from nni_latency.documents import json_text
from nni_latency.files import write_atomically
from nni_latency.units import METRIC_UNITS, format_metric, format_percent, format_slowdown, number_of

#: How deep in the tree of modules the parts are that a network is reported by, and how many are listed.
_DEPTH, _LISTED = 2, 40


@dataclass(frozen=True)
class Found:
    """A search that is over.

    Parameters
    ----------
    searched : Searched
        The space.
    strategy : str
        Name of the strategy.
    aim : SearchAim
        The costs, the limit and the fill that it obeyed.
    result : SearchResult
        What it found.
    measured : Validation or str
        What the network found takes on this device, or the reason why that was not measured.
    estimator : str
        The estimator as it was named.
    options : SearchOptions
        Of the command.
    addends : tuple of Addend, default=()
        What the estimator adds up where it is a weighted sum.
    """

    searched: Searched
    strategy: str
    aim: nas.SearchAim
    result: nas.SearchResult
    measured: validation.Validation | str
    estimator: str
    options: SearchOptions
    addends: tuple[Addend, ...] = ()

    @property
    def used(self) -> float:
        """Share of the target, less its margin, that the predicted latency is."""
        return self.result.latency / self.aim.limit

    @property
    def network(self) -> validation.NetworkResult | None:
        """What was measured of the network, at the speed that the machine had when the estimator was made."""
        return None if isinstance(self.measured, str) else self.measured.results[0]

    @property
    def raw(self) -> float | None:
        """What the network took when it was measured [s]."""
        return None if isinstance(self.measured, str) else self.measured.results[0].measured / self.measured.speed

    @cached_property
    def choices(self) -> list[tuple[str, str]]:
        """What was chosen for every label of the space; a candidate that only has a number is named by its class."""
        return list(spaces.name_choices(self.searched.make(), self.result.sample).items())

    @cached_property
    def breakdown(self) -> estimators.Breakdown | None:
        """The network found, operator by operator, as far as the estimator knows these and does not measure them."""
        estimator = self.aim.profiler.estimator
        if isinstance(estimator, estimators.MeasuringEstimator) or not isinstance(estimator, estimators.LayerEstimator):
            return None
        import torch

        network = self.result.network.cpu().eval()
        return estimators.break_down(estimator, network, torch.zeros(self.searched.input_shape))

    @property
    def predicted_energy(self) -> estimators.Estimate | None:
        """What a portable model says of the network found, beside the time alone; None of other estimators."""
        if not isinstance(self.aim.profiler.estimator, energy.PortableEstimator) or self.breakdown is None:
            return None
        return self.breakdown.total

    @cached_property
    def parts(self) -> list[tuple[str, str, float]]:
        """Name, choice and latency [s] of every layer of the network found, or of every block of its modules."""
        return _parts(self)


def write_network(result: nas.SearchResult, out: Path) -> None:
    """Write the sample and the weights."""
    from safetensors.torch import save

    write_atomically(out / "result.json", json_text(result.sample, indent=1) + "\n")
    state = {name: tensor.contiguous().cpu() for name, tensor in result.network.state_dict().items()}
    write_atomically(out / "weights.safetensors", save(state))


def write_record(found: Found, out: Path) -> None:
    """Write all that was asked, found and measured."""
    content = search_content(found)
    SEARCH.save(out / "search.json", content, {"history": map(json_text, content.pop("history"))})


def write_picture(found: Found, out: Path) -> None:
    """Draw the network found, and the path of the search."""
    result, network = found.result, found.network
    picture = plots.SearchPicture(
        layers=found.parts,
        path=[(step.latency, step.accuracy) for step in result.history],
        predicted=result.latency,
        accuracy=result.accuracy,
        target=found.options.target,
        measured=None if network is None else network.measured,
        title=f"{found.searched.name} on {found.options.dataset}, {found.aim.profiler.estimator.platform.id}",
        trials=any(isinstance(step, nas.Trial) for step in result.history),
        raw=found.raw,
        metric=found.aim.profiler.cost.metric,
        choices=() if isinstance(found.aim.profiler.cost, estimators.AdditiveCost) else found.choices,
    )
    plots.draw_search(picture, out / "search.png")


def search_content(found: Found) -> dict[str, Any]:
    """Return a search as plain values, in SI units."""
    result, options, aim, network = found.result, found.options, found.aim, found.network
    metric = aim.profiler.cost.metric
    return {
        "space": found.searched.name,
        "space_arguments": dict(found.searched.arguments),
        "input_shape": found.searched.input_shape,
        "strategy": found.strategy,
        "seed": options.seed,
        "estimator": found.estimator,
        "platform": aim.profiler.estimator.platform.id,
        "metric": metric,
        "unit": METRIC_UNITS[metric],
        "dataset": options.dataset,
        "target": options.target,
        "aim": aim.limit,
        "fill": aim.fill,
        "predicted": result.latency,
        **({} if found.predicted_energy is None else constant_power_content(found.predicted_energy)),
        "addends": [item.content() for item in found.addends],
        "used": found.used,
        "missing": aim.profiler.cost.missing,
        "measured": found.raw,
        "measured_at_speed": None if network is None else network.measured,
        "meets_target": None if network is None else network.measured <= options.target,
        "validation": None if isinstance(found.measured, str) else validation.validation_content(found.measured),
        "not_measured": found.measured if isinstance(found.measured, str) else None,
        "accuracy": result.accuracy,
        "sample": result.sample,
        "choices": dict(found.choices),
        "history": [_step(step) for step in result.history],
    }


def _step(step: nas.Epoch | nas.Trial) -> dict[str, Any]:
    """Return an epoch or a trial as plain values; what it costs may be no latency."""
    fields = dataclasses.asdict(step)
    return {("cost" if name == "latency" else name): value for name, value in fields.items()}


def print_found(found: Found, out: Path) -> None:
    """Print the parts of the network, what was predicted and measured, and its accuracy."""
    result, metric = found.result, found.aim.profiler.cost.metric
    is_additive = isinstance(found.aim.profiler.cost, estimators.AdditiveCost)
    if not is_additive:
        chosen = [{"label": label, "choice": choice} for label, choice in found.choices]
        print_part(Grid(chosen, [Column("label", "label"), Column("choice", "choice")]))
    rows = [
        {"layer": name, "choice": choice, "cost": cost, "share": cost / result.latency}
        for name, choice, cost in found.parts
    ]
    columns = [
        Column("layer" if is_additive else "block", "layer"),
        Column("choice" if is_additive else "operators", "choice"),
        Column(metric, "cost", metric=metric),
        Column("share", "share", format_percent),
    ]
    print_part(Grid(rows, columns))
    console = results()
    for line in (*_predicted(found), *_measured(found)):
        console.print(line, markup=False)
    console.print(f"accuracy   {format_percent(result.accuracy)} on held-out images")
    console.print(f"Wrote {', '.join(str(out / name) for name in FILES)}", markup=False)


def _predicted(found: Found) -> list[str]:
    """Say what was predicted, and how much of the target that is."""
    cost = partial(format_metric, metric=found.aim.profiler.cost.metric)
    margin = 1 - found.aim.limit / found.options.target
    less = f" less its margin of {format_percent(margin)}" if margin > 0 else ""
    lines = [
        f"predicted  {cost(found.result.latency)}; uses {format_percent(found.used)} of the target of "
        f"{cost(found.options.target)}{less}"
    ]
    lines += [f"           {line}" for line in at_constant_power(found.predicted_energy, found.aim.profiler.estimator)]
    if found.addends:
        lines.append(f"           = {' + '.join(item.told(item.predicted) for item in found.addends)}")
    if found.aim.fill is not None and found.used < found.aim.fill:
        lines.append(f"           No network was found that uses {format_percent(found.aim.fill)} or more.")
    return lines


def _measured(found: Found) -> list[str]:
    """Say what was measured, as it was and at the speed that the machine had when the estimator was made."""
    network, measured = found.network, found.measured
    if network is None or isinstance(measured, str) or found.raw is None:
        return [f"measured   no: {measured}"]
    cost = partial(format_metric, metric=found.aim.profiler.cost.metric)
    is_table = isinstance(found.aim.profiler.estimator, estimators.TableEstimator)
    error = f"prediction {format_percent(network.error, signed=True)}"
    at_speed = f"{cost(network.measured)} ({cost(network.low)} to {cost(network.high)}), {error}"
    whose = "table" if is_table else "estimator"
    if network.measured <= found.options.target:
        verdict = "meets the target"
    else:
        verdict = f"misses the target by {format_percent(network.measured / found.options.target - 1)}"
    added = [item.told(item.predicted if item.raw is None else item.raw) for item in found.addends]
    return [
        f"measured   {cost(found.raw)}; {_speed(measured.speed, is_table=is_table)}; at the {whose}'s speed {at_speed}",
        *([f"           {cost(found.raw)} = {' + '.join(added)}"] if added else []),
        f"verdict    {verdict}, judged at the {whose}'s speed",
    ]


def _speed(speed: float, *, is_table: bool) -> str:
    """Say how fast the machine was while it measured."""
    if speed == 1:
        return "the machine's speed is not known without reference networks"
    change = format_slowdown(1 / speed)
    if is_table:
        return f"the machine is {change} than when the table was built"
    return f"the space's reference networks are {change} than the estimator predicts"


def _parts(found: Found) -> list[tuple[str, str, float]]:
    """List name, choice and latency of every layer of the network found, or of every block of its modules."""
    cost = found.aim.profiler.cost
    if isinstance(cost, estimators.AdditiveCost):
        return _layers(found, cost)
    if found.breakdown is None:
        return [("network", "", found.result.latency)]
    shares: dict[str, list[float]] = {}
    for operator in found.breakdown.operators:
        shares.setdefault(".".join(operator.name.split(".")[:_DEPTH]) or "network", []).append(operator.share)
    parts = [(name, number_of(len(row), "operator"), found.result.latency * sum(row)) for name, row in shares.items()]
    rest = parts[_LISTED:]
    more = [(f"and {len(rest)} more", "", sum(cost for _, _, cost in rest))] if rest else []
    return [*parts[:_LISTED], *more]


def _layers(found: Found, cost: estimators.AdditiveCost) -> list[tuple[str, str, float]]:
    """List the layers where each has a cost; what is fixed comes as one."""
    sample = found.result.sample
    parts = cost.parts(sample)
    # So that the layers make up the latency, less what a small network saves.
    factor = cost(sample) / (cost.constant + sum(parts.values()))
    searched = [(label, str(sample[label]), factor * part) for label, part in parts.items()]
    estimator = found.aim.profiler.estimator
    fixed = (
        len([layer for layer in estimator.table.layers if not layer.searched])
        if isinstance(estimator, estimators.TableEstimator)
        else 0
    )
    return [*searched, ("rest", f"{number_of(fixed, 'fixed layer')}" if fixed else "fixed", factor * cost.constant)]
