"""Calls of GCS and the job API without Ray's clients."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import grpc  # type: ignore[import-untyped]
import pytest
from ray.core.generated import gcs_pb2, gcs_service_pb2

from agent.bridge import light_calls
from agent.bridge.light_calls import GcsByGrpc, JobsByHttp, needs_ray_clients
from agent.bridge.ray_calls import Gcs, is_final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - any will do
NODES = [
    gcs_pb2.GcsNodeInfo(
        node_id=b"\x01\xff" * 14,
        node_manager_address="10.0.0.5",
        node_manager_port=8267,
        is_head_node=True,
        resources_total={"CPU": 16.0, "memory": 3.5e9, "node:10.0.0.5": 1.0},
        start_time_ms=1_764_352_806_123,
        labels={"ray.io/node-id": "x"},
    ),
    gcs_pb2.GcsNodeInfo(
        node_id=b"\x02" * 28,
        node_manager_address="10.0.0.6",
        node_manager_port=40_000,
        state=gcs_pb2.GcsNodeInfo.DEAD,
        resources_total={"GPU": 8.0},
        death_info={"reason_message": "x" * 300},
    ),
]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


class Replies(grpc.GenericRpcHandler):  # type: ignore[misc]  # without types
    """A GCS that gives these replies, and notes the metadata of each call."""

    def __init__(self, replies: dict[str, Callable[[bytes], bytes]]) -> None:
        self.replies = replies
        self.metadata: list[dict[str, str]] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return what handles a call; None for an unknown method."""
        reply = self.replies.get(details.method)
        self.metadata.append(dict(details.invocation_metadata))
        if reply is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: reply(request))


@pytest.fixture
def gcs_server() -> Iterator[tuple[Replies, str]]:
    """Serve a GCS without any method."""
    replies = Replies({})
    server = grpc.server(ThreadPoolExecutor(2), handlers=(replies,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield replies, f"127.0.0.1:{port}"
    server.stop(0)


def test_nodes_are_read_as_ray_writes_them(gcs_server: tuple[Replies, str]) -> None:
    """Dead nodes are included; a resource that a node lacks is 0. The token is sent."""
    replies, address = gcs_server
    reply = gcs_service_pb2.GetAllNodeInfoReply(node_info_list=NODES, total=2)
    replies.replies["/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"] = lambda _: (
        reply.SerializeToString()
    )
    gcs = GcsByGrpc(address)
    head = {"node_id": "01ff" * 14, "ip": "10.0.0.5", "port": 8267, "alive": True}
    worker = {"node_id": "02" * 28, "ip": "10.0.0.6", "port": 40_000, "alive": False}
    expected = [
        {**head, "is_head": True, "gpus": 0.0, "cpus": 16.0, "memory": 3.5e9},
        {**worker, "is_head": False, "gpus": 8.0, "cpus": 0.0, "memory": 0.0},
    ]
    assert gcs.nodes() == expected
    assert replies.metadata[0]["authorization"] == f"Bearer {TOKEN}"

    # The same reply again, then another one.
    assert gcs.nodes() == expected
    del reply.node_info_list[1]
    assert gcs.nodes() == expected[:1]


@pytest.mark.parametrize("job_id", ["run-1", "r" * 200, "r" * 20_000])
def test_a_job_s_state_is_read_from_gcs(gcs_server: tuple[Replies, str], job_id: str) -> None:
    """Its key is what Ray's supervisor writes to; without a value there is no such job."""
    replies, address = gcs_server

    def value(data: bytes) -> bytes:
        asked = gcs_service_pb2.InternalKVGetRequest.FromString(data)
        assert asked.namespace == b"job"
        found = b""
        if asked.key == f"_ray_internal_job_info_{job_id}".encode():
            found = json.dumps({"status": "FAILED", "driver_exit_code": 3}).encode()
        return bytes(gcs_service_pb2.InternalKVGetReply(value=found).SerializeToString())

    replies.replies["/ray.rpc.InternalKVGcsService/InternalKVGet"] = value
    gcs = GcsByGrpc(address)
    report = gcs.job(job_id)
    assert report is not None
    assert (report["status"], report["driver_exit_code"], report["ended"]) == ("FAILED", 3, True)
    assert gcs.job("run-2") is None


def test_a_ray_without_these_methods_is_asked_by_its_own_client(
    gcs_server: tuple[Replies, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later Ray may have renamed them."""
    _, address = gcs_server
    monkeypatch.setattr(Gcs, "nodes", lambda _self: [{"ip": "10.0.0.9"}])
    gcs = GcsByGrpc(address)
    assert [gcs.nodes(), gcs.nodes()] == [[{"ip": "10.0.0.9"}]] * 2


def test_a_gcs_that_does_not_answer_is_named(gcs_server: tuple[Replies, str]) -> None:
    """The evidence has its address and gRPC's status; GCS is found once it is there."""
    replies, address = gcs_server
    del replies
    port = int(address.rpartition(":")[2])
    gcs = GcsByGrpc(f"127.0.0.2:{port}")
    with pytest.raises(ConnectionError, match=rf"GCS at 127\.0\.0\.2:{port}: UNAVAILABLE"):
        gcs.nodes()


class Dashboard(BaseHTTPRequestHandler):
    """A dashboard with one job."""

    asked: list[tuple[str, str, str, object]]

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/api/jobs/":
            self.answer(200, json.dumps([{"submission_id": "run-1"}, {"submission_id": None}]))
        elif self.path == "/api/jobs/run-1":
            self.answer(200, json.dumps({"status": "RUNNING", "message": "m", "end_time": None}))
        else:
            self.answer(404, "Job not found")

    def do_POST(self) -> None:
        """Answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = json.loads(body) if body else None
        if not self.headers["User-Agent"]:  # as Ray before 2.52
            self.answer(500, "500 Internal Server Error")
            return
        self.asked.append((self.path, self.headers["Authorization"], self.command, text))
        job = text["submission_id"] if text else ""
        if job == "too-large":
            self.answer(413, "Maximum request body size exceeded")
        elif job == "run-1":
            self.answer(500, "Traceback\nValueError: Job with submission_id run-1 already exists")
        elif job == "html":
            self.answer(200, "<html>")
        else:
            self.answer(200, "{}")

    def answer(self, status: int, text: str) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def dashboard() -> Iterator[str]:
    """Serve a dashboard; return its URL."""
    Dashboard.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def job(job_id: str) -> dict[str, object]:
    """Return a job without a runtime_env."""
    return {"id": job_id, "entrypoint": "sh -c 'true'", "runtime_env": {}}


def test_a_job_is_submitted_found_and_stopped(dashboard: str) -> None:
    """Each request has the token."""
    jobs = JobsByHttp(dashboard)
    jobs.submit_once(job("run-2"))
    jobs.stop("run-2")
    wanted = {"entrypoint": "sh -c 'true'", "submission_id": "run-2"}
    token = f"Bearer {TOKEN}"
    assert Dashboard.asked == [
        ("/api/jobs/", token, "POST", wanted),
        ("/api/jobs/run-2/stop", token, "POST", None),
    ]
    assert (jobs.has_job("run-1"), jobs.has_job("run-3")) == (True, False)
    assert jobs.ids_of_run("run") == ["run-1"]
    report = jobs.report("run-1")
    assert (report["status"], report["ended"], report["message"]) == ("RUNNING", False, "m")


def test_a_job_that_ray_has_is_submitted_no_second_time(dashboard: str) -> None:
    """The answer to the first submission was lost: Ray refuses another, which is no failure."""
    JobsByHttp(dashboard).submit_once(job("run-1"))


@pytest.mark.parametrize(
    ("job_id", "why", "final"),
    [("too-large", "status code 413: Maximum", True), ("html", "not reply with JSON", False)],
)
def test_a_refused_job_says_why(dashboard: str, job_id: str, why: str, *, final: bool) -> None:
    """As Ray's own client puts it; what may pass is tried again."""
    with pytest.raises(RuntimeError, match=why) as refused:
        JobsByHttp(dashboard).submit_once(job(job_id))
    assert is_final(refused.value) is final


def test_a_dashboard_that_is_not_there_is_no_final_refusal() -> None:
    """It boots."""
    with pytest.raises(ConnectionError, match="Failed to connect to Ray at address") as refused:
        JobsByHttp("http://127.0.0.1:9").submit_once(job("run-2"))
    assert not is_final(refused.value)


def test_a_runtime_env_is_submitted_by_ray_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It packs and uploads what the runtime_env names."""
    submitted: list[object] = []

    class Client:
        def __init__(self, url: str) -> None:
            submitted.append(url)

        def submit_job(self, **wanted: object) -> None:
            submitted.append(wanted)

    monkeypatch.setattr("agent.bridge.ray_calls.import_ray", lambda: (None, Client))
    with_env = {**job("run-2"), "runtime_env": {"working_dir": "."}}
    JobsByHttp("http://127.0.0.1:9").submit_once(with_env)
    wanted = {"entrypoint": "sh -c 'true'", "submission_id": "run-2"}
    assert submitted == ["http://127.0.0.1:9", {**wanted, "runtime_env": {"working_dir": "."}}]


@pytest.mark.parametrize(
    ("dashboard", "environ", "needs"),
    [
        ("http://127.0.0.1:8265", {"RAY_AUTH_MODE": "disabled"}, False),
        ("http://[::1]:8265", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}, False),
        ("http://127.0.0.1:8265", {"RAY_AUTH_MODE": "token"}, True),
        ("http://127.0.0.1:8265", {"RAY_AUTH_MODE": "k8s"}, True),
        ("http://127.0.0.1:8265", {}, True),
        ("https://ray.example:443", {"RAY_AUTH_MODE": "disabled"}, True),
        ("http://10.0.0.5:8265", {"RAY_AUTH_MODE": "disabled", "http_proxy": "http://p:1"}, True),
    ],
)
def test_ray_s_own_clients_are_used_where_they_know_more(
    dashboard: str, environ: dict[str, str], *, needs: bool
) -> None:
    """A dashboard with TLS, a proxy, another place of the token: none of that is rebuilt here."""
    assert needs_ray_clients(dashboard, environ) is needs


def test_the_choice_is_made_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token in the environment no client of Ray is used."""
    gcs, jobs = light_calls.connect("127.0.0.1:6379", "http://127.0.0.1:8265")
    assert isinstance(gcs, GcsByGrpc)
    assert isinstance(jobs(), JobsByHttp)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    gcs, _ = light_calls.connect("127.0.0.1:6379", "http://127.0.0.1:8265")
    assert not isinstance(gcs, GcsByGrpc)
