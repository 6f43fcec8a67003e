"""The price that RunPod publishes of a pod, by a server of its API's description."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.base import times
from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.plan.node_price import BY_RUNPOD, NodePrice
from agent.run import about_pod
from agent.run.about_pod import ask_for_price, send_pod_price
from agent.runpod.pod_api import PodApi
from support.fake_runs import run_of, status_of
from support.heads import PAIR, Trace, goal
from support.runpod_server import RunPodServer, serve
from support.worlds import plan_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

KEY = "rpa_0123456789abcdef0123"
POD = "7h9k2m4n6p"
PRICE = NodePrice(0.44, BY_RUNPOD)


@pytest.fixture
def runpod(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPodServer]:
    """Return a server with one running pod; failed requests are repeated at once."""
    for name in ("POD_RETRY_PAUSE", "LONGEST_POD_RETRY_PAUSE"):
        monkeypatch.setattr(times, name, 0.05)
    state = RunPodServer(KEY, {POD: {}})
    server = serve(state)
    yield state
    server.shutdown()
    server.server_close()


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


def test_a_key_that_is_refused_is_asked_once(
    runpod: RunPodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without a price, and the log says what sets one."""
    said: list[str] = []
    monkeypatch.setattr(about_pod, "say", said.append)
    assert anyio.run(ask_for_price, api_of(runpod, "rpa_another0123456789")) is None
    assert len(runpod.requests) == 1
    assert said[0].startswith("RunPod gives no price of this pod, AGENT_PRICE_PER_HOUR sets one: ")


@pytest.mark.parametrize("limit", [None, "50"])
def test_a_limit_of_money_without_a_price(
    runpod: RunPodServer, monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    """An error each time, and the price is asked for until it comes; without a limit, once."""
    monkeypatch.setattr(times, "HOLD_REMINDER", 0.05)
    lines: list[str] = []
    monkeypatch.setattr(
        about_pod, "say", lambda line, level="info": lines.append(f"{level} {line}")
    )
    runpod.faults["GET"] = [(403, {})] * 2
    environ = {"AGENT_RUNPOD_API": runpod.url, "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": POD}
    environ |= {} if limit is None else {"AGENT_MAX_COST": limit}
    run = run_of(plan_of(environ))
    run.container = SimpleNamespace(environ=environ)
    sent: list[Answered] = []
    anyio.run(send_pod_price, run, sent.append)
    errors = [line for line in lines if line.startswith("error AGENT_MAX_COST has no effect")]
    warnings = [line for line in lines if line.startswith("warning AGENT_MAX_COST=50 counts once")]
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
