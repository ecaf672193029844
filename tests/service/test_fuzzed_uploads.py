# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent, the service answers with JSON of one sentence and goes on."""

from __future__ import annotations

import http.client
import json
import random

import onnx
import pytest
from fake_machines import HERE, machines, onnx_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listening_service import listening
from measured_graphs import FAST
from nni_latency_service import LatencyService, ServiceLimits
from nni_latency_service.query import LatencyQuery

from nni_latency.measurement import MemoryStore

#: How many files are sent: some eighty of each kind.
FILES = 400


def mutated(seed):
    """Return an ONNX file that something was done to."""
    draw = random.Random(seed)
    content = bytearray(onnx_bytes(draw.choice((2, 4, 8))))
    kind = draw.randrange(5)
    if kind == 0:
        for _ in range(draw.randint(1, 20)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif kind == 1:
        del content[draw.randrange(len(content)) :]
    elif kind == 2:
        begin = draw.randrange(len(content))
        content[begin:begin] = draw.randbytes(draw.randint(1, 200))
    elif kind == 3:
        content = bytearray(draw.randbytes(draw.randint(0, 4000)))
    else:
        return _broken_model(draw, bytes(content))
    return bytes(content)


def _broken_model(draw, content):
    """Return a file that can be parsed and makes no sense."""
    model = onnx.load_from_string(content)
    graph = model.graph
    for _ in range(draw.randint(1, 4)):
        node = draw.choice(graph.node)
        change = draw.randrange(9)
        if change == 0:
            node.op_type = draw.choice(("Loop", "If", "Nothing", "Reshape", "Conv", "", "Einsum", "Range", "Tile"))
        elif change == 1 and node.input:
            del node.input[draw.randrange(len(node.input))]
        elif change == 2:
            node.input.append(draw.choice(node.output or [""]))
        elif change == 3 and graph.initializer:
            tensor = draw.choice(graph.initializer)
            tensor.dims.append(draw.choice((0, -1, 2**31, 2**62)))
        elif change == 4:
            dims = graph.input[0].type.tensor_type.shape.dim
            draw.choice(dims).dim_value = draw.choice((0, -5, 2**20, 2**62))
        elif change == 5:
            for item in node.attribute:
                item.ints.append(draw.choice((0, -1, 2**40)))
        elif change == 6:
            node.domain = draw.choice(("ai.onnx.ml", "evil", "../.."))
        elif change == 7 and model.opset_import:
            model.opset_import[0].version = draw.choice((0, 1, 7, 10**6))
        else:
            graph.node.append(node)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def address(predictor):
    """Run a service that lets everybody send as much as they want."""
    limits = ServiceLimits(rate=1e6, burst=1e6, uploads=1e6, queue=10**6, read_time=60.0)
    query = LatencyQuery(MemoryStore(), machines=machines()[0], predictors={"graph": predictor})
    service = LatencyService(query, limits)
    with listening(service) as url:
        yield url.removeprefix("http://")


def send(connection, method, path, body, kind):
    """Send a request, and hold the answer to what every answer must be."""
    connection.request(method, path, body, {"Content-Type": kind})
    response = connection.getresponse()
    content = json.loads(response.read())
    assert response.status in (200, 202, 400, 404, 405, 413, 415, 422), (response.status, content)
    if response.status >= 400:
        assert set(content) == {"error", "status"}
        assert "Traceback" not in content["error"]
        assert "\n" not in content["error"]
        assert "/tmp" not in content["error"]
    return response.status, content


@pytest.mark.slow
def test_mutated_networks_do_no_harm(address):
    connection = http.client.HTTPConnection(address, timeout=120)
    read = 0
    for seed in range(FILES):
        status, found = send(
            connection, "POST", f"/v1/networks?name=net{seed}.onnx", mutated(seed), "application/octet-stream"
        )
        if status == 200:
            read += 1
            send(connection, "POST", "/v1/compare", json.dumps({"key": found["key"]}), "application/json")
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read())["status"] == "ok"
    connection.close()
    # Some must get through, or nothing but the first check was tried.
    assert 0 < read < FILES


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = {
    "key": st.sampled_from(["relu()@1x8:float32", "0" * 32, "relu_block(CIN=8,HW=9)", "x.onnx"]) | st.text() | _JSON,
    "platform": st.sampled_from([HERE.id, FAST.id]) | st.text() | _JSON,
    "measure": st.sampled_from(["never", "if-unsure", "always"]) | _JSON,
    "within": st.floats() | _JSON,
    "onnx": st.text() | st.binary(max_size=30).map(lambda data: data.hex()) | _JSON,
    "questions": st.lists(_JSON, max_size=3),
}


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(["/v1/query", "/v1/queries", "/v1/compare", "/v1/networks"]),
    body=st.fixed_dictionaries({}, optional=_FIELDS) | _JSON,
)
def test_requests_of_any_form_do_no_harm(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=120)
    send(connection, "POST", path, json.dumps(body).encode("utf-8", "surrogatepass"), "application/json")
    connection.close()


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(["latency", "operators", "records", "jobs", "platforms", "predictors", "jobs/x/events"]),
    words=st.dictionaries(
        st.sampled_from(["key", "platform", "limit", "offset", "after", "most"]), st.text(max_size=30), max_size=4
    ),
)
def test_addresses_of_any_form_do_no_harm(address, path, words):
    from urllib.parse import urlencode

    connection = http.client.HTTPConnection(address, timeout=120)
    query = urlencode({name: value.encode("utf-8", "replace") for name, value in words.items()})
    send(connection, "GET", f"/v1/{path}?{query}", None, "text/plain")
    connection.close()
