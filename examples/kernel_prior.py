# SPDX-License-Identifier: Apache-2.0
"""Count the kernels of the spaces that ship, which is where sampling of kernels begins.

    python examples/kernel_prior.py                                # FBNet and NNI's hub, some minutes
    python examples/kernel_prior.py --out mine.json --without mobilenetv3 --without proxylessnas

Random networks of every space are traced without computing anything, and divided into kernels. Cells are taken at the
size of CIFAR and at that of ImageNet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from nni_latency.kernels import Prior
from nni_latency.operators import Trace, trace
from nni_latency.spaces import HUB_SPACES, draw_samples, example_inputs_of, hub_space, make_space, network_of

#: Where the prior lies that ships.
SHIPPED = Path(__file__).parents[1] / "nni_latency" / "kernels" / "prior.json"


def networks_of(name: str, networks: int, **arguments: str) -> Iterator[Trace]:
    """Trace random networks of a space."""
    space = hub_space(name, **arguments) if arguments else make_space(name)
    inputs = example_inputs_of(space)
    for sample in draw_samples(space, networks):
        yield trace(network_of(space, sample)(), inputs, by="graph")


def all_networks(names: tuple[str, ...], networks: int) -> Iterator[Trace]:
    """Trace networks of all spaces, saying which."""
    for name in names:
        click.echo(name)
        yield from networks_of(name, networks)
        if name in HUB_SPACES and HUB_SPACES[name].defaults.get("dataset") == "cifar":
            yield from networks_of(name, networks, dataset="imagenet")


@click.command()
@click.option("--networks", default=4, help="Random networks of every space.", show_default=True)
@click.option("--without", multiple=True, help="A space that is left out; repeat for several.")
@click.option(
    "--out", default=SHIPPED, type=click.Path(path_type=Path), help="JSON file.  [default: the one that ships]"
)
def main(networks: int, without: tuple[str, ...], out: Path) -> None:
    """Count kernels and write the prior."""
    names = tuple(name for name in ("fbnet", *HUB_SPACES) if name not in without)
    prior = Prior.of(all_networks(names, networks))
    prior.save(out)
    for group, kernels in prior.counts.items():
        click.echo(f"{group}: {len(kernels)} configurations, {sum(kernels.values())} kernels")


if __name__ == "__main__":
    main()
