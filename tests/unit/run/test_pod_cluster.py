"""Whether an Instant Cluster can be deleted at the end, asked at the start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.base import times
from agent.run import about_pod
from agent.run.about_pod import check_cluster
from support.fake_runs import run_of
from support.runpod_server import RunPodServer, serve
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

KEY = "rpa_0123456789abcdef0123"
POD = "7h9k2m4n6p"
MEMBER = {"cluster": {"id": "cluster_abc", "rank": 0}}
IN_CLUSTER = {"PRIMARY_ADDR": "10.65.0.2", "NUM_NODES": "2", "NODE_RANK": "0"}


@pytest.fixture
def runpod(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPodServer]:
    """Return a server with one pod of a cluster."""
    for name in ("POD_RETRY_PAUSE", "LONGEST_POD_RETRY_PAUSE"):
        monkeypatch.setattr(times, name, 0.05)
    state = RunPodServer(KEY, {POD: dict(MEMBER)})
    server = serve(state)
    yield state
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("change", "on_done", "words"),
    [
        ({}, "terminate-pod", ""),
        ({"faults": {"GET": [(500, {})]}}, "terminate-pod", ""),
        ({"key": "rpa_of_somebody_else"}, "terminate-pod", "RunPod answered 401"),
        ({"pods": {}}, "terminate-pod", "RunPod answered 404"),
        ({"pods": {POD: {}}}, "terminate-pod", "RunPod names no cluster of this pod"),
        ({"key": "rpa_of_somebody_else"}, "hold", ""),
    ],
)
def test_what_is_said_at_the_start(
    runpod: RunPodServer,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    on_done: str,
    words: str,
) -> None:
    """An error with the reason where it cannot be deleted, else nothing; nothing is deleted."""
    for name, value in change.items():
        setattr(runpod, name, value)
    said: list[str] = []
    monkeypatch.setattr(about_pod, "say", lambda line, level: said.append(f"{level} {line}"))
    environ = {"AGENT_RUNPOD_API": runpod.url, "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": POD}
    environ |= {**IN_CLUSTER, "AGENT_ON_DONE": on_done}
    run = run_of(plan_of(environ))
    run.container = SimpleNamespace(environ=environ)
    anyio.run(check_cluster, run)
    assert bool(said) == bool(words)
    if words:
        assert said[0].startswith("error AGENT_ON_DONE=terminate-pod cannot delete this cluster: ")
        assert words in said[0]
        assert said[0].endswith("held, and bill: delete the cluster in RunPod's console")
    assert {request[0] for request in runpod.requests} <= {"GET"}
