# SPDX-License-Identifier: Apache-2.0
"""Neighbours of operators in a network: the kinds whose results they read, and the kinds that read theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nni_latency.operators._feature_kinds import POINTWISE
from nni_latency.operators._op_spec import OpSpec, group_of


def is_passed(op: OpSpec) -> bool:
    """Return whether an operator is looked through: one input, and elementwise, a batch normalisation or a copy."""
    is_cheap = op.kind in ("batch_norm", "copy") or (op.kind in POINTWISE and group_of(op) == "elementwise")
    return is_cheap and len(op.input_shapes) == 1


def producer(kind: str) -> str:
    """Name the neighbour of a kind whose result is read."""
    return f"< {kind}"


def reader(kind: str) -> str:
    """Name the neighbour of a kind that reads the result."""
    return f"> {kind}"


def ways_to(
    place: int, ops: Sequence[OpSpec], sources: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the ways from a tensor back to what made it, through operators that are looked through.

    Parameters
    ----------
    place : int
        Index of the operator that returned the tensor, or a number below zero for a tensor from elsewhere.
    ops : sequence of OpSpec
        The operators.
    sources : sequence of sequence of int
        Places behind the tensors that each of them reads.

    Yields
    ------
    places : tuple of int
        Operators on the way, the last of which may be one that is not looked through.
    end : int or None
        The tensor from elsewhere at which the way ends; None if there is none.
    """
    way: list[int] = []
    left = [(0, place)]
    while left:
        length, place = left.pop()
        way[length:] = [place] if place >= 0 else []
        if place >= 0 and sources[place] and is_passed(ops[place]):
            left += [(length + 1, source) for source in reversed(sources[place])]
        else:
            yield tuple(way), place if place < 0 else None


def neighbours_of(ops: Sequence[OpSpec], sources: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    """List the neighbours of every operator of a network, one for each tensor that leads from one to the other.

    Compilers join elementwise operators and batch normalisations to what is before them. They are looked through where
    they have one input.

    Parameters
    ----------
    ops : sequence of OpSpec
        The operators.
    sources : sequence of sequence of int
        Index of the operator behind every tensor that each of them reads, one per tensor.

    Returns
    -------
    list of tuple of str
        ``< kind`` for an operator whose result is read, and ``> kind`` for one that reads the result.

    Examples
    --------
    >>> conv, relu, pool = (OpSpec.of(kind, [(1, 8, 4, 4)]) for kind in ("conv2d", "relu", "max_pool2d"))
    >>> neighbours_of([conv, relu, pool], [(), (0,), (1,)])
    [('> max_pool2d',), ('< conv2d', '> max_pool2d'), ('< conv2d',)]
    """
    found: list[list[str]] = [[] for _ in ops]
    for place, op in enumerate(ops):
        for source in sources[place]:
            for way, _ in ways_to(source, ops, sources):
                for other in way:
                    if not is_passed(ops[other]):
                        found[place].append(producer(ops[other].kind))
                    if not is_passed(op):
                        found[other].append(reader(op.kind))
    return list(map(tuple, found))
