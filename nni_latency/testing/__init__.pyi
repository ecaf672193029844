# SPDX-License-Identifier: Apache-2.0
from ._connection_contract import check_connection
from ._contracts import check_estimator, check_plugin, check_runtime
from ._device import FakeDevice, FakeMeter
from ._engine_contracts import check_bench, check_meter, check_schedule
from ._runtime import FakeClock, FakeModule, FakeRuntime, fake_plan
from ._store_contract import check_store

__all__ = [
    "FakeClock",
    "FakeDevice",
    "FakeMeter",
    "FakeModule",
    "FakeRuntime",
    "check_bench",
    "check_connection",
    "check_estimator",
    "check_meter",
    "check_plugin",
    "check_runtime",
    "check_schedule",
    "check_store",
    "fake_plan",
]
