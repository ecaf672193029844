# SPDX-License-Identifier: Apache-2.0
"""A residual network of timm, pruned to a latency: the predictor of whole networks says how much has to go.

The network is trained on scikit-learn's digits for a moment, without downloaded weights. Inside its residual blocks the
filters with the smallest sum of absolute weights are removed [1]_: convolutions are made anew with fewer channels, so
nothing is masked. How many, bisection finds: every step is a prediction, not a measurement. Both networks are measured.

    pip install timm torchvision
    python examples/prune_timm.py --model resnet18 --target 0.6

timm needs a torchvision of the same build as torch: beside the CPU build of torch, one for CUDA cannot be imported, and
then NNI cannot either.

The predictor that ships answers for another machine. The ratio of both latencies of the unpruned network brings its
predictions to this one. ``nni-latency learn graph --runtime torch`` adds this machine to the predictor instead; name it
by ``--estimator graph-network:FILE,PLATFORM``.

.. [1] H. Li et al., "Pruning Filters for Efficient ConvNets", ICLR 2017. arXiv:1608.08710
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import timm
import torch
from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn
from torch.utils.data import DataLoader

from nni_latency import Estimator, load_estimator
from nni_latency.estimators import MeasuredNetworkEstimator
from nni_latency.nas import Dataset, load_dataset

#: Channels are kept in multiples of it.
MULTIPLE = 8


class Pair(NamedTuple):
    """A convolution whose outputs only the next one reads: names of the block, both, and the normalisation between."""

    block: str
    first: str
    norm: str
    second: str

    @property
    def filters(self) -> str:
        """Name of the convolution that loses filters."""
        return f"{self.block}.{self.first}"


def pairs_of(network: nn.Module) -> Iterator[Pair]:
    """Yield every pair of convolutions inside of the residual blocks; sums with shortcuts keep their channels.

    Blocks with grouped convolutions, or with filters against aliasing, are left out.
    """
    for name, block in network.named_modules():
        if not isinstance(block, (BasicBlock, Bottleneck)):
            continue
        if block.conv2.groups == 1 and isinstance(block.aa, nn.Identity):
            yield Pair(name, "conv1", "bn1", "conv2")
            if isinstance(block, Bottleneck):
                yield Pair(name, "conv2", "bn2", "conv3")


def importance(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the sum of absolute weights of every filter over the mean of its convolution."""
    sums = {pair.filters: network.get_submodule(pair.filters).weight.abs().sum((1, 2, 3)) for pair in pairs_of(network)}
    return {name: (row / row.mean()).detach() for name, row in sums.items()}


def narrowed(layer: nn.Conv2d, inputs: torch.Tensor | None, outputs: torch.Tensor | None) -> nn.Conv2d:
    """Make a convolution of some of the input and output channels of another one; None stands for all."""
    weight = layer.weight.detach()
    weight = weight if outputs is None else weight[outputs]
    weight = weight if inputs is None else weight[:, inputs]
    made = nn.Conv2d(
        weight.shape[1], weight.shape[0], layer.kernel_size, layer.stride, layer.padding, layer.dilation, bias=False
    )
    made.weight = nn.Parameter(weight.clone())
    return made


def pruned(network: nn.Module, share: float) -> nn.Module:
    """Return a copy without the least important share of the filters; every convolution keeps eight at least."""
    made, known = copy.deepcopy(network), importance(network)
    limit = torch.cat(list(known.values())).quantile(share)
    for pair in pairs_of(network):
        row = known[pair.filters]
        count = min(len(row), MULTIPLE * max(1, math.ceil(int((row >= limit).sum()) / MULTIPLE)))
        kept = row.topk(count).indices.sort().values
        block = made.get_submodule(pair.block)
        setattr(block, pair.first, narrowed(getattr(block, pair.first), None, kept))
        setattr(block, pair.second, narrowed(getattr(block, pair.second), kept, None))
        norm = getattr(block, pair.norm)
        norm.num_features = count
        norm.weight, norm.bias = (nn.Parameter(item.detach()[kept].clone()) for item in (norm.weight, norm.bias))
        norm.running_mean, norm.running_var = norm.running_mean[kept].clone(), norm.running_var[kept].clone()
    return made


def share_for(network: nn.Module, estimator: Estimator, images: torch.Tensor, target: float) -> float:
    """Return the least share of the filters without which a network is predicted to meet the target, to 1 %."""
    low, high = 0.0, 0.99
    if estimator.estimate(pruned(network, high), images).value > target:
        raise SystemExit("The target is not met by pruning inside of the blocks alone.")
    while high - low > 0.01:
        middle = (low + high) / 2
        met = estimator.estimate(pruned(network, middle), images).value <= target
        low, high = (low, middle) if met else (middle, high)
    return high


def train(network: nn.Module, dataset: Dataset, epochs: int, rate: float) -> None:
    """Train a network at a learning rate."""
    optimizer = torch.optim.Adam(network.parameters(), rate)
    network.train()
    for _ in range(epochs):
        for images, classes in DataLoader(dataset.train, 64, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), classes).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(network: nn.Module, dataset: Dataset) -> str:
    """Return the accuracy on images held out, for people."""
    network.eval()
    right = [network(images).argmax(1) == classes for images, classes in DataLoader(dataset.valid, 256)]
    return f"{float(torch.cat(right).float().mean()):.1%}"


def size(network: nn.Module) -> str:
    """Return the number of parameters, for people."""
    return f"{sum(item.numel() for item in network.parameters()) / 1e6:.2f} M parameters"


def main() -> None:
    """Train, prune, train again, measure."""
    parser = argparse.ArgumentParser(description="A residual network of timm, pruned to a latency.")
    parser.add_argument("--model", default="resnet18", help="a residual network of timm [resnet18]")
    parser.add_argument("--target", type=float, default=0.6, help="target, as a share of what it takes [0.6]")
    parser.add_argument("--epochs", type=int, default=3, help="epochs before and after [3]")
    parser.add_argument(
        "--estimator", default="graph-network:pretrained,epyc-25-1-1.torch.fp32.t1", help="as for load_estimator"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset, images = load_dataset("digits"), torch.zeros(1, 3, 32, 32)
    network = timm.create_model(arguments.model, pretrained=False, num_classes=dataset.num_classes)
    if not any(pairs_of(network)):
        parser.error(f"{arguments.model} has no residual blocks that can be pruned")
    train(network, dataset, arguments.epochs, 1e-3)
    print(f"{arguments.model}: {size(network)}, accuracy {accuracy(network, dataset)}")

    estimator = load_estimator(arguments.estimator)
    predicted = estimator.estimate(network, images).value
    thin = pruned(network, share := share_for(network, estimator, images, arguments.target * predicted))
    print(f"pruned     {share:.0%} of the filters: {size(thin)}, accuracy {accuracy(thin, dataset)}", end="")
    train(thin, dataset, arguments.epochs, 2e-4)
    print(f", after training {accuracy(thin, dataset)}")

    # In turns: a machine that becomes slower meanwhile is so for both.
    measuring = MeasuredNetworkEstimator(store="memory")
    measuring.measure([(network, images), (thin, images)])
    before, after = (measuring.estimate(item, images).value for item in (network, thin))
    scale = before / predicted
    print(f"unpruned   {1e3 * before:.2f} ms, {scale:.2f} times the prediction for {estimator.platform.id}")
    expected = scale * estimator.estimate(thin, images).value
    print(f"predicted  {1e3 * expected:.2f} ms, target {1e3 * arguments.target * before:.2f} ms")
    print(f"measured   {1e3 * after:.2f} ms, prediction {expected / after - 1:+.1%}")


if __name__ == "__main__":
    main()
