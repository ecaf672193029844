"""Several data sets as one, such as those of two devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nni_latency.datasets._content import Content
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet, check_agreement
from nni_latency.errors import InvalidValueError


def merge_networks(
    sets: Sequence[NetworkSet], path: str | Path, *, conflict: Literal["error", "first", "last"] = "error"
) -> NetworkSet:
    """Write several data sets as one.

    Parameters
    ----------
    sets : sequence of NetworkSet
        Two at least, as `load_networks` and `NetworkSet.only` return them.
    path : str or Path
        Where to.
    conflict : {"error", "first", "last"}, default="error"
        Which latency of a network on a platform is kept where several sets have it. By default it is the first, and
        latencies that differ by more than a tenth are an error.

    Returns
    -------
    NetworkSet
        What was written.

    Raises
    ------
    InvalidValueError
        If there are fewer than two, or two networks have one name.
    FileFormatError
        If latencies disagree and `conflict` is "error"; all are named.
    OutputError
        If the file cannot be written.

    Examples
    --------
    >>> old, new = load_networks("xeon.zip"), load_networks("epyc.zip")               # doctest: +SKIP
    >>> merge_networks([old.only(platform="xeon.torch.fp32.t1"), new], "both.zip")    # doctest: +SKIP
    """
    if len(sets) < 2:
        raise InvalidValueError(f"At least two data sets can be merged. Got {len(sets)}.")
    if conflict == "error":
        check_agreement([entry for networks in sets for entry in networks], "the data sets")
    content, known = Content(), set[tuple[str, int, str]]()
    for networks in sets if conflict != "last" else reversed(sets):
        places: dict[int, int] = {}
        runs, here = networks.runs, set[tuple[str, int, str]]()
        for entry in networks:
            key = entry.graph_key, entry.batch_size, entry.platform.id
            if key in known:
                continue
            here.add(key)
            if entry.run not in places:
                places[entry.run] = len(content.runs)
                content.runs.append(runs[entry.run].model_dump(mode="json"))
            _take(content, networks, entry)
            content.add(places[entry.run], entry.name, entry.platform, entry, entry.parts)
        known |= here
    return content.save(path)


def _take(content: Content, networks: NetworkSet, entry: NetworkEntry) -> None:
    """Take in the network of a latency, if it is not there yet."""
    there = content.networks.get(entry.name)
    if there is None:
        about = {"family": entry.family, "batch_size": entry.batch_size, "seed": entry.seed, "stage": entry.stage}
        content.take(entry.name, entry.graph_key, entry.graph, networks.onnx(entry.name), **about)
    elif there["graph"] != entry.graph_key:
        raise InvalidValueError(
            f"Two networks have the name {entry.name!r}. Measure one of them again under another name."
        )
