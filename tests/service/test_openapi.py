# SPDX-License-Identifier: Apache-2.0
"""The service keeps to its OpenAPI document, and refuses what the document does not allow."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from fake_machines import machines
from listening_service import listening
from nni_latency_service import LatencyService, ServiceLimits
from nni_latency_service.query import LatencyQuery

from nni_latency.database import DatabaseStore

#: Requests of every operation, of each kind that schemathesis makes.
EXAMPLES = 10


def _parts(item: Any) -> Iterator[dict[str, Any]]:
    if isinstance(item, dict):
        yield item
    for value in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        yield from _parts(value)


def test_what_the_document_refers_to_is_in_it(url):
    document = json.load(urllib.request.urlopen(f"{url}/openapi.json"))
    references = {part["$ref"] for part in _parts(document) if "$ref" in part}
    assert references == {"#/components/schemas/Refusal"}
    assert set(document["components"]["schemas"]) == {"Refusal"}
    bodies = {
        path: list(item["post"]["requestBody"]["content"].items())
        for path, item in document["paths"].items()
        if "post" in item
    }
    assert [kind for kind, _ in bodies["/v1/networks"]] == ["application/octet-stream"]
    ((_, bulk),) = bodies["/v1/queries"]
    assert set(bulk["schema"]["properties"]["questions"]["items"]["properties"]) == {"key", "onnx", "name"}


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/v1/query", "GET", "POST"),
        ("/v1/jobs/none", "POST", "DELETE, GET"),
        ("/v1/jobs", "DELETE", "GET"),
        ("/openapi.json", "POST", "GET, HEAD"),
        ("/", "PUT", "GET"),
    ],
)
def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(url, path, method, allowed):
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        urllib.request.urlopen(urllib.request.Request(f"{url}{path}", method=method))
    assert refused.value.headers["Allow"] == allowed
    assert json.load(refused.value) == {"error": "The method is not allowed here.", "status": 405}


@pytest.mark.slow
def test_every_answer_is_as_the_document_says(tmp_path, predictor):
    pytest.importorskip("schemathesis")
    limits = ServiceLimits(rate=1e9, burst=1e9, uploads=1e9)
    store = DatabaseStore(tmp_path / "m.sqlite")
    query = LatencyQuery(store, machines=machines()[0], predictors={"graph": predictor})
    service = LatencyService(query, limits=limits)
    # A schema cannot say which texts are keys of operators, so that some that it allows are refused.
    options = ["--checks=all", "--exclude-checks=positive_data_acceptance", "--seed=1", f"--max-examples={EXAMPLES}"]
    command = [sys.executable, "-m", "schemathesis.cli", "run", *options, "--generation-database=none", "--no-color"]
    with listening(service) as url:
        document = json.load(urllib.request.urlopen(f"{url}/openapi.json"))
        done = subprocess.run([*command, f"{url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True)
    service.close()
    store.close()
    assert done.returncode == 0, done.stdout
    operations = sum(map(len, document["paths"].values()))
    assert f"Tested: {operations}\n" in done.stdout
