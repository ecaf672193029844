# SPDX-License-Identifier: Apache-2.0
"""A service that really listens, with a machine without a clock of its own."""

from __future__ import annotations

import pytest
from fake_machines import machines
from listening_service import listening
from measured_graphs import fitted
from nni_latency_service import LatencyService
from nni_latency_service.query import LatencyQuery

from nni_latency.database import DatabaseStore


@pytest.fixture(scope="session")
def predictor():
    return fitted(3)


@pytest.fixture(scope="module")
def service(tmp_path_factory, predictor):
    store = DatabaseStore(str(tmp_path_factory.mktemp("service") / "m.sqlite"))
    made = LatencyService(LatencyQuery(store, machines=machines()[0], predictors={"graph": predictor}))
    yield made
    made.close()
    store.close()


@pytest.fixture(scope="module")
def url(service):
    with listening(service) as found:
        yield found
