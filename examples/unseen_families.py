# SPDX-License-Identifier: Apache-2.0
"""Predict networks of families that a predictor has never seen, beside what else is in use.

One family after another is held out; everything else is learned from, and every epoch and setting is chosen on
families that are learned from. Networks of mixed blocks are of no family, and always learned from. Beside
`GraphPredictor`: a line over FLOPs, one over FLOPs and memory access, and NNLP [1]_ as published (two SAGEConv of 512,
summed, with four numbers of the whole network); the sum of kernels where --kernels names predictors. All of them see
the same networks in the same run.

    nni-latency dataset measure --family all --per-family 60 --out networks.zip
    python examples/unseen_families.py networks.zip --platform epyc-7763.onnxruntime.fp32.t1 --out unseen

What was found is kept in the folder, family by family, so that an interrupted run goes on where it was. With
--at-once 5, five families are held out at a time: less is learned from, and less has to be fitted. Further questions
are --ask domain (part of every family is held out), --ask transfer (a platform is held out and learned from 8 to 300
networks, beside from scratch), --ask family (a family is learned from 50 networks) and --ask zero (every platform, or
that of --platform, is guessed from the others). NNLP was published with 18,000 networks an epoch: with fewer, give it
more --nnlp-epochs; the best one is chosen on families that are learned from.

.. [1] L. Liu et al., "NNLQP", ICPP 2022, https://doi.org/10.1145/3545008.3545051, and the code published with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import nn
from torch.nn import functional

from nni_latency.datasets import measured_networks
from nni_latency.estimators import Scores, score
from nni_latency.files import write_atomically
from nni_latency.graphs import MIXED, GraphPredictor, MeasuredNetwork
from nni_latency.loading import load_kernels
from nni_latency.operators import Features, OpSpec, work_of
from nni_latency.platforms import Platform
from nni_latency.plots import picture

Array = NDArray[np.float64]
Networks = Sequence[MeasuredNetwork]

#: Marks and colours of methods in the picture, the last of which is `GraphPredictor`.
_OTHERS, _OURS = [("^", "0.6"), ("s", "C4"), ("D", "C1"), ("v", "C2")], ("o", "C0")

#: A way to predict: takes what it learns from and what it predicts, and returns seconds.
Method = Callable[[Networks, Networks], Array]

#: What is learned from, and what is predicted from it, by the name under which it is scored.
Case = tuple[Networks, dict[str, Networks]]


def main_features(network: MeasuredNetwork) -> Features:
    """Count a network."""
    return sum((work_of(item.op)[0] for item in network.graph.operators), Features())


def by_line(columns: Callable[[Features], list[float]]) -> Method:
    """Predict by a line, fitted on relative errors."""

    def predict(known: Networks, unknown: Networks) -> Array:
        rows, wanted = (
            np.array([[*columns(main_features(item)), 1.0] for item in items]) for items in (known, unknown)
        )
        measured = np.array([item.latency for item in known])
        scale = rows.mean(0)
        found, *_ = np.linalg.lstsq(rows / scale / measured[:, None], np.ones(len(known)), rcond=None)
        return np.maximum(wanted / scale @ found, measured.min() / 10)

    return predict


@dataclass
class Nodes:
    """Nodes of one network or several beside each other: their numbers, edges, and the number of the network of each.

    ``whole`` holds four numbers of every network, and ``y`` its milliseconds.
    """

    x: torch.Tensor
    edges: torch.Tensor
    graph_of: torch.Tensor
    whole: torch.Tensor
    y: torch.Tensor

    @classmethod
    def joined(cls, items: Sequence[Nodes]) -> Nodes:
        """Put networks beside each other."""
        starts = np.cumsum([0, *(len(item.x) for item in items)])[:-1]
        return cls(
            torch.cat([item.x for item in items]),
            torch.cat([item.edges + int(start) for item, start in zip(items, starts, strict=True)], 1),
            torch.cat([item.graph_of + number for number, item in enumerate(items)]),
            torch.cat([item.whole for item in items]),
            torch.cat([item.y for item in items]),
        )


class SageConv(nn.Module):
    """A layer of GraphSAGE: a node and the mean of its neighbours, as a vector of length 1."""

    def __init__(self, n_features: int, hidden: int) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(n_features, hidden), nn.Linear(n_features, hidden, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the new state of the nodes, (n_nodes, hidden)."""
        source, target = edges
        counts = torch.bincount(target, minlength=len(x)).clamp(min=1)
        mean = torch.zeros_like(x).index_add(0, target, x[source]) / counts[:, None]
        return functional.normalize(self.neighbours(mean) + self.own(x), dim=-1)


class Nnlp(nn.Module):
    """NNLP: two rounds of SAGEConv, the sum over nodes beside four numbers of the network, and two layers."""

    def __init__(self, n_features: int, hidden: int = 512) -> None:
        super().__init__()
        self.first = SageConv(n_features, hidden)
        self.second = SageConv(hidden, hidden)
        self.drop = nn.Dropout(0.05)
        layers = [nn.Linear(hidden + 4, hidden), nn.ReLU(), nn.Dropout(0.05)]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.05), nn.Linear(hidden, 1)]
        self.last = nn.Sequential(*layers)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                for value in layer.parameters():
                    nn.init.uniform_(value, -(layer.in_features**-0.5), layer.in_features**-0.5)

    def forward(self, batch: Nodes) -> torch.Tensor:
        """Return milliseconds, (n_graphs,)."""
        state = self.drop(functional.relu(self.first(batch.x, batch.edges)))
        state = self.drop(functional.relu(self.second(state, batch.edges)))
        summed = state.new_zeros(len(batch.whole), state.shape[1]).index_add(0, batch.graph_of, state)
        whole = torch.cat([summed, batch.whole], 1)
        return functional.softplus(-self.last(whole))[:, 0]


def nnlp_data(network: MeasuredNetwork, kinds: Sequence[str]) -> Nodes:
    """Describe a network as NNLP sees it: kinds, attributes and output shapes of nodes, and edges both ways."""
    rows = [[float(item.op.kind == kind) for kind in kinds] + nnlp_numbers(item.op) for item in network.graph.operators]
    pairs = [(source, number) for number, item in enumerate(network.graph.operators) for source in item.sources]
    edges = torch.tensor([*pairs, *((b, a) for a, b in pairs)], dtype=torch.long).reshape(-1, 2).T
    found = main_features(network)
    batch_size = network.graph.operators[0].op.input_shapes[0][0]
    whole = torch.tensor([[batch_size, found.flops / 1e9, found.params / 1e9, found.memory / 1e9]], dtype=torch.float32)
    milliseconds = torch.tensor([network.latency * 1e3], dtype=torch.float32)
    return Nodes(torch.tensor(rows), edges, torch.zeros(len(rows), dtype=torch.long), whole, milliseconds)


def nnlp_numbers(op: OpSpec) -> list[float]:
    """Return attributes of a node, and its output shape on the published scale."""

    def sizes(name: str, usual: int = 0) -> list[float]:
        value = op.get(name, usual)
        return [float(item) for item in ((value, value) if isinstance(value, int) else (*value, 0, 0)[:2])]

    out = op.get("out", op.input_shapes[0] if op.input_shapes else ())
    shape = [*((out,) if isinstance(out, int) else out), 0, 0, 0, 0][:4]
    if "out_channels" in dict(op.attributes):
        strides = sizes("stride", 1)
        shape = [shape[0], op["out_channels"], shape[2] / strides[0], shape[3] / strides[1]]
    if "out_features" in dict(op.attributes):
        shape = [shape[0], op["out_features"], 0, 0]
    centres, scales = (12.25, 286.96, 32.62, 31.80), (1024, 2496, 256, 256)
    attributes = [*sizes("kernel_size"), *sizes("stride"), *sizes("padding"), *sizes("dilation"), *sizes("groups")[:1]]
    return attributes + [(size - centre) / scale for size, centre, scale in zip(shape, centres, scales, strict=True)]


def by_nnlp(epochs: int) -> Method:
    """Predict by NNLP, whose best epoch is chosen on families that are learned from, and not on those to predict."""

    def predict(known: Networks, unknown: Networks) -> Array:
        torch.manual_seed(0)
        random = np.random.default_rng(0)
        kinds = sorted({item.op.kind for network in known for item in network.graph.operators})
        families = sorted({item.family for item in known} - MIXED)
        held = set(random.permutation(families)[: max(1, len(families) // 5)]) if len(families) > 1 else set()
        data = [nnlp_data(item, kinds) for item in known]
        validation = [number for number, item in enumerate(known) if item.family in held] or list(
            range(0, len(known), 5)
        )
        training = sorted(set(range(len(known))) - set(validation))
        network = Nnlp(data[0].x.shape[1])
        optimiser = torch.optim.Adam(network.parameters(), 1e-3)
        best, kept = np.inf, network.state_dict()
        for _ in range(epochs):
            network.train()
            order = random.permutation(training)
            for first in range(0, len(order), 16):
                batch = Nodes.joined([data[number] for number in order[first : first + 16]])
                optimiser.zero_grad()
                functional.mse_loss(network(batch) / batch.y, torch.ones(len(batch.y))).backward()
                optimiser.step()
            error = np.abs(run_nnlp(network, [data[number] for number in validation]) * 1e3
                           / np.array([float(data[number].y) for number in validation]) - 1).mean()  # fmt: skip
            if error < best:
                best, kept = error, {name: value.clone() for name, value in network.state_dict().items()}
        network.load_state_dict(kept)
        return run_nnlp(network, [nnlp_data(item, kinds) for item in unknown])

    return predict


def run_nnlp(network: Nnlp, data: Sequence[Nodes]) -> Array:
    """Predict seconds."""
    network.eval()
    with torch.inference_mode():
        return np.concatenate(
            [network(Nodes.joined(data[first : first + 64])).double().numpy() / 1e3
             for first in range(0, len(data), 64)]
        )  # fmt: skip


def by_graph(graph: GraphPredictor) -> Method:
    """Predict by a graph predictor like this one."""

    def predict(known: Networks, unknown: Networks) -> Array:
        return clone(graph).fit(known).predict([item.graph for item in unknown])

    return predict


def by_kernels(argument: str) -> Method:
    """Predict by a sum of kernels, which were measured before and learn nothing here."""
    estimator = load_kernels(argument)

    def predict(known: Networks, unknown: Networks) -> Array:
        del known
        return np.array([estimator.estimate(item.graph).value for item in unknown])

    return predict


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--platform", help="The platform to predict.  [default: the one with the most networks]")
@click.option(
    "--ask",
    type=click.Choice(["families", "domain", "transfer", "family", "zero"]),
    default="families",
    show_default=True,
)
@click.option("--family", "wanted", multiple=True, help="Hold out just these families.")
@click.option("--at-once", default=1, show_default=True, help="Families that are held out at a time.")
@click.option("--kernels", help="KERNELS.json,RULES.json of the platform.")
@click.option("--epochs", default=24, show_default=True, help="Epochs of the graph predictor.")
@click.option("--members", default=3, show_default=True, help="Graph networks of the graph predictor.")
@click.option("--nnlp-epochs", default=50, show_default=True, help="Epochs of NNLP at most.")
@click.option("--jobs", default=1, show_default=True, help="Processes of the graph predictor that learn side by side.")
@click.option("--out", default=Path("unseen"), type=click.Path(path_type=Path), help="Folder of results and pictures.")
def main(
    data: tuple[Path, ...], platform: str | None, ask: str, wanted: tuple[str, ...], at_once: int, kernels: str | None,
    epochs: int, members: int, nnlp_epochs: int, jobs: int, out: Path,
) -> None:  # fmt: skip
    """Predict what was measured, and compare."""
    networks = [item for folder in data for item in measured_networks(folder)]
    ids = [item.platform.id for item in networks]
    chosen = platform or max(set(ids), key=ids.count)
    out.mkdir(parents=True, exist_ok=True)
    here = [item for item in networks if item.platform.id == chosen]
    graph = GraphPredictor(epochs=epochs, n_members=members, n_jobs=jobs)
    methods: dict[str, Method] = {
        "FLOPs": by_line(lambda found: [found.flops]),
        "FLOPs + memory": by_line(lambda found: [found.flops, found.memory]),
        "NNLP": by_nnlp(nnlp_epochs),
        **({"kernels": by_kernels(kernels)} if kernels else {}),
        "GraphPredictor": by_graph(graph),
    }
    if ask == "families":
        families = [name for name in sorted({item.family for item in here} - MIXED) if not wanted or name in wanted]
        # Every so many-th of them, so that neighbours such as mobilenetv2 and mobilenetv3 are not held out together.
        n_groups = -(-len(families) // at_once)
        cases = [hold_out(here, families[place::n_groups]) for place in range(n_groups)]
        compare(cases, methods, out / f"families.{chosen}.json", out / "unseen_families.png")
    elif ask == "domain":
        own = sorted((item for item in here if item.family not in MIXED), key=lambda item: item.name)
        test = {item.name for number, item in enumerate(own) if number % 10 == 3}
        known, unknown = ([item for item in here if (item.name in test) == held] for held in (False, True))
        compare([(known, {"all": unknown})], methods, out / f"domain.{chosen}.json", out / "in_domain.png")
    elif ask == "family":
        cases = []
        for name in wanted or ("vit",):
            known, of_family = hold_out(here, [name])
            own = sorted(of_family[name], key=lambda item: item.name)
            cases.append(([*known, *own[:50]], {name: own[50:]}))
        compare(cases, methods, out / f"family.{chosen}.json", out / "new_family.png")
    elif ask == "zero":
        guess(networks, platform, graph, out)
    else:
        transfer(networks, chosen, graph, out)


def hold_out(networks: Networks, families: Sequence[str]) -> Case:
    """Learn from all other families, and predict these."""
    return (
        [item for item in networks if item.family not in families],
        {name: [item for item in networks if item.family == name] for name in families},
    )


def compare(cases: Sequence[Case], methods: dict[str, Method], path: Path, out: Path) -> None:
    """Predict every case by every method, print a table and draw it."""
    found: dict[str, dict[str, list[float]]] = json.loads(path.read_text()) if path.is_file() else {}
    for known, unknown in cases:
        together = [item for items in unknown.values() for item in items]
        for name, method in methods.items():
            if all(name in found.get(case, {}) for case in unknown):
                continue
            begin = time.monotonic()
            seconds = iter(method(known, together))
            for case, items in unknown.items():
                rows = found.setdefault(case, {"measured": [item.latency for item in items]})
                rows[name] = [float(next(seconds)) for _ in items]
                say(f"{case} {name}", score(rows[name], rows["measured"]), time.monotonic() - begin)
            write_atomically(path, json.dumps(found))
    wanted = [case for _, unknown in cases for case in unknown]
    report({case: found[case] for case in sorted(wanted)}, methods, out)


def report(found: dict[str, dict[str, list[float]]], methods: dict[str, Method], out: Path) -> None:
    """Print how well every case is predicted, and draw it."""
    names = [name for name in methods if all(name in rows for rows in found.values())]
    click.echo("\n" + f"{'MAPE':16}" + "".join(f"{name:>16}" for name in names) + f"{'within 10 %':>16}")
    scores = {case: [score(rows[name], rows["measured"]) for name in names] for case, rows in found.items()}
    for case, items in scores.items():
        click.echo(f"{case:16}" + "".join(f"{item.mape:16.1%}" for item in items) + f"{items[-1].within10:16.0%}")
    means = [np.mean([items[place].mape for items in scores.values()]) for place in range(len(names))]
    inside = [np.mean([items[place].within10 for items in scores.values()]) for place in range(len(names))]
    click.echo(f"{'mean':16}" + "".join(f"{value:16.1%}" for value in means) + f"{inside[-1]:16.0%}")
    click.echo(f"{'within 10 %':16}" + "".join(f"{value:16.0%}" for value in inside))
    draw(
        {case: {name: item.mape for name, item in zip(names, items, strict=True)} for case, items in scores.items()},
        out,
    )


def say(name: str, found: Scores, seconds: float) -> None:
    """Print how well networks are predicted."""
    click.echo(
        f"{name:32} {found.n:4} networks   bias {found.bias:+6.1%}   MAPE {found.mape:6.1%}   within 10 % "
        f"{found.within10:4.0%}   Spearman {found.spearman:.3f}   {seconds:4.0f} s"
    )


def draw(errors: dict[str, dict[str, float]], out: Path) -> None:
    """Draw the mean absolute error of every method by family, the best predicted family at the top."""
    order = sorted(errors, key=lambda case: errors[case][list(errors[case])[-1]], reverse=True)
    names = list(errors[order[0]])
    means = {name: np.mean([errors[case][name] for case in order]) for name in names}
    others = ", ".join(f"{name} {means[name]:.1%}" for name in names[-2::-1])
    title = (
        f"{len(order)} families never seen: {names[-1]} {means[names[-1]]:.1%} off, {others}\n"
        "Mean absolute error of each family by a predictor that learned from the others"
    ).replace("%", " %")
    with picture(out, title, height=1.3 + 0.21 * len(order)) as figure:
        axes = figure.subplots()
        for name, (marker, colour) in zip(names, [*_OTHERS[: len(names) - 1], _OURS], strict=True):
            axes.plot([100 * errors[case][name] for case in order], range(len(order)), marker, color=colour, label=name)
        for row, case in enumerate(order):
            ends = [100 * find(errors[case].values()) for find in (min, max)]
            axes.plot(ends, [row, row], color="0.8", lw=1, zorder=0)
        axes.set_yticks(range(len(order)), order)
        axes.set_xlim(left=0)
        axes.set_xlabel("mean absolute error [%]")
        axes.legend(loc="lower right")
    click.echo(f"Wrote {out}")


def transfer(networks: Networks, platform: str, graph: GraphPredictor, out: Path) -> None:
    """Learn a platform that was held out from a few networks, beside from scratch; draw error against networks."""
    others = [item for item in networks if item.platform.id != platform]
    here = sorted((item for item in networks if item.platform.id == platform), key=lambda item: item.name)
    random = np.random.default_rng(0).permutation(len(here))
    test, pool = (
        [here[number] for number in random[: len(here) // 4]],
        [here[number] for number in random[len(here) // 4 :]],
    )
    pretrained = clone(graph).fit([item for item in others if item.name not in {t.name for t in test}])
    measured = [item.latency for item in test]
    graphs = [item.graph for item in test]
    order = pretrained.suggest([item.graph for item in pool], min(300, len(pool)))
    rows: dict[str, list[tuple[int, float]]] = {}
    for count in (8, 16, 32, 100, 200, 300):
        if count > len(pool):
            break
        chosen = [pool[number] for number in order[:count]]
        ways = {"pretrained, chosen": lambda items=chosen: pretrained.adapt(items)}
        ways["pretrained, at random"] = lambda items=pool[:count]: pretrained.adapt(items)
        if count >= 16:
            ways["from scratch"] = lambda items=pool[:count]: clone(graph).fit(items)
        for name, make in ways.items():
            found = score(make().predict(graphs, platform), measured)
            say(f"{name} {count}", found, 0.0)
            rows.setdefault(name, []).append((count, found.mape))
    write_atomically(out / f"transfer.{platform}.json", json.dumps(rows))
    best = {name: points[-1][1] for name, points in rows.items()}
    said = ", ".join(f"{name} {error:.1%}" for name, error in best.items()).replace("%", " %")
    title = f"Error on {platform} after {max(count for count, _ in rows['pretrained, chosen'])} networks: {said}"
    with picture(out / "transfer.png", title, height=3.8) as figure:
        axes = figure.subplots()
        for name, points in rows.items():
            axes.plot([count for count, _ in points], [100 * error for _, error in points], "o-", label=name)
        axes.set(
            xscale="log", xlabel=f"networks measured on {platform}", ylabel="mean absolute error [%]", ylim=(0, None)
        )
        counts = sorted({count for points in rows.values() for count, _ in points})
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.legend()
    click.echo(f"Wrote {out / 'transfer.png'}")


def guess(networks: Networks, wanted: str | None, graph: GraphPredictor, out: Path) -> None:
    """Guess a platform, or every one, from the others, beside the nearest of them, and FLOPs at its median speed."""
    platforms = {item.platform.id: item.platform for item in networks if wanted in (None, item.platform.id)}
    if not platforms:
        raise click.BadParameter(f"The data has no networks of {wanted!r}.", param_hint="--platform")
    path = out / "zero.json"
    rows: dict[str, dict[str, float | str]] = json.loads(path.read_text()) if path.is_file() else {}
    for name, platform in platforms.items():
        if name not in rows:
            rows[name] = guess_one(networks, platform, graph)
            write_atomically(path, json.dumps(rows))
    names = ("guessed", "nearest", "FLOPs", "inside")
    click.echo(f"{'MAPE':36}" + "".join(f"{name:>10}" for name in names) + f"{'factor':>8}  nearest")
    for name in platforms:
        row = rows[name]
        click.echo(
            f"{name:36}" + "".join(f"{row[way]:10.1%}" for way in names) + f"{row['factor']:8.2f}  {row['near']}"
        )
    means = [np.mean([float(rows[name][way]) for name in platforms]) for way in names]
    click.echo(f"{'mean':36}" + "".join(f"{value:10.1%}" for value in means))


def guess_one(networks: Networks, platform: Platform, graph: GraphPredictor) -> dict[str, float | str]:
    """Guess a platform from the others; return errors by way, and how many networks are inside of their intervals."""
    here = [item for item in networks if item.platform.id == platform.id]
    others = [item for item in networks if item.platform.id != platform.id]
    predictor = clone(graph).fit(others)
    measured = np.array([item.latency for item in here])
    guesses = [predictor.guess(item.graph, platform) for item in here]
    near = guesses[0].missing[0].rpartition(" ")[2]
    speed = np.median([main_features(item).flops / item.latency for item in others if item.platform.id == near])
    found = {
        "guessed": [item.value for item in guesses],
        "nearest": predictor.predict([item.graph for item in here], near),
        "FLOPs": [main_features(item).flops / speed for item in here],
    }
    for way, values in found.items():
        say(f"{platform.id} {way}", score(values, measured), 0.0)
    inside = np.mean([item.low <= value <= item.high for item, value in zip(guesses, measured, strict=True)])
    errors = {way: float(score(values, measured).mape) for way, values in found.items()}
    return {**errors, "inside": float(inside), "factor": guesses[0].high / guesses[0].value, "near": near}


if __name__ == "__main__":
    main()
