"""The smallest FBNet space, and tables of it."""

from __future__ import annotations

import random

from nni_latency.database import open_store
from nni_latency.tables import LookupTable

#: Arguments of the space, and the same as options.
TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}
TINY_OPTIONS = ["--num-classes", "10", "--input-size", "32", "--width", "0.25", "--depth", "0.25"]


def make_table(space, *, leave_out=(), seed=0, **options):
    """Make a table of invented numbers for a space of FBNet."""
    draw = random.Random(seed)
    plan = space.measure_plan()
    latencies = {
        layer.name: {
            choice: draw.uniform(1e-4, 1e-3) for choice in layer.candidates if (layer.name, choice) not in leave_out
        }
        for layer in plan.layers
    }
    return LookupTable.from_latencies(space, latencies, **options)


def stored_rounds():
    """Count the rounds of the only campaign in the user's database."""
    (stored,) = open_store().campaigns()
    return len({record.round for record in stored.records})
