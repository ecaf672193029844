# SPDX-License-Identifier: Apache-2.0
"""A differentiable search in plain PyTorch: only the costs come from this package, by `load_estimator`.

A super-network of six layers with four candidates each is trained on scikit-learn's digits. The loss has a penalty on
its expected latency, a product of probabilities and costs, so its gradient reaches the architecture parameters. Of
the networks that use at least 90 % of the target, the most probable one is then trained on and measured.

    python examples/plain_pytorch.py --target 0.25

The default estimator, ``module``, measures the operators of the candidates on this device, inside whole networks. Any
other layer-based estimator does, such as ``acts:acts.json``, which ``nni-latency learn device`` makes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, random_split

from nni_latency import LayerEstimator, load_estimator
from nni_latency.estimators import AdditiveCost, MeasuredNetworkEstimator, MeasuringEstimator, likeliest_within
from nni_latency.nas import load_dataset

#: Channels and stride of every layer.
LAYERS = ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1))

#: Kernel size of the candidates, and whether they are separable.
CANDIDATES = {"conv1": (1, False), "conv3": (3, False), "conv5": (5, False), "separable5": (5, True)}


def convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Make a convolution with its normalisation and activation."""
    made = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [made, nn.BatchNorm2d(out), nn.ReLU()]


def candidate(name: str, channels: int, out: int, stride: int) -> nn.Sequential:
    """Make a candidate."""
    kernel, separable = CANDIDATES[name]
    if not separable:
        return nn.Sequential(*convolution(channels, out, kernel, stride))
    depthwise = convolution(channels, channels, kernel, stride, groups=channels)
    return nn.Sequential(*depthwise, *convolution(channels, out, 1))


class MixedLayer(nn.Module):
    """A layer whose output is the sum of those of its candidates, weighed by their probabilities."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.candidates = nn.ModuleDict({name: candidate(name, channels, out, stride) for name in CANDIDATES})
        self.logits = nn.Parameter(torch.zeros(len(CANDIDATES)))

    @property
    def probabilities(self) -> torch.Tensor:
        """Probabilities of the candidates, with a gradient."""
        return self.logits.softmax(0)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Weigh the candidates."""
        outputs = torch.stack([made(inputs) for made in self.candidates.values()])
        return torch.einsum("c,cbxyz->bxyz", self.probabilities, outputs)


class SuperNetwork(nn.Module):
    """All networks at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolution(3, 8, 3))
        widths = [8, *(out for out, _ in LAYERS)]
        self.layers = nn.ModuleList(
            MixedLayer(channels, out, stride) for channels, (out, stride) in zip(widths, LAYERS, strict=False)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes, (batch, 10)."""
        features = self.stem(images)
        for layer in self.layers:
            features = layer(features)
        return self.head(features)

    def network(self, choices: Sequence[str]) -> nn.Sequential:
        """Return one of the networks, with the weights that it has here."""
        chosen = [layer.candidates[name] for layer, name in zip(self.layers, choices, strict=True)]
        return nn.Sequential(self.stem, *chosen, self.head)


def covering_networks(supernet: SuperNetwork) -> Iterator[nn.Sequential]:
    """Yield four networks that together have every candidate of every layer."""
    names = list(CANDIDATES)
    for turn in range(len(names)):
        yield supernet.network([names[(turn + place) % len(names)] for place in range(len(LAYERS))])


@torch.no_grad()
def costs_of(supernet: SuperNetwork, estimator: LayerEstimator, images: torch.Tensor) -> AdditiveCost:
    """Ask for the cost of every candidate, on what the layers before it hand over, and of the fixed parts."""
    supernet = supernet.eval()
    if isinstance(estimator, MeasuringEstimator):
        estimator.measure([(network, images) for network in covering_networks(supernet)])
    fixed = estimator.estimate(supernet.stem, images).value
    costs, features = {}, supernet.stem(images)
    for place, layer in enumerate(supernet.layers):
        costs[f"layer{place}"] = {
            name: estimator.estimate(made, features).value for name, made in layer.candidates.items()
        }
        features = layer(features)
    return AdditiveCost(fixed + estimator.estimate(supernet.head, features).value, costs)


def search(supernet: SuperNetwork, cost: AdditiveCost, target: float, epochs: int, price: float) -> None:
    """Train weights on one half of the images, and architecture parameters on the other, under the penalty."""
    halves = random_split(load_dataset("digits").train, [0.5, 0.5])
    logits = [layer.logits for layer in supernet.layers]
    weights = [item for name, item in supernet.named_parameters() if not name.endswith("logits")]
    seconds = torch.tensor([list(row.values()) for row in cost.costs.values()])
    of_weights, of_architecture = torch.optim.Adam(weights, 3e-3), torch.optim.Adam(logits, 3e-2)
    supernet.train()
    for epoch in range(1, epochs + 1):
        for first, second in zip(*(DataLoader(half, 64, shuffle=True, drop_last=True) for half in halves), strict=True):
            of_weights.zero_grad()
            nn.functional.cross_entropy(supernet(first[0]), first[1]).backward()
            of_weights.step()
            of_architecture.zero_grad()
            probabilities = torch.stack([layer.probabilities for layer in supernet.layers])
            expected = cost.constant + (probabilities * seconds).sum()
            loss = nn.functional.cross_entropy(supernet(second[0]), second[1])
            (loss + price * nn.functional.relu(expected / target - 1)).backward()
            of_architecture.step()
        print(f"epoch {epoch}: loss {loss:.3f}, expected latency {1e3 * expected:.3f} ms")


def train(network: nn.Module, epochs: int) -> float:
    """Train a network; return its accuracy on images held out."""
    dataset = load_dataset("digits")
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    network.train()
    for images, classes in itertools.chain.from_iterable(
        DataLoader(dataset.train, 64, shuffle=True, drop_last=True) for _ in range(epochs)
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), classes).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        right = [network(images).argmax(1) == classes for images, classes in DataLoader(dataset.valid, 256)]
    return float(torch.cat(right).float().mean())


def measure(
    network: nn.Module, supernet: SuperNetwork, estimator: LayerEstimator, images: torch.Tensor
) -> tuple[float, float]:
    """Measure a network in turns with the covering ones; return its latency [s], and the speed of the machine.

    The speed is what the estimator says of the covering networks over what they take now: below 1, the machine is
    slower than the estimator knows it.
    """
    known = list(covering_networks(supernet.eval()))
    # Only what is measured in one campaign is measured at one speed.
    measuring = MeasuredNetworkEstimator(store="memory")
    measuring.measure([(item, images) for item in (network, *known)])
    taken = [measuring.estimate(item, images).value for item in (network, *known)]
    said = [estimator.estimate(item, images).value for item in known]
    return taken[0], statistics.median(now / then for now, then in zip(said, taken[1:], strict=True))


def main() -> None:
    """Ask for the costs, search, and measure what was found."""
    parser = argparse.ArgumentParser(description="A differentiable search in plain PyTorch, under a latency target.")
    parser.add_argument("--target", type=float, default=0.25, help="target, from 0 for the fastest network to 1 [0.25]")
    parser.add_argument("--estimator", default="module", help="layer-based estimator, as for load_estimator [module]")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the search, and of the network found [3]")
    parser.add_argument("--price", type=float, default=5.0, help="weight of the penalty; 0 switches it off [5]")
    arguments = parser.parse_args()
    estimator = load_estimator(arguments.estimator)
    if not isinstance(estimator, LayerEstimator):
        parser.error(f"the costs of candidates need a layer-based estimator; {estimator!r} knows whole networks")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    supernet, images = SuperNetwork(), torch.zeros(1, 3, 32, 32)
    cost = costs_of(supernet, estimator, images)
    fastest, slowest = cost.range
    target = fastest + arguments.target * (slowest - fastest)
    print(f"The space on {estimator.platform.id}: {1e3 * fastest:.3f} to {1e3 * slowest:.3f} ms")
    search(supernet, cost, target, arguments.epochs, arguments.price)
    probabilities = [layer.probabilities.log().tolist() for layer in supernet.layers]
    found = likeliest_within(cost, probabilities, target, floor=0.9 * target)
    network = supernet.network(list(found.values()))
    print(f"found      {' '.join(found.values())}")
    print(f"accuracy   {train(network, arguments.epochs):.1%}")
    predicted = cost(found)
    print(f"predicted  {1e3 * predicted:.3f} ms, target {1e3 * target:.3f} ms")
    measured, speed = measure(network, supernet, estimator, images)
    change = f"{abs(1 / speed - 1):.1%} {'slower' if speed < 1 else 'faster'}"
    print(f"measured   {1e3 * measured:.3f} ms; the machine is {change} than the estimator says")
    at_speed = measured * speed
    print(f"           at the estimator's speed {1e3 * at_speed:.3f} ms, prediction {predicted / at_speed - 1:+.1%}")


if __name__ == "__main__":
    main()
