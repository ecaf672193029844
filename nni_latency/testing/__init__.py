"""For tests of plugins: a fake clock, a fake runtime, and contract suites for everything that a plugin may bring."""

from nni_latency.testing._clock import FakeClock
from nni_latency.testing._contracts import check_estimator, check_plugin, check_runtime
from nni_latency.testing._engine_contracts import check_bench, check_meter, check_schedule
from nni_latency.testing._runtime import FakeModule, FakeRuntime, fake_plan
from nni_latency.testing._store_contract import check_store

__all__ = [
    "FakeClock",
    "FakeModule",
    "FakeRuntime",
    "check_bench",
    "check_estimator",
    "check_meter",
    "check_plugin",
    "check_runtime",
    "check_schedule",
    "check_store",
    "fake_plan",
]
