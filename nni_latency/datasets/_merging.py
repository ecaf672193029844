"""Several data sets as one, such as those of two devices, or of two days."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nni_latency.datasets._archive import Part
from nni_latency.datasets._content import Content
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet, check_agreement
from nni_latency.errors import InvalidValueError
from nni_latency.tables import CONFLICTS, Conflict

#: Networks that two sets share at least, so that they tell how fast a machine was.
_FEWEST_SHARED = 10

#: The graph of a network, its batch size, the platform, and which of the equal networks of a set it is.
_Key = tuple[str, int, str, int]


@dataclass(frozen=True)
class _Found:
    """What one set says of a network on a platform."""

    networks: NetworkSet
    entry: NetworkEntry
    #: How many times as long its kernels take as the set says.
    factor: float = 1.0

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its kernels, which are read when they are asked for."""
        return tuple((numbers, seconds * self.factor) for numbers, seconds in self.entry.parts)

    def scaled(self, factor: float) -> _Found:
        """Return it on a machine that takes so many times as long."""
        entry = self.entry
        changed = replace(entry, value=entry.value * factor, low=entry.low * factor, high=entry.high * factor)
        return replace(self, entry=changed, factor=self.factor * factor)


def merge_networks(
    sets: Sequence[NetworkSet], path: str | Path, *, conflict: Conflict = "error", align_speed: bool = False
) -> NetworkSet:
    """Write several data sets as one.

    A machine is not as fast on every day. With `align_speed`, what a set says of a platform is brought to the speed of
    the sets before it: divided by the median ratio of the latencies that they share.

    Parameters
    ----------
    sets : sequence of NetworkSet
        Two at least, as `load_networks` and `NetworkSet.only` return them.
    path : str or Path
        Where to.
    conflict : {"error", "first", "last", "mean"}, default="error"
        Which latency of a network on a platform is kept where several sets have it. By default it is the first, and
        latencies that differ by more than a tenth are an error. The mean is geometric, weighted by the intervals; times
        of kernels are those of the last set that has them.
    align_speed : bool, default=False
        Whether sets of one platform are brought to one speed.

    Returns
    -------
    NetworkSet
        What was written.

    Raises
    ------
    InvalidValueError
        If there are fewer than two, `conflict` is another one, two networks have one name, or speeds are to be aligned
        and two sets of a platform share fewer than ten networks.
    FileFormatError
        If latencies disagree and `conflict` is "error"; all are named.
    OutputError
        If the file cannot be written.

    Examples
    --------
    >>> old, new = load_networks("xeon.zip"), load_networks("epyc.zip")               # doctest: +SKIP
    >>> merge_networks([old.only(platform="xeon.torch.fp32.t1"), new], "both.zip")    # doctest: +SKIP
    """
    if conflict not in CONFLICTS:
        raise InvalidValueError(
            f"The 'conflict' of merge_networks must be one of {', '.join(CONFLICTS)}. Got {conflict!r}."
        )
    if len(sets) < 2:
        raise InvalidValueError(f"At least two data sets can be merged. Got {len(sets)}.")
    found = _together(sets, align_speed=align_speed)
    if conflict == "error":
        check_agreement([item.entry for items in found.values() for item in items], "the data sets")
    content, places = Content(), dict[tuple[int, int], int]()
    for items in found.values():
        item = _CHOICES[conflict](items)
        place = id(item.networks), item.entry.run
        if place not in places:
            places[place] = len(content.runs)
            content.runs.append(item.networks.runs[item.entry.run].model_dump(mode="json"))
        _take(content, item.networks, item.entry)
        content.add(places[place], item.entry.name, item.entry.platform, item.entry, item.parts)
    return content.save(path)


def _together(sets: Sequence[NetworkSet], *, align_speed: bool) -> dict[_Key, list[_Found]]:
    """Return what the sets say of every network on every platform, in the order of the sets."""
    found: dict[_Key, list[_Found]] = defaultdict(list)
    for networks in sets:
        slowness: dict[str, float] = {}
        if align_speed:
            platforms = dict.fromkeys(entry.platform.id for entry in networks)
            slowness = {name: _slowness(found, networks, name) for name in platforms}
        times: Counter[_Key] = Counter()
        for entry in networks:
            key = _key(entry)
            item = _Found(networks, entry).scaled(1 / slowness.get(entry.platform.id, 1.0))
            found[_key(entry, times[key])].append(item)
            times[key] += 1
    return found


def _slowness(found: dict[_Key, list[_Found]], networks: NetworkSet, platform: str) -> float:
    """Return how many times as long networks take in a set, on one platform, as in the sets before."""
    if not any(name == platform for _, _, name, _ in found):
        return 1.0
    here = [entry for entry in networks if entry.platform.id == platform]
    ratios = [entry.value / found[_key(entry)][0].entry.value for entry in here if _key(entry) in found]
    if len(ratios) < _FEWEST_SHARED:
        raise InvalidValueError(
            f"Speeds can be aligned by {_FEWEST_SHARED} networks that data sets share. Those of {platform} share "
            f"{len(ratios)}. Measure more of the same networks, or merge without aligning."
        )
    return float(np.median(ratios))


def _mean(items: Sequence[_Found]) -> _Found:
    """Return the mean of what several sets say, at the place of the last one whose kernels are known."""
    if len(items) == 1:
        return items[0]
    entries = [item.entry for item in items]
    last = next((item for item in reversed(items) if item.entry.parts), items[-1])
    weights = np.array([_weight(entry) for entry in entries])
    value = math.exp(np.average(np.log([entry.value for entry in entries]), weights=weights))
    half = 1 / math.sqrt(weights.sum())
    visits = [max(1, entry.n_visits) for entry in entries]
    scaled = last.scaled(value / last.entry.value)
    mean = replace(
        scaled.entry,
        low=value * math.exp(-half),
        high=value * math.exp(half),
        n_samples=sum(entry.n_samples for entry in entries),
        n_visits=sum(entry.n_visits for entry in entries),
        repeatability=math.sqrt(np.average([entry.repeatability**2 for entry in entries], weights=visits)),
    )
    return replace(scaled, entry=mean)


def _weight(entry: NetworkEntry) -> float:
    """Return one by the square of half the width of an interval, as a share; a thousandth at least is not known."""
    return max(1e-3, math.log(entry.high / entry.low) / 2) ** -2


_CHOICES: dict[Conflict, Callable[[Sequence[_Found]], _Found]] = {
    "error": lambda items: items[0],
    "first": lambda items: items[0],
    "last": lambda items: items[-1],
    "mean": _mean,
}


def _key(entry: NetworkEntry, number: int = 0) -> _Key:
    return entry.graph_key, entry.batch_size, entry.platform.id, number


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
