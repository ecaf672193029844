# SPDX-License-Identifier: Apache-2.0
"""What the tests of the builder share: an invented space, and builds of it that are stopped on purpose."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.tables import build_table
from nni_latency.testing import FakeRuntime, fake_plan

LATENCIES = {
    "stem": {"conv": 0.5},
    "a": {"x": 0.125, "y": 0.25, "z": 2.0},
    "b": {"x": 1.0, "y": 4.0, "z": 0.0625},
    "c": {"small": 0.03125, "large": 8.0},
}
PROTOCOL = Protocol(rounds=6, time_budget=1e9, max_measure_execution_time=1e9)


class Stopped(BaseException):
    """What Ctrl-C or a debugger raises: no `Exception`."""


class Noise:
    """Positive noise; it stops the build after a number of runs, as Ctrl-C would."""

    def __init__(self, seed=0, stop_after=None):
        self.generator = random.Random(seed)
        self.left = stop_after

    def __call__(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Stopped("stopped")
        return self.generator.expovariate(100.0)


def make_plan(**arguments):
    return fake_plan(LATENCIES, fixed=["stem"], **arguments)


#: By path of a table, the store that its builds share, so that a second build resumes the first.
_STORES = {}


def store_of(path):
    """Return the store that builds of this table share."""
    return _STORES.setdefault(str(path), MemoryStore())


def build(path, *, noise=None, protocol=PROTOCOL, platform=None, **options):
    plan, latencies = make_plan()
    runtime = FakeRuntime(latencies, noise=noise or (lambda: 0.0), platform=platform)
    return build_table(plan, runtime, protocol, path, **{"store": store_of(path), **options})


def rounds_of(path, plan=None):
    """Return the networks of every round that was measured for a table, as indices."""
    (campaign,) = store_of(path).campaigns()
    indices = {
        f"{layer.name}/{choice}": index
        for layer in (plan or make_plan()[0]).layers
        for index, choice in enumerate(layer.candidates)
    }
    return [
        [tuple(indices[key] for key in record.subjects) for record in records]
        for _, records in itertools.groupby(campaign.records, key=lambda record: record.round)
    ]


def choice_runtime(plan, latencies, troubles, **arguments):
    """Return a `FakeRuntime` on which candidates, ``{"layer:choice": function}``, do something more when they run."""
    names = {
        candidate.op.op_key: f"{layer.name}:{choice}"
        for layer in plan.layers
        for choice, candidate in layer.candidates.items()
    }

    class ChoiceRuntime(FakeRuntime):
        def prepare(self, subject, inputs):
            run, trouble = super().prepare(subject, inputs), troubles.get(names[subject.digest])

            def stage(inputs):
                if trouble is not None:
                    trouble()
                return run(inputs)

            return stage

    return ChoiceRuntime(latencies, **arguments)


def values(table):
    return {layer.name: {choice: entry.value for choice, entry in layer.entries.items()} for layer in table.layers}


def interrupt(path, *, rounds, protocol=PROTOCOL):
    """Stop a build after so many whole rounds."""

    def stop(progress):
        if progress.rounds == rounds:
            raise Stopped("stopped")

    with pytest.raises(Stopped, match=r"stopped"):
        build(path, protocol=protocol, on_progress=stop)


def same(one, other):
    """Compare tables apart from the campaign and the time that building took, which is that of the machine."""
    return _plain(one) == _plain(other)


def _plain(table):
    fields = {"duration": 0.0, "conditions": {}, "remarks": (), "campaign": ""}
    return dataclasses.replace(table, **{name: value for name, value in fields.items() if hasattr(table, name)})
