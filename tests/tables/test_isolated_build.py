# SPDX-License-Identifier: Apache-2.0
"""A build on a real runtime, in a worker process, with candidates that do not survive."""

from __future__ import annotations

import pytest
from building import Stopped
from crashing import Crashing, Raising, plan_of

from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.tables import LookupTable, build_table

_PROTOCOL = Protocol(rounds=4, time_budget=1e9)
_CRASHED = {"crash": "its process crashed (SIGSEGV)"}
_RAISED = {"raise": "NotImplementedError: no kernel for this"}


def _stop(progress):
    if progress.rounds == 2:
        raise Stopped("stopped")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build a table whose candidates crash and raise, stop in the middle, and go on."""
    path = tmp_path_factory.mktemp("isolated") / "t.json"
    plan = plan_of(b={"crash": Crashing}, c={"raise": Raising})
    runtime, store = TorchEager(), MemoryStore()
    with pytest.raises(Stopped, match=r"stopped"):
        build_table(plan, runtime, _PROTOCOL, path, store=store, on_progress=_stop)
    (campaign,) = store.campaigns()
    # They would be found out again, had they got any better.
    better = plan_of(b={"crash": plan.layers[1].candidates["k1"].build}, c={"raise": Raising})
    seen = []
    table = build_table(better, runtime, _PROTOCOL, path, store=store, on_progress=seen.append)
    return path, table, campaign, seen


@pytest.mark.slow
def test_candidates_that_crash_or_raise_leave_all_others(built):
    _, table, _, _ = built
    assert [list(layer.entries) for layer in table.layers] == [["k1", "k3"]] * 3
    assert all(0 < entry.value < 1 for layer in table.layers for entry in layer.entries.values())


@pytest.mark.slow
def test_candidates_that_crash_or_raise_are_listed_with_the_reason(built):
    _, table, _, _ = built
    assert [dict(layer.failures) for layer in table.layers] == [{}, _CRASHED, _RAISED]
    assert (table.coverage, table.missing) == (6 / 8, (("b", "crash"), ("c", "raise")))


@pytest.mark.slow
def test_failures_are_saved_with_the_table(built):
    path, table, _, _ = built
    assert LookupTable.load(path) == table


def test_failures_are_in_the_store_with_their_reasons(built):
    campaign = built[2]
    assert [failure.subject for failure in campaign.failures] == ["b/crash", "c/raise"]
    assert len({record.round for record in campaign.records}) == 2


def test_resumed_build_goes_on_without_the_candidate_that_crashed(built):
    _, table, _, seen = built
    assert [progress.resumed for progress in seen] == [2, 2]
    assert table.rounds == 4
