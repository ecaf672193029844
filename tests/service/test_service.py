# SPDX-License-Identifier: Apache-2.0
"""The service over a real connection: what it answers, whom it refuses, and that every refusal is one sentence."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import onnx
import pytest
from fake_machines import HERE, OnnxFake, machines, network, onnx_bytes
from farms import wait_until
from listening_service import listening
from measured_graphs import FAST, SLOW
from nni_latency_service import (
    ApiKey,
    ApiKeys,
    JobQueue,
    LatencyService,
    RateLimiter,
    ServiceLimits,
    check_binding,
    make_app,
    serve,
)
from nni_latency_service._app import _stream_events
from nni_latency_service._jobs import Job
from nni_latency_service.query import (
    LatencyClient,
    LatencyQuery,
    LocalMachines,
    Question,
    RemoteEstimator,
    ServiceError,
)

from nni_latency.database import DatabaseStore, PredictorVersion, add_predictor, take_predictor
from nni_latency.errors import BusyError, InvalidValueError, MeasurementError, MissingEntryError, OutputError
from nni_latency.loading import load_estimator
from nni_latency.measurement import MemoryStore, Progress
from nni_latency.testing import check_estimator


def _call(url, method="GET", body=None, kind="application/json", **headers):
    """Send a request; return the status and what was answered."""
    content = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    given = {**({"Content-Type": kind} if content is not None else {}), **headers}
    request = urllib.request.Request(url, content, given, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_first_measured_then_known(url):
    client = LatencyClient(url)
    module, inputs = network(5)
    shares = []
    first = client.query(module, HERE.id, example_inputs=inputs, on_progress=shares.append)
    again = client.query(module, HERE.id, example_inputs=inputs)
    assert (first.source, again.source) == ("measurement", "record")
    assert again.value == first.value
    assert client.query(again.key, HERE.id).source == "record"
    assert all(0 <= share <= 1 for share in shares)


def test_what_is_predicted_says_by_whom(url):
    answer = LatencyClient(url).query(onnx_bytes(), FAST.id, measure="never")
    assert (answer.source, answer.predictor) == ("prediction", "graph")
    with pytest.raises(
        MissingEntryError, match=r"Nothing measures on this platform\. Those that are measured on: fake"
    ):
        LatencyClient(url).query(onnx_bytes(), FAST.id, measure="always")


def test_an_uploaded_network_is_asked_about_by_its_key(url):
    status, found = _call(f"{url}/v1/networks?name=mine.onnx", "POST", onnx_bytes(6), "application/octet-stream")
    assert status == 200
    assert found["name"] == "mine.onnx"
    assert found["key"] == Question.of(onnx_bytes(6)).key
    assert found["macs"] > 0
    _, everywhere = _call(f"{url}/v1/compare", "POST", {"key": found["key"]})
    assert {FAST.id, SLOW.id} <= {answer["platform"] for answer in everywhere["answers"]}
    _, costs = _call(f"{url}/v1/operators?key={found['key']}&platform={FAST.id}&most=2")
    assert [item["share"] for item in costs["operators"]] == sorted(
        (item["share"] for item in costs["operators"]), reverse=True
    )
    status, answered = _call(f"{url}/v1/query", "POST", {"key": found["key"], "platform": HERE.id})
    assert status in (200, 202)
    assert answered["job"] or answered["answer"]


def test_sizes_that_a_file_leaves_open_are_given(url):
    model = onnx.load_from_string(onnx_bytes())
    for size in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[size].dim_param = "open"
    content = model.SerializeToString()
    status, refused = _call(f"{url}/v1/networks", "POST", content, "application/octet-stream")
    assert status == 422
    assert "are open" in refused["error"]
    status, found = _call(f"{url}/v1/networks?input=1,3,8,8", "POST", content, "application/octet-stream")
    assert (status, found["key"]) == (200, Question.of(onnx_bytes()).key)
    named = "input=input0%3D3,8,8:float32&batch_size=2"
    status, found = _call(f"{url}/v1/networks?{named}", "POST", content, "application/octet-stream")
    assert (status, found["key"]) == (200, Question.of(onnx_bytes(), batch_size=2).key)
    status, refused = _call(f"{url}/v1/networks?input=input0%3D1,4,8,8", "POST", content, "application/octet-stream")
    assert status == 422
    assert "The input 'input0' of 'network.onnx' has the shape ?x3x?x?" in refused["error"]


def test_many_questions_are_one_request(url):
    questions = [onnx_bytes(channels) for channels in (3, 4, 5)] + ["relu()@1x8x4x4:float32", "0" * 32]
    answers = LatencyClient(url).query_all(questions, HERE.id)
    assert [type(answer).__name__ for answer in answers] == ["Answer"] * 4 + ["MissingEntryError"]


def test_progress_of_a_job_is_told_as_events(url):
    content = {"key": "tanh()@1x8x4x4:float32", "platform": HERE.id, "measure": "always"}
    status, found = _call(f"{url}/v1/query", "POST", content)
    assert status == 202
    with urllib.request.urlopen(f"{url}/v1/jobs/{found['job']['id']}/events") as stream:
        text = stream.read().decode()
    assert text.rstrip().splitlines()[-2] == "event: end"
    told = json.loads(text.rstrip().splitlines()[-1].removeprefix("data: "))
    assert told["state"] == "done"
    assert told["answer"]["source"] == "measurement"


def test_lists_are_paged(url):
    client = LatencyClient(url)
    client.query("relu()@1x8x4x4:float32", HERE.id)
    client.query("sigmoid()@1x8x4x4:float32", HERE.id, measure="always")
    _, whole = _call(f"{url}/v1/records?limit=500")
    _, page = _call(f"{url}/v1/records?limit=1")
    items = list(page["items"])
    while page["next"]:
        _, page = _call(f"{url}/v1/records?limit=1&after={page['next']}")
        items += page["items"]
    assert items == whole["items"]
    assert len(items) >= 2
    _, platforms = _call(f"{url}/v1/platforms?limit=1&offset=1")
    assert (platforms["total"], len(platforms["items"])) == (3, 1)
    assert client.platforms() == sorted([HERE.id, FAST.id, SLOW.id])
    assert _call(f"{url}/v1/predictors")[1]["items"][0]["name"] == "graph"
    assert _call(f"{url}/v1/jobs?limit=1")[1]["items"][0]["state"] in ("done", "running", "queued")
    assert _call(f"{url}/v1/database")[1]["records"] > 0


def test_a_version_that_is_rolled_back_answers(tmp_path, predictor):
    store = DatabaseStore(tmp_path / "m.sqlite")
    content = predictor.save(tmp_path / "p.safetensors").read_bytes()
    version = PredictorVersion("evolving", 0, 1.7e9, "1", 20, 5, 100, {"all": 0.1}, is_current=True)
    first = add_predictor(store.database, version, content).number
    add_predictor(store.database, version, content)
    service = LatencyService(LatencyQuery(store))
    service.take_current()
    second = service.query.predictors["evolving"]
    service.take_current()
    assert service.query.predictors["evolving"] is second
    take_predictor(store.database, "evolving", first)
    service.take_current()
    assert service.query.predictors["evolving"] is not second
    assert FAST.id in service.predictors()[0]["platforms"]
    service.close()
    store.close()


def test_the_drift_of_a_platform_is_told(url):
    LatencyClient(url).query("tanh()@1x8x4x4:float32", HERE.id, measure="always")
    _, page = _call(f"{url}/v1/drift")
    assert page["total"] == 3
    (found,) = [item for item in page["items"] if item["platform"] == HERE.id]
    assert found["campaigns"] >= 1
    assert found["points"][-1]["reference"] > 0
    assert found["slower"] >= 1
    assert [item["points"] for item in page["items"] if item["platform"] != HERE.id] == [[], []]
    assert _call(f"{url}/v1/workers")[1] == {"items": [], "total": 0, "next": None}


def test_health_and_figures_are_told(url):
    assert LatencyClient(url).health()["status"] == "ok"
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    assert 'nni_latency_requests_total{status="200"}' in text
    assert 'nni_latency_answers{source="record"}' in text
    _, described = _call(f"{url}/openapi.json")
    assert {"/v1/query", "/v1/latency", "/v1/jobs/{job}/events"} <= set(described["paths"])


def _with(change, channels=4):
    model = onnx.load_from_string(onnx_bytes(channels))
    change(model)
    return model.SerializeToString()


def _external(model):
    tensor = next(item for item in model.graph.initializer if len(item.dims) == 4)
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def _giant(model):
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**18
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 2**18


def _heavy(model):
    model.graph.initializer.add(name="giant", dims=[2**20, 2**16], data_type=1)


def _within_a_branch(change):
    def changed(model):
        inner = onnx.ModelProto(graph=model.graph)
        change(inner)
        node = model.graph.node.add(op_type="If", input=["x"], output=["unused"])
        node.attribute.append(onnx.helper.make_attribute("then_branch", inner.graph))

    return changed


def _crowded(model):
    for place in range(100_001):
        model.graph.node.add(op_type="Relu", input=["x"], output=[f"y{place}"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it holds no graph"),
        (b"not a network", "is not an ONNX file that can be read"),
        (_with(_external), "weights are in other files, which the service never opens"),
        (_with(_giant), "has a tensor of"),
        (_with(_heavy), "weights, and 1073741824 are the most"),
        (_with(_within_a_branch(_external)), "weights are in other files, which the service never opens"),
        (_with(_within_a_branch(_heavy)), "weights, and 1073741824 are the most"),
        (_with(_crowded), "100000 are the most that are read"),
        (_with(lambda model: model.graph.node[0].input.append("nothing")), "takes tensors that nothing makes"),
        (b"\x0a" * 100_000, "is not an ONNX file that can be read"),
    ],
)
def test_hostile_files_are_refused_in_one_sentence(url, content, sentence):
    status, found = _call(f"{url}/v1/networks?name=../../x.onnx", "POST", content, "application/octet-stream")
    assert status == 422
    assert sentence in found["error"]
    assert "/tmp" not in found["error"]
    assert "\n" not in found["error"]


@pytest.mark.slow
def test_a_file_that_takes_too_long_or_too_much_is_refused_and_the_next_is_read():
    limits = ServiceLimits(read_time=0.001)
    service = LatencyService(LatencyQuery(MemoryStore()), limits)
    with pytest.raises(InvalidValueError, match=r"'a\.onnx' cannot be read: it did not end within"):
        service.read(onnx_bytes(), "a.onnx")
    service.reader._limits = ServiceLimits()
    assert service.read(onnx_bytes(), "a.onnx").key
    service.close()


@pytest.mark.parametrize(
    ("path", "method", "body", "kind", "status", "sentence"),
    [
        ("/v1/query", "POST", b"{}", "application/json", 422, "The field 'platform' is not valid: Field required."),
        ("/v1/query", "POST", b"{", "application/json", 422, "not valid"),
        ("/v1/query", "POST", {"platform": "x"}, "application/json", 422, "needs 'key' or 'onnx'"),
        ("/v1/query", "POST", {"platform": "x", "key": "a", "evil": 1}, "application/json", 422, "'evil'"),
        ("/v1/query", "POST", {"platform": "x", "key": "a", "within": 9}, "application/json", 422, "'within'"),
        (
            "/v1/query",
            "POST",
            {"platform": "x", "key": "/etc/passwd.onnx"},
            "application/json",
            422,
            "A key is no path",
        ),
        ("/v1/query", "POST", {"platform": "x", "onnx": "!"}, "application/json", 422, "must be a file in base64"),
        ("/v1/query", "POST", {"platform": "x", "key": "0" * 32}, "application/json", 404, "is not known"),
        ("/v1/query", "POST", b"{}", "text/plain", 415, "The content type must be 'application/json'"),
        ("/v1/networks", "POST", b"{}", "text/plain", 415, "'application/octet-stream'"),
        ("/v1/networks?input=a", "POST", b"x", "application/octet-stream", 422, "must be sizes"),
        (f"/v1/networks?input=1,{'9' * 5000}", "POST", b"x", "application/octet-stream", 422, "must be sizes"),
        (f"/v1/networks?batch_size={'9' * 5000}", "POST", b"x", "application/octet-stream", 422, "'batch_size'"),
        (f"/v1/platforms?offset={'9' * 5000}", "GET", None, "", 422, "'offset'"),
        (f"/v1/operators?key=relu(HW={'9' * 3000})&platform=x", "GET", None, "", 422, "may have 33554432 numbers"),
        (
            "/v1/query",
            "POST",
            {"platform": "x", "key": f"relu()@1x{'9' * 3900}:float32"},
            "application/json",
            422,
            "a number or a text that cannot be read",
        ),
        ("/v1/networks?batch_size=0", "POST", b"x", "application/octet-stream", 422, "'batch_size'"),
        ("/v1/queries", "POST", {"platform": "x", "questions": []}, "application/json", 422, "'questions'"),
        ("/v1/queries", "POST", {"platform": "x", "questions": [{"key": "a"}] * 257}, "application/json", 422, "256"),
        (
            "/v1/query",
            "POST",
            {"platform": "x", "key": "linear(bias=0,out_features=1000000)@1x1000000:float32"},
            "application/json",
            422,
            "may have 33554432 numbers",
        ),
        ("/v1/latency?key=a", "GET", None, "", 422, "'platform'"),
        ("/v1/latency?key=a&platform=b", "GET", None, "", 404, "No latency of 'a' on 'b' is recorded"),
        ("/v1/records?limit=100000", "GET", None, "", 422, "'limit'"),
        ("/v1/records?after=x", "GET", None, "", 422, "'after' must be what the page before gave"),
        ("/v1/jobs/none", "GET", None, "", 404, "There is no job 'none'"),
        ("/v1/jobs/none", "DELETE", None, "", 404, "There is no job 'none'"),
        ("/v1/operators?key=" + "0" * 32 + "&platform=x", "GET", None, "", 404, "Only the key of the network"),
        ("/nothing", "GET", None, "", 404, "There is nothing at '/nothing'"),
        ("/v1/query", "PUT", b"{}", "application/json", 405, "not allowed"),
    ],
)
def test_what_is_wrong_is_one_sentence(url, path, method, body, kind, status, sentence):
    found, answer = _call(f"{url}{path}", method, body, kind)
    assert found == status
    assert set(answer) == {"error", "status"}
    assert sentence in answer["error"]
    assert "\n" not in answer["error"]


def test_a_page_of_another_site_cannot_ask(url):
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("GET", "/v1/platforms", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize("name", ["a*b", "example.org:443", "https://example.org", "*.", ""])
def test_a_name_that_no_request_has_is_refused(name):
    with pytest.raises(InvalidValueError, match=r"'hosts' must be host names without a port"):
        make_app(LatencyService(LatencyQuery(MemoryStore())), hosts=["latency.example.org", "*.example.org", name])


def test_a_body_that_is_too_large_is_refused(tmp_path):
    service = LatencyService(LatencyQuery(MemoryStore()), ServiceLimits(body=1000))
    with listening(service) as url:
        status, found = _call(f"{url}/v1/networks", "POST", b"x" * 100_000, "application/octet-stream")
    assert (status, found["error"]) == (413, "A request may have 0.000953674 MiB. Send the network without weights.")


def test_who_asks_too_often_waits():
    limits = ServiceLimits(rate=0.001, burst=2, uploads=0.001)
    service = LatencyService(LatencyQuery(MemoryStore()), limits)
    with listening(service) as url:
        statuses = [_call(f"{url}/health")[0] for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_a_failure_inside_is_one_sentence_without_a_trace():
    class _Broken(MemoryStore):
        def known(self, digest, platform):
            raise RuntimeError("secret")

    with listening(LatencyService(LatencyQuery(_Broken()))) as url:
        status, found = _call(f"{url}/v1/latency?key=a&platform=b")
    assert status == 500
    assert "Its log says why" in found["error"]
    assert "secret" not in found["error"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Run a service with a key of every role."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    keys = ApiKeys([])
    texts = {role: keys.add(role, role) for role in ("read", "measure", "admin")}
    keys.save(path)
    assert path.stat().st_mode & 0o077 == 0
    assert not any(text in path.read_text() for text in texts.values())
    service = LatencyService(LatencyQuery(MemoryStore(), machines=machines()[0]))
    with listening(service, ApiKeys.load(path)) as url:
        yield url, texts


@pytest.mark.parametrize(
    ("role", "path", "status"),
    [
        (None, "/v1/platforms", 401),
        ("wrong", "/v1/platforms", 401),
        ("read", "/v1/platforms", 200),
        ("read", "/v1/database", 403),
        ("measure", "/v1/database", 403),
        ("admin", "/v1/database", 200),
        (None, "/metrics", 401),
        (None, "/health", 200),
    ],
)
def test_a_key_allows_what_its_role_says(guarded, role, path, status):
    url, texts = guarded
    headers = {} if role is None else {"Authorization": f"Bearer {texts.get(role, 'nnil_wrong')}"}
    found, answer = _call(f"{url}{path}", **headers)
    assert found == status
    assert (found == 200) == ("error" not in answer)


def test_only_who_may_measure_measures(guarded):
    url, texts = guarded
    asked = "relu()@1x8x4x4:float32"
    with pytest.raises(MissingEntryError, match=r"The API key does not allow measuring"):
        LatencyClient(url, texts["read"]).query(asked, HERE.id)
    assert LatencyClient(url, texts["measure"]).query(asked, HERE.id).source == "measurement"
    assert LatencyClient(url, texts["read"]).query(asked, HERE.id).source == "record"


def test_without_keys_it_listens_on_this_machine_alone():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_binding(host, None)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(
            InvalidValueError, match=r"Other machines reach .* Make keys with 'nni-latency serve keys add'"
        ):
            check_binding(host, ApiKeys([]))
    service = LatencyService(LatencyQuery(MemoryStore()))
    with pytest.raises(InvalidValueError, match=r"A 'port' must be from 0 to 65535\. Got 1000000"):
        serve(service, port=1_000_000)
    with pytest.raises(OutputError, match=r"Cannot listen on 'a\.\.b', port 0: "):
        serve(service, host="a..b", port=0, keys=ApiKeys([ApiKey("me", "admin", "0" * 64)]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = rf"Cannot listen on '127\.0\.0\.1', port {port}: Address already in use"
        for host in ("127.0.0.1", "[127.0.0.1]"):
            with pytest.raises(OutputError, match=in_use):
                serve(service, host=host, port=port)


@pytest.mark.slow
def test_measurements_that_fail_say_why(tmp_path):
    service = LatencyService(LatencyQuery(MemoryStore(), machines=machines(broken=True)[0]))
    with listening(service) as url, pytest.raises(MeasurementError, match=r"cannot be measured .*: the device burns"):
        LatencyClient(url).query(onnx_bytes(), HERE.id)


def test_two_that_ask_at_once_share_a_job_and_a_full_queue_refuses():
    free = threading.Event()

    class _Slow(OnnxFake):
        def prepare(self, subject, inputs):
            free.wait(300)
            return super().prepare(subject, inputs)

    query = LatencyQuery(MemoryStore(), machines=LocalMachines([_Slow()]))
    service = LatencyService(query, ServiceLimits(queue=2))
    with listening(service) as url:
        client = LatencyClient(url)
        jobs = set()
        for kind in ("relu", "relu", "tanh"):
            body = {"key": f"{kind}()@1x8x4x4:float32", "platform": HERE.id}
            jobs.add(_call(f"{url}/v1/query", "POST", body)[1]["job"]["id"])
        assert len(jobs) == 2
        with pytest.raises(ServiceError, match=r"refuses: The queue is full, with 2 measurements\. Ask again later"):
            client.query("sigmoid()@1x8x4x4:float32", HERE.id)
        wait_until(lambda: "running" in [client.job(job)["state"] for job in jobs])
        cancelled = [_call(f"{url}/v1/jobs/{job}", "DELETE") for job in jobs]
        assert sorted(status for status, _ in cancelled) == [200, 422]
        free.set()


def test_clients_say_who_does_not_answer(tmp_path):
    with pytest.raises(ServiceError, match=r"The service http://127\.0\.0\.1:1 does not answer: Connection refused"):
        LatencyClient("http://127.0.0.1:1").health()
    for url in (
        *("ftp://x", "127.0.0.1:80", "http://", "http://x:y", "http://x?q=1"),
        *("http://[::1", "http://a..b", f"http://{'a' * 64}.org", "http://x/\u00e9"),
    ):
        with pytest.raises(InvalidValueError, match=r"The URL of a service must look like"):
            LatencyClient(url)


@pytest.mark.slow
def test_a_service_is_an_estimator(url):
    estimator = load_estimator(f"service:{url}#{HERE.id},always")
    assert isinstance(estimator, RemoteEstimator)
    check_estimator(estimator, *network(7))
    together = estimator.estimate_all([network(channels) for channels in (7, 8, 8)])
    assert together[1] == together[2]
    assert together[0] == estimator.estimate(*network(7))
    with pytest.raises(InvalidValueError, match=r"The estimator 'service' takes a URL and a platform"):
        load_estimator("service:http://127.0.0.1")


@pytest.mark.slow
def test_a_search_asks_in_bulk(url, monkeypatch):
    from nni_latency.estimators import distil
    from nni_latency.spaces import FBNetSpace

    estimator = RemoteEstimator.of(f"{url}#{FAST.id},never")
    requests = []
    send = LatencyClient._request
    monkeypatch.setattr(LatencyClient, "_request", lambda self, *words: requests.append(words[1]) or send(self, *words))
    monkeypatch.setattr(RemoteEstimator, "batch", 8)
    plan = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25).measure_plan(1)
    found = distil(estimator, plan, n_samples=16)
    assert found.n_samples == 16
    assert requests == ["/v1/queries"] * 2


def test_a_rate_is_kept():
    now = [0.0]
    limiter = RateLimiter(2.0, 4.0, clock=lambda: now[0])
    assert [limiter.wait("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limiter.wait("b") == 0
    now[0] = 1.0
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 0.5]


def test_jobs_that_are_over_are_forgotten():
    queue = JobQueue(10, kept=2)

    def fail(_told):
        raise MeasurementError("no")

    jobs = []
    for number in range(5):
        job = queue.submit(str(number), "", "p", "me", fail)
        while not job.is_over:
            pass
        jobs.append(job)
    assert len(queue.all()) <= 3
    assert queue.find(jobs[-1].identifier).error == "no"
    queue.close()


def test_a_queue_refuses_more_than_it_holds():
    free = threading.Event()
    queue = JobQueue(1, kept=2)
    queue.submit("a", "", "p", "me", lambda _told: free.wait(300))
    with pytest.raises(BusyError, match=r"The queue is full, with 1 measurement\."):
        queue.submit("b", "", "p", "me", lambda _told: None)
    free.set()
    queue.close()


def test_closing_a_queue_ends_what_runs_and_drops_what_waits():
    begun = threading.Event()

    def measure_for_ever(told):
        while True:
            told(Progress(1, 0.0, 0.5, 0))
            begun.set()

    queue = JobQueue(10, kept=10)
    jobs = [queue.submit(key, "", "p", "me", measure_for_ever) for key in "ab"]
    begun.wait(60)
    queue.close()
    assert [job.state for job in jobs] == ["failed", "cancelled"]
    assert all("The service was stopped before it was measured" in job.error for job in jobs)
    with pytest.raises(BusyError, match=r"The service was stopped"):
        queue.submit("c", "", "p", "me", measure_for_ever)


def _wait_for(job, *states):
    wait_until(lambda: job.state in states)


def test_a_job_waits_for_its_machine_and_runs_when_it_is_back():
    there, runs = threading.Event(), []
    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", runs.append, there.is_set)
    time.sleep(0.1)
    assert (job.state, runs) == ("queued", [])
    there.set()
    _wait_for(job, "done")
    queue.close()


def test_a_job_whose_machine_goes_while_it_runs_is_queued_again():
    there, runs = threading.Event(), []
    there.set()

    def lose_the_machine_once(_told):
        runs.append(time.monotonic())
        if len(runs) == 1:
            there.clear()
            raise MeasurementError("The worker died.")

    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", lose_the_machine_once, there.is_set)
    _wait_for(job, "queued")
    wait_until(lambda: runs)
    _wait_for(job, "queued")
    assert job.error == ""
    there.set()
    _wait_for(job, "done")
    assert len(runs) == 2
    queue.close()


def test_a_job_whose_machine_goes_because_the_service_stops_is_not_queued_again():
    begun, gone = threading.Event(), threading.Event()

    def lose_the_machine(_told):
        begun.set()
        gone.wait(300)
        raise MeasurementError("The machines left.")

    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", lose_the_machine, lambda: not begun.is_set())
    assert begun.wait(180)
    queue.stop()
    gone.set()
    _wait_for(job, "failed")
    assert job.error == "The machines left."
    queue.close()


def test_a_job_that_fails_on_a_machine_that_is_there_is_not_tried_again():
    runs = []

    def fail(_told):
        runs.append(1)
        raise MeasurementError("It has no such operator.")

    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", fail, lambda: True)
    _wait_for(job, "failed")
    assert (runs, job.error) == ([1], "It has no such operator.")
    queue.close()


def test_a_job_whose_machine_does_not_come_back_says_what_whoever_measures_says():
    def fail(_told):
        raise MeasurementError("No machine is there.")

    queue = JobQueue(10, kept=2, patience=0.05)
    job = queue.submit("a", "", "p", "me", fail, lambda: False)
    _wait_for(job, "failed")
    assert job.error == "No machine is there."
    assert job.ended is not None
    queue.close()


def test_the_end_of_a_job_is_streamed_before_its_last_version():
    job = Job("1", "a", "", "p", "me")

    async def read():
        stream = _stream_events(job)
        first = await anext(stream)
        job.state = "done"
        return [first, *[event async for event in stream]]

    assert [event.splitlines()[0] for event in asyncio.run(read())] == ["event: progress", "event: end"]


def test_a_job_that_waits_for_its_machine_can_be_cancelled():
    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", lambda _told: pytest.fail("it ran"), lambda: False)
    assert queue.cancel(job.identifier).state == "cancelled"
    following = queue.submit("b", "", "p", "me", lambda _told: None)
    _wait_for(following, "done")
    assert job.state == "cancelled"
    queue.close()


def test_closing_a_queue_does_not_wait_for_machines():
    queue = JobQueue(10, kept=2)
    job = queue.submit("a", "", "p", "me", lambda _told: pytest.fail("it ran"), lambda: False)
    begin = time.monotonic()
    queue.close()
    assert job.state == "cancelled"
    assert time.monotonic() - begin < 5


def test_base64_of_a_network_is_a_question(url):
    body = {"onnx": base64.b64encode(onnx_bytes()).decode(), "platform": FAST.id, "measure": "never"}
    status, found = _call(f"{url}/v1/query", "POST", body)
    assert (status, found["answer"]["source"]) == (200, "prediction")


def test_a_database_in_memory_has_no_lists():
    with listening(LatencyService(LatencyQuery(MemoryStore()))) as url:
        assert _call(f"{url}/v1/records")[1] == {"items": [], "next": None}
        assert _call(f"{url}/v1/database")[1] == {}


@pytest.mark.slow
def test_two_services_share_a_database(tmp_path):
    location = str(tmp_path / "m.sqlite")
    stores = [DatabaseStore(location) for _ in range(2)]
    services = [LatencyService(LatencyQuery(store, machines=machines()[0])) for store in stores]
    asked = Question.of(onnx_bytes())
    with listening(services[0]) as first, listening(services[1]) as second:
        answers = []
        threads = [
            threading.Thread(target=lambda url=url: answers.append(LatencyClient(url).query(asked, HERE.id)))
            for url in (first, second, first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({answer.campaign for answer in answers}) == 1
    for store in stores:
        store.close()
