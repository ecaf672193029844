# SPDX-License-Identifier: Apache-2.0
"""What the client says of a service that answers something else than it must."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading

import pytest
from nni_latency_service.query import Answer, LatencyClient, ServiceError

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec

_KEY = OpSpec.of("relu", [(1, 3)]).op_key
_PLATFORM = "board.torch.fp32.t1"


@contextlib.contextmanager
def _answering(content):
    """Run a server that answers every request with the same JSON; yield a client of it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(content).encode()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    client = LatencyClient(f"http://127.0.0.1:{server.server_port}")
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()


_CALLS = {
    "known": lambda client: client.known(_KEY, _PLATFORM),
    "query": lambda client: client.query(_KEY, _PLATFORM),
    "query_all": lambda client: client.query_all([_KEY], _PLATFORM),
    "platforms": lambda client: client.platforms(),
}


@pytest.mark.parametrize("call", list(_CALLS))
@pytest.mark.parametrize("content", [{}, [], None, 3, "text", {"results": 3, "items": 3, "answer": {}, "job": []}])
def test_client_says_that_an_answer_is_not_that_of_a_service(call, content):
    with _answering(content) as client, pytest.raises(ServiceError, match=r"is no service of nni_latency, or one of"):
        _CALLS[call](client)


@pytest.mark.parametrize(
    ("content", "lacking"),
    [
        ({"results": []}, "0 results for 1 question"),
        ({"results": [{}]}, "no 'job'"),
        ({"results": [3]}, "no object, but int"),
        ({"results": [{"job": {}}]}, "no 'id'"),
        ({"results": [{"job": {"id": "a"}}]}, "no 'state'"),
        ({"results": [{"job": {"id": "a", "state": "queued"}}]}, "no 'progress'"),
        ({"results": [{"job": {"id": "a", "state": "done"}}]}, "An answer must be an object"),
        ({"results": [{"answer": {"value": "fast"}}]}, "An answer must be an object"),
    ],
)
def test_client_names_what_an_answer_lacks(content, lacking):
    with _answering(content) as client, pytest.raises(ServiceError, match=lacking):
        client.query_all([_KEY], _PLATFORM)


@pytest.mark.parametrize("content", [{"items": [{}]}, {"items": [3]}, {"items": [], "next": "far"}])
def test_client_reads_no_list_that_is_none(content):
    with _answering(content) as client, pytest.raises(ServiceError, match="Its answer cannot be read"):
        client.platforms()


def test_measurements_end_before_more_are_asked_for(monkeypatch):
    """A service queues a limited number of measurements, and forgets those that ended long ago."""
    answer = Answer(0.002, 0.0019, 0.0021, key=_KEY, platform=_PLATFORM, source="measurement")
    paths = []

    def request(client, method, path, body=None):
        paths.append(path)
        if path != "/v1/queries":
            return {"id": path, "state": "done", "progress": 1.0, "answer": answer.content()}
        return {"results": [{"job": {"id": "a", "state": "queued", "progress": 0.0}} for _ in body["questions"]]}

    monkeypatch.setattr(LatencyClient, "_request", request)
    monkeypatch.setattr("nni_latency_service.query._client.BULK", 2)
    assert LatencyClient("http://127.0.0.1:1").query_all([_KEY] * 3, _PLATFORM) == [answer] * 3
    assert paths == ["/v1/queries", "/v1/jobs/a", "/v1/jobs/a", "/v1/queries", "/v1/jobs/a"]


@pytest.mark.parametrize("key", ["a key\nX-Other: 1", "Schl\u00fcssel", "\u041a\u043b\u044e\u0447"])
def test_a_key_that_no_service_made_is_refused_and_not_shown(key):
    with pytest.raises(InvalidValueError, match=r"An API key must be printable ASCII characters") as refused:
        LatencyClient("http://127.0.0.1:1", key)
    assert key not in str(refused.value)


def test_a_key_of_a_file_may_end_its_line():
    with pytest.raises(ServiceError, match="does not answer: Connection refused"):
        LatencyClient("http://127.0.0.1:1", "nnil_key\n").health()


@pytest.mark.parametrize("call", ["health", "job"])
def test_client_takes_an_object_alone(call):
    with _answering([]) as client, pytest.raises(ServiceError, match="no object, but list"):
        client.health() if call == "health" else client.job("a")
