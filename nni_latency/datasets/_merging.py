# SPDX-License-Identifier: Apache-2.0
"""Merging of several data sets, such as those of two devices or two days."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nni_latency.datasets._archive import Part
from nni_latency.datasets._content import Content
from nni_latency.datasets._network_set import NetworkEntry, NetworkSet, check_agreement
from nni_latency.errors import InvalidValueError
from nni_latency.tables import CONFLICTS, Conflict
from nni_latency.units import number_of

#: Minimum number of networks that two sets must share to align their speeds.
_FEWEST_SHARED = 10

#: Graph key, batch size, platform, and index among the equal networks of a set.
_Key = tuple[str, int, str, int]

#: Platform, batch size, and name of an anchor.
_Anchor = tuple[str, int, str]


@dataclass(frozen=True)
class _Found:
    """Entry of one set for a network on a platform."""

    networks: NetworkSet
    entry: NetworkEntry
    #: Factor applied to the kernel times of the set.
    factor: float = 1.0

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its kernels, read on demand."""
        return tuple((numbers, seconds * self.factor) for numbers, seconds in self.entry.parts)

    def scaled(self, factor: float) -> _Found:
        """Return the entry with all times multiplied by a factor."""
        entry = self.entry
        changed = replace(entry, value=entry.value * factor, low=entry.low * factor, high=entry.high * factor)
        return replace(self, entry=changed, factor=self.factor * factor)


def merge_networks(
    sets: Sequence[NetworkSet], path: str | Path, *, conflict: Conflict = "error", align_speed: bool = False
) -> NetworkSet:
    """Merge several data sets into one file.

    The speed of a machine varies between days. With `align_speed`, the latencies of a set on a platform are normalised
    to the speed of the sets before it: divided by the median ratio of the latencies that they share, or of those of
    their anchors if they share fewer than ten.

    Parameters
    ----------
    sets : sequence of NetworkSet
        At least two, as returned by `load_networks` and `NetworkSet.only`.
    path : str or Path
        Path of the file.
    conflict : {"error", "first", "last", "mean"}, default="error"
        Which latency of a network on a platform to keep if several sets have it. The default keeps the first and raises
        if latencies differ by more than 10 %. The mean is geometric and weighted by the intervals; kernel times are
        those of the last set that has them.
    align_speed : bool, default=False
        Whether to normalise the sets of a platform to a common speed.

    Returns
    -------
    NetworkSet
        The merged data set.

    Raises
    ------
    InvalidValueError
        If there are fewer than two sets, `conflict` is invalid, two networks share a name, or `align_speed` is set and
        two sets of a platform share neither ten networks nor anchors.
    FileFormatError
        If latencies disagree and `conflict` is "error"; all are listed.
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
    """Return the entries of every network on every platform, in the order of the sets."""
    found: dict[_Key, list[_Found]] = defaultdict(list)
    anchors: dict[_Anchor, float] = {}
    for networks in sets:
        here = _anchors(networks)
        slowness: dict[str, float] = {}
        if align_speed:
            platforms = dict.fromkeys(entry.platform.id for entry in networks)
            slowness = {name: _slowness(found, networks, name, _ratios(here, anchors, name)) for name in platforms}
        times: Counter[_Key] = Counter()
        for entry in networks:
            key = _key(entry)
            item = _Found(networks, entry).scaled(1 / slowness.get(entry.platform.id, 1.0))
            found[_key(entry, times[key])].append(item)
            times[key] += 1
        for place, seconds in here.items():
            anchors.setdefault(place, seconds / slowness.get(place[0], 1.0))
    return found


def _anchors(networks: NetworkSet) -> dict[_Anchor, float]:
    """Return the latencies of the anchors of a set [s]."""
    return {
        (run.platform.id, run.batch_size, name): seconds
        for run in networks.runs
        for name, seconds in run.anchors.items()
    }


def _ratios(here: Mapping[_Anchor, float], before: Mapping[_Anchor, float], platform: str) -> list[float]:
    """Return the latencies of the anchors of a platform relative to those of earlier sets."""
    return [seconds / before[place] for place, seconds in here.items() if place[0] == platform and place in before]


def _slowness(
    found: Mapping[_Key, Sequence[_Found]], networks: NetworkSet, platform: str, anchors: Sequence[float]
) -> float:
    """Return the slowdown of a set on one platform relative to the sets before it."""
    if not any(name == platform for _, _, name, _ in found):
        return 1.0
    here = [entry for entry in networks if entry.platform.id == platform]
    ratios = [entry.value / found[_key(entry)][0].entry.value for entry in here if _key(entry) in found]
    if len(ratios) < _FEWEST_SHARED and not anchors:
        raise InvalidValueError(
            f"Speeds can be aligned by {_FEWEST_SHARED} networks that data sets share, or by their anchors. Those of "
            f"{platform} share {number_of(len(ratios), 'network')} and no anchor. Measure more of the same networks, "
            "or merge without aligning."
        )
    return float(np.median(ratios if len(ratios) >= _FEWEST_SHARED else anchors))


def _mean(items: Sequence[_Found]) -> _Found:
    """Return the mean of several entries, based on the last one with known kernels."""
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
    """Return the inverse square of the relative half-width of an interval, which is at least 0.001."""
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
    """Add the network of a latency unless it is present."""
    there = content.networks.get(entry.name)
    if there is None:
        about = {"family": entry.family, "batch_size": entry.batch_size, "seed": entry.seed, "stage": entry.stage}
        content.take(entry.name, entry.graph_key, entry.graph, networks.onnx(entry.name), **about)
    elif there["graph"] != entry.graph_key:
        raise InvalidValueError(
            f"Two networks have the name {entry.name!r}. Measure one of them again under another name."
        )
