# SPDX-License-Identifier: Apache-2.0
"""How much is about to be sent to a device, estimated from a few of the networks."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nni_latency.measurement import Chain, Subject
from nni_latency.operators import Inputs, OnnxNetwork
from nni_latency.units import format_bytes, number_of

#: Subjects of a kind that are built for an estimate, and the time after which no other is [s].
_MOST, _LONGEST = 5, 0.3

#: What a network takes when it is sent compressed, and each of its modules [byte].
_NETWORK, _MODULE = 600, 50

#: Numbers from which on weights and inputs are drawn on the device: those of `OnnxNetwork.weights` and `DevicePlace`.
_LARGE_WEIGHT, _LARGE_INPUT = 256, 4096


class Size(NamedTuple):
    """What a subject takes when it is sent, and what its own inputs take [byte]."""

    network: float
    inputs: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """What is about to be sent to a device. Immutable.

    Parameters
    ----------
    networks : int
        Networks that are sent.
    once : float
        What these and the reference operator take, as often as they are sent [byte].
    by_round : float
        What every round takes at most: requests, and networks that are joined for it [byte].
    """

    networks: int
    once: float
    by_round: float

    def sentence(self, where: str, note: str) -> str:
        """Say it in one line, with a note on what is sent."""
        once, by_round = (format_bytes(float(f"{size:.2g}")) for size in (self.once, self.by_round))
        more = f" and at most {by_round} a round" if self.by_round else ""
        return f"Sending {number_of(self.networks, 'network')} to {where}: about {once}{more} ({note})"


def forecast(
    sessions: Iterable[Sequence[Chain]],
    reference: Subject,
    size_of: Callable[[Subject, Any], Size],
    *,
    joins: bool,
    request: float,
) -> Forecast:
    """Estimate what is sent for networks, from a few subjects of each kind.

    Candidates are sent once; networks, kernels and operators in every session.

    Parameters
    ----------
    sessions : iterable of sequence of tuple of Subject
        The networks of every session.
    reference : Subject
        What runs before every visit, and is sent as often as there are sessions.
    size_of : callable
        Returns the size of a subject, given what it builds.
    joins : bool
        Whether the parts of a network are sent as one network as well.
    request : float
        What it takes to ask for a network [byte].
    """
    rounds = list(sessions)
    sent = {
        _sending(subject, number): subject
        for number, chains in enumerate(rounds)
        for chain in chains
        for subject in chain
    }
    kinds: dict[str, list[Subject]] = defaultdict(list)
    for subject in sent.values():
        kinds[subject.kind].append(subject)
    means = {kind: _mean_size(members, size_of) for kind, members in kinds.items()}
    once = sum(sum(means[subject.kind]) for subject in sent.values())
    once += len(rounds) * sum(_mean_size([reference], size_of))
    networks = {_sending(subject) for subject in sent.values() if sum(means[subject.kind]) > 0}

    def size_of_round(chains: Sequence[Chain]) -> float:
        parts = [[means[subject.kind].network for subject in chain] for chain in chains]
        joined = sum(sum(sizes) for sizes in parts if joins and sum(size > 0 for size in sizes) > 1)
        return joined + request * len(chains)

    return Forecast(len(networks), once, max(map(size_of_round, rounds), default=0.0))


def _sending(subject: Subject, session: int = 0) -> Any:
    """Return what is the same where a subject is sent once: candidates that compute the same are kept."""
    is_kept = subject.kind == "candidate" and subject.digest
    return (subject.digest, subject.inputs) if is_kept else (subject.key, session)


def _mean_size(subjects: Sequence[Subject], size_of: Callable[[Subject, Any], Size]) -> Size:
    found: list[Size] = []
    limit = time.monotonic() + _LONGEST
    for subject in subjects[:: -(-len(subjects) // _MOST)]:
        # What cannot be built fails when it is measured. Random numbers are those of a run without an estimate.
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
            found.append(size_of(subject, subject.build()))
        if time.monotonic() > limit:
            break
    return Size(*(sum(column) / len(found) for column in zip(*found, strict=True))) if found else Size(0.0)


def size_without_weights(subject: Subject, built: Any) -> Size:
    """Return the size of a subject whose large weights are drawn on the device."""
    if getattr(built, "native", False):
        return Size(0.0)
    if isinstance(built, OnnxNetwork):
        drawn = built.weights()
        network = len(built.serialised()) - sum(values.nbytes for values in drawn)
        return Size(network, _inputs_of(subject.inputs, exact=not drawn))
    weights = list(_weights_of(built))
    small = 4 * sum(size for size in weights if size < _LARGE_WEIGHT)
    leaves = sum(1 for module in built.modules() if not any(module.children()))
    is_exact = all(size < _LARGE_WEIGHT for size in weights)
    return Size(_NETWORK + _MODULE * leaves + small, _inputs_of(subject.inputs, exact=is_exact))


def size_with_weights(subject: Subject, built: Any, weigh: Callable[[float], float], beside: float) -> Size:
    """Return the size of a subject with its weights; inputs are made on the device.

    Parameters
    ----------
    subject, built
        The subject, and what it builds.
    weigh : callable
        Returns what the numbers of a large weight take, given their size [byte].
    beside : float
        What is sent beside every network [byte].
    """
    network = size_without_weights(subject, built).network
    if not network:
        return Size(0.0)
    weights = built.weights() if isinstance(built, OnnxNetwork) else []
    sizes = [values.nbytes for values in weights] or [4 * size for size in _weights_of(built) if size >= _LARGE_WEIGHT]
    return Size(network + sum(map(weigh, sizes)) + beside)


def _weights_of(built: Any) -> Iterator[int]:
    """Yield how many numbers the weights of a module have; those of normalisations become part of others."""
    if not isinstance(built, torch.nn.Module):
        return
    for name, values in built.named_parameters():
        if values.dim() > 1 or name.rpartition(".")[2] == "bias":
            yield values.numel()


def _inputs_of(inputs: Any, *, exact: bool) -> float:
    """Return what inputs take that are sent; where results are compared, all of them."""
    tensors = inputs.tensors if isinstance(inputs, Inputs) else (torch.empty(inputs, device="meta"),)
    return float(
        sum(
            values.nbytes
            for values in tensors
            if exact or values.dtype != torch.float32 or values.numel() < _LARGE_INPUT
        )
    )
