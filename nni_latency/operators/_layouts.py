"""Where a runtime brings results into another memory layout."""

from __future__ import annotations

from collections.abc import Sequence

from nni_latency.operators._fusion_rules import FusionRules
from nni_latency.operators._trace import TracedOperator


def layout_changes(
    traced: Sequence[TracedOperator], kernels: Sequence[tuple[int, ...]], rules: FusionRules
) -> dict[int, list[tuple[int, ...]]]:
    """Say which results a runtime brings into another memory layout, once for every layout that they are taken in.

    Parameters
    ----------
    traced : sequence of TracedOperator
        A network.
    kernels : sequence of tuple of int
        Numbers of the operators of every kernel, in the order in which they run.
    rules : FusionRules
        Which operators work in which layout.

    Returns
    -------
    dict of int to list of tuple of int
        By the first operator of the kernel that takes them, shapes of results.
    """
    layouts: dict[int, bool | None] = {}
    found: dict[int, list[tuple[int, ...]]] = {}
    done: set[tuple[int, bool]] = set()
    for kernel in kernels:
        taken = [
            (source, shape)
            for number in kernel
            for source, shape in zip(traced[number].sources, traced[number].op.input_shapes, strict=False)
            if source not in kernel
        ]
        layout = rules.layout_of([traced[number].op for number in kernel], _shared([layouts[at] for at, _ in taken]))
        layouts |= dict.fromkeys(kernel, layout)
        for source, shape in taken:
            if None not in (layouts[source], layout) and layouts[source] is not layout and (source, layout) not in done:
                done.add((source, bool(layout)))
                found.setdefault(kernel[0], []).append(shape)
    return found


def _shared(layouts: Sequence[bool | None]) -> bool | None:
    """Return the layout in which several results are taken: the plain one unless all are in that of convolutions."""
    if False in layouts:
        return False
    return True if True in layouts else None
