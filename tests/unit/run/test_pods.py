"""Pods of RunPod: their price, their cluster, and how they are held or stopped."""

from __future__ import annotations

import socket
import subprocess
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.base import ends, times
from agent.base.errors import SettingsError
from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.plan.node_price import BY_RUNPOD, NodePrice
from agent.plan.show import held_sentence, render
from agent.run import about_pod, holding
from agent.run.about_pod import ask_for_price, check_cluster, send_pod_price
from agent.run.holding import Held
from agent.runpod.pod_api import PodApi
from agent.settings.redact import redactor_for
from support.conditions import is_so
from support.fake_runs import run_of, status_of
from support.heads import PAIR, Trace, goal
from support.runpod_server import RunPodServer, serve
from support.worlds import POD as POD_FACTS
from support.worlds import plan_of, settings_of, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

KEY = "rpa_0123456789abcdef0123"
POD = "7h9k2m4n6p"
MEMBER = {"cluster": {"id": "cluster_abc", "rank": 0}}
DONE = ends.JOB_SUCCEEDED.outcome(before="")


@pytest.fixture
def runpod() -> Iterator[RunPodServer]:
    """Return a server with one running pod."""
    with serving(RunPodServer(KEY, {POD: {}})) as state:
        yield state


@contextmanager
def serving(state: RunPodServer, tls: tuple[str, str] | None = None) -> Iterator[RunPodServer]:
    """Have a server."""
    server = serve(state, tls=tls)
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses."""
    for name in ("POD_RETRY_PAUSE", "LONGEST_POD_RETRY_PAUSE", "FLUSH"):
        monkeypatch.setattr(times, name, 0.05)
    monkeypatch.setattr("agent.runpod.pod_stop._POD_STOPS", 0.05)
    monkeypatch.setattr(times, "HOLD_REMINDER", 0.2)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that are logged, those about a pod with their level."""
    lines: list[str] = []
    monkeypatch.setattr(holding, "say", lambda line, _level="info": lines.append(line))
    monkeypatch.setattr(
        about_pod, "say", lambda line, level="info": lines.append(f"{level} {line}")
    )
    return lines


def held_by(
    url: str,
    on_done: str,
    key: str = KEY,
    *,
    is_head: bool = False,
    stays: float = 0.0,
    **more: str,
) -> Held:
    """Return a pod whose run is over."""
    environ = {"AGENT_RUNPOD_API": url, "AGENT_ON_DONE": on_done, **more}
    environ |= {"RUNPOD_API_KEY": key} if key else {}
    settings = settings_of(environ)
    pod = {"RUNPOD_POD_ID": POD}
    return Held(settings, pod, settings.on_done or "", is_head=is_head, stays=stays)


def hold_until(held: Held, holds: Callable[[], bool]) -> None:
    """Hold the pod until a condition holds."""

    async def main() -> None:
        await held.hold(DONE, partial(is_so, holds))

    anyio.run(main)


@pytest.mark.parametrize(
    ("on_done", "status"), [("stop-pod", "EXITED"), ("terminate-pod", "TERMINATED")]
)
def test_a_pod_is_stopped(runpod: RunPodServer, on_done: str, status: str) -> None:
    """The pod is read, stopped once, and read again; no other pod is requested."""
    hold_until(held_by(runpod.url, on_done), lambda: len(runpod.requests) >= 4)
    action = on_done.removesuffix("-pod")
    assert runpod.pods[POD]["status"] == status
    assert runpod.requests[:2] == [
        ("GET", POD, "", 200),
        ("POST", POD, action, 204 if action == "terminate" else 200),
    ]
    assert [one for one in runpod.requests if one[0] == "POST"] == runpod.requests[1:2]


def test_a_pod_that_is_started_again_stays_for_a_while(
    runpod: RunPodServer, said: list[str]
) -> None:
    """What is on its disk can be copied; then it is stopped."""
    held = held_by(runpod.url, "stop-pod", stays=0.5)
    hold_until(held, lambda: any("copy what you need" in line for line in said))
    assert runpod.requests == []
    hold_until(held, lambda: runpod.pods[POD].get("status") == "EXITED")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("code", [0, 409, 429, 500, 503])
def test_what_fails_for_a_moment_is_tried_again(
    runpod: RunPodServer, said: list[str], method: str, code: int
) -> None:
    """After temporary errors of the API, the pod is stopped and logged."""
    runpod.faults[method] = [(code, {"Retry-After": "0"})] * 3
    hold_until(held_by(runpod.url, "stop-pod"), lambda: runpod.pods[POD].get("status") == "EXITED")
    (line,) = (line for line in said if "holding the pod" in line)
    assert line.startswith("holding the pod")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rights": False}, "RUNPOD_API_KEY lacks the right to it (403)"),
        ({"key": "rpa_of_somebody_else"}, "RunPod refuses RUNPOD_API_KEY (401)"),
        ({"pods": {}}, "RunPod lists no such pod for RUNPOD_API_KEY (404)"),
        ({"pods": {POD: {"locked": True}}}, "it is locked"),
        ({"pods": {POD: {"cluster": {"id": "c1", "rank": 0}}}}, "it belongs to cluster c1"),
    ],
)
def test_a_pod_that_cannot_be_stopped_is_held(
    runpod: RunPodServer, said: list[str], change: dict[str, Any], words: str
) -> None:
    """It is held, with warnings about price and command; the stop is retried."""
    usual = {name: getattr(runpod, name) for name in change}
    for name, value in change.items():
        setattr(runpod, name, value)

    def refused_twice() -> bool:
        if sum(words in line for line in said) < 2:
            return False
        for name, value in usual.items():
            setattr(runpod, name, value)
        return runpod.pods[POD].get("status") == "EXITED"

    hold_until(held_by(runpod.url, "stop-pod"), refused_twice)
    (first, *_) = (line for line in said if "holding the pod, which RunPod does not stop" in line)
    assert words in first
    end = "to end it: delete the cluster" if "cluster" in words else "to end it: curl"
    assert any(end in line for line in said)
    assert KEY not in "".join(said)
    if "locked" in words or "cluster" in words:  # the key is not even requested
        assert sum(one[0] == "POST" for one in runpod.requests) == 1


def test_the_head_deletes_its_cluster(runpod: RunPodServer, said: list[str]) -> None:
    """Once, with all pods; the pods themselves get no action."""
    runpod.pods |= {POD: dict(MEMBER), "other": dict(MEMBER)}
    held = held_by(runpod.url, "terminate-pod", is_head=True)
    hold_until(held, lambda: len(runpod.requests) >= 4)
    assert {pod["status"] for pod in runpod.pods.values()} == {"TERMINATED"}
    assert runpod.requests[:2] == [("GET", POD, "", 200), ("DELETE", "cluster_abc", "", 204)]
    assert [one[0] for one in runpod.requests[2:]] == ["GET"] * len(runpod.requests[2:])
    assert any("RunPod accepted to delete this pod's cluster" in line for line in said)


def test_a_worker_leaves_the_cluster_to_the_head(runpod: RunPodServer, said: list[str]) -> None:
    """It is held, says why once, and asks again."""
    runpod.pods[POD] = dict(MEMBER)
    hold_until(held_by(runpod.url, "terminate-pod"), lambda: len(runpod.requests) >= 3)
    assert {one[0] for one in runpod.requests} == {"GET"}
    why = "holding the pod until the head deletes its cluster cluster_abc"
    assert said.count(why) == 1
    assert any("to end it: delete the cluster" in line for line in said)


@pytest.mark.parametrize("code", [0, 429, 500])
def test_a_cluster_that_is_not_deleted_at_once(
    runpod: RunPodServer, said: list[str], code: int
) -> None:
    """After temporary errors it is deleted; a key without the right holds the pod, loudly."""
    runpod.pods[POD] = dict(MEMBER)
    runpod.faults["DELETE"] = [(code, {})] * 2
    runpod.rights = False

    def refused() -> bool:
        if not any("RUNPOD_API_KEY lacks the right to it (403)" in line for line in said):
            return False
        runpod.rights = True
        return runpod.pods[POD].get("status") == "TERMINATED"

    hold_until(held_by(runpod.url, "terminate-pod", is_head=True), refused)
    assert any("to end it: delete the cluster" in line for line in said)
    assert KEY not in "".join(said)


def test_a_held_pod_logs_its_price(runpod: RunPodServer, said: list[str]) -> None:
    """The default: the pod is never stopped, and its published price is repeated."""
    hold_until(held_by(runpod.url, "hold"), lambda: sum("to end it: curl" in x for x in said) >= 3)
    assert any(line.startswith("holding the pod, which would be started again") for line in said)
    assert any("the pod bills $0.44/h" in line for line in said)
    assert not any(one[0] == "POST" for one in runpod.requests)


def test_the_price_that_the_user_sets_counts(runpod: RunPodServer, said: list[str]) -> None:
    """AGENT_PRICE_PER_HOUR precedes the published cost, and needs no key."""
    held = held_by(runpod.url, "hold", key="", AGENT_PRICE_PER_HOUR="2.5")
    hold_until(held, lambda: any("to end it" in line for line in said))
    assert any("the pod bills $2.50/h" in line for line in said)
    assert runpod.requests == []


def test_a_certificate_is_verified(tmp_path: Path, said: list[str]) -> None:
    """The key is not sent to a server without a trusted certificate."""
    files = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    with serving(RunPodServer(KEY, {POD: {}}), files) as state:
        held = held_by(state.url, "stop-pod")
        hold_until(held, lambda: any("holding the pod" in line for line in said))
    assert any("certificate verify failed" in line.lower() for line in said)
    assert state.requests == []


def test_the_head_waits_for_its_workers(runpod: RunPodServer, said: list[str]) -> None:
    """The head's pod is stopped once the agents of the other pods no longer answer."""
    held = held_by(runpod.url, "stop-pod")

    async def main() -> None:
        done = partial(is_so, lambda: runpod.pods[POD].get("status") == "EXITED")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with anyio.create_task_group() as tasks:
                address = ("127.0.0.1", listener.getsockname()[1])
                tasks.start_soon(held.hold, DONE, done, [address])
                for _ in range(2):  # it is probed again and again
                    (await anyio.to_thread.run_sync(listener.accept))[0].close()
                assert runpod.requests == []
                listener.close()

    anyio.run(main)
    assert runpod.pods[POD]["status"] == "EXITED"
    assert not any("have stopped" in line for line in said)


def test_a_pod_outside_of_runpod_cannot_be_stopped() -> None:
    """Without RUNPOD_POD_ID there is no pod: 78 at the start, by the variable's name."""
    with pytest.raises(SettingsError) as caught:
        topology_of({"AGENT_ON_DONE": "stop-pod", "RUNPOD_API_KEY": KEY})
    assert caught.value.problems[0].variable == "AGENT_ON_DONE"


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {},
            "the pod bills by the hour; to end it: curl -X POST https://api.runpod.io/v2/pods/7h9",
        ),
        ({"AGENT_PRICE_PER_HOUR": "3"}, "the pod bills $3.00/h; to end it: curl"),
        ({"PRIMARY_ADDR": "10.65.0.2", "NUM_NODES": "1", "NODE_RANK": "0"}, "delete the cluster"),
    ],
)
def test_the_plan_has_the_price_of_a_held_pod(environ: dict[str, str], line: str) -> None:
    """`plan` shows the price and what ends the pod, without a request."""
    given = {"RUNPOD_POD_ID": POD, **environ}
    assert line in render(plan_of(given, POD_FACTS), redactor_for(given, None))


def test_the_line_of_a_held_pod() -> None:
    """Price, cost so far and the command; without a price, that it bills."""
    assert held_sentence(0, None, "X") == "the pod bills by the hour; to end it: X"
    line = held_sentence(1800, 0.5, "X")
    assert line == "held for 30 min: the pod bills $0.50/h, $0.25 since the end; to end it: X"


# --- at the start of a run ------------------------------------------------------------------------

PRICE = NodePrice(0.44, BY_RUNPOD)


def run_on(runpod: RunPodServer, **more: str) -> Any:  # noqa: ANN401 - stands for a NodeRun
    """Return the run of this pod."""
    environ = {"AGENT_RUNPOD_API": runpod.url, "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": POD, **more}
    run = run_of(plan_of(environ))
    run.container = SimpleNamespace(environ=environ)
    return run


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
def test_whether_the_cluster_can_be_deleted(
    runpod: RunPodServer, said: list[str], change: dict[str, Any], on_done: str, words: str
) -> None:
    """An error with the reason where it cannot be deleted, else nothing; nothing is deleted."""
    runpod.pods[POD] = dict(MEMBER)
    for name, value in change.items():
        setattr(runpod, name, value)
    in_cluster = {"PRIMARY_ADDR": "10.65.0.2", "NUM_NODES": "2", "NODE_RANK": "0"}
    anyio.run(check_cluster, run_on(runpod, **in_cluster, AGENT_ON_DONE=on_done))
    assert bool(said) == bool(words)
    if words:
        assert said[0].startswith("error AGENT_ON_DONE=terminate-pod cannot delete this cluster: ")
        assert words in said[0]
        assert said[0].endswith("held, and bill: delete the cluster in RunPod's console")
    assert {request[0] for request in runpod.requests} <= {"GET"}


def api_of(runpod: RunPodServer, key: str = KEY) -> PodApi:
    """Return the API as this pod asks it."""
    settings = settings_of({"AGENT_RUNPOD_API": runpod.url, "RUNPOD_API_KEY": key})
    return PodApi(settings, {"RUNPOD_POD_ID": POD})


@pytest.mark.parametrize("code", [0, 429, 500])
def test_the_price_is_asked_for_until_it_comes(runpod: RunPodServer, code: int) -> None:
    """Errors that may pass are no answer; the pod is only read."""
    runpod.faults["GET"] = [(code, {})] * 2
    assert anyio.run(ask_for_price, api_of(runpod)) == PRICE
    assert [request[0] for request in runpod.requests] == ["GET"] * 3


def test_a_key_that_is_refused_is_asked_once(runpod: RunPodServer, said: list[str]) -> None:
    """The run goes on without a price, and the log says what sets one."""
    assert anyio.run(ask_for_price, api_of(runpod, "rpa_another0123456789")) is None
    assert len(runpod.requests) == 1
    (line,) = said
    assert "RunPod gives no price of this pod, AGENT_PRICE_PER_HOUR sets one: " in line


@pytest.mark.parametrize("limit", [None, "50"])
def test_a_limit_of_money_without_a_price(
    runpod: RunPodServer, said: list[str], limit: str | None
) -> None:
    """An error each time, and the price is asked for until it comes; without a limit, once."""
    runpod.faults["GET"] = [(403, {})] * 2
    run = run_on(runpod, **({} if limit is None else {"AGENT_MAX_COST": limit}))
    sent: list[Answered] = []
    anyio.run(send_pod_price, run, sent.append)
    errors = [line for line in said if line.startswith("error AGENT_MAX_COST has no effect")]
    warnings = [line for line in said if line.startswith("warning AGENT_MAX_COST=50 counts once")]
    if limit is None:
        assert (sent, errors, warnings) == ([], [], [])
    else:
        assert sent == [Answered(h.PriceKnown(PRICE))]
        assert (len(errors), len(warnings)) == (2, 1)


def test_a_pod_without_a_cost_is_asked_for_a_while(
    runpod: RunPodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cost of 0 is none: the run would be shown as free."""
    monkeypatch.setattr("agent.run.about_pod.PRICE_ASKED", 0.3)
    runpod.pods[POD]["cost"] = 0.0
    assert anyio.run(ask_for_price, api_of(runpod)) is None


def test_a_price_that_comes_later_counts_from_the_start() -> None:
    """Status and receipt count all hours of all nodes by it, and name its source."""
    trace = Trace(goal(1), PAIR)
    status = status_of(trace.state, plan_of({}), now=1800.0)
    assert (status.status().cost, status.status().price_source) == (None, None)

    trace.take(Answered(h.PriceKnown(PRICE)), 1800)
    status = status_of(trace.state, plan_of({}), now=1800.0)
    shown = status.status()
    assert shown.cost == 0.44
    assert (shown.price, shown.price_source) == (0.88, BY_RUNPOD)
    assert status.receipt.to_status().cost is not None
