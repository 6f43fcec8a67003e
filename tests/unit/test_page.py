"""The page, the form and the metrics, from one status."""

from __future__ import annotations

from typing import Any

import pytest

from agent.base.outcome import Kind, Outcome
from agent.boot.head_status import status_of
from agent.control import page
from agent.decisions.head import state as h
from unit.heads import REWARD, TERM, History, Story, goal, job, nodes, word
from unit.worlds import SECRET, plan_of

EVIL = '<script>alert("x")</script>'
SERVED: History = [
    (1.0, h.ServiceWaits(REWARD, EVIL)),
    (2.0, word(2, rank=1, heard=2.0)),
    (3.0, nodes(2, 3)),
    (4.0, word(4, EVIL, joined=False, heard=4.0)),
]
WORKER: dict[str, Any] = {
    "role": "worker",
    "phase": "finding the head",
    "waits": [{"what": "the head", "evidence": EVIL, "seconds_left": 9.0}],
    "verdict": Outcome(Kind.LOST, 75, EVIL).to_dict(),
}


def status(history: History) -> dict[str, Any]:
    """Return a head's status after a history."""
    plan = plan_of({"RAY_AUTH_TOKEN": SECRET, "EXPECTED_WORKERS": "2"})
    return status_of(Story(goal(2, services=(REWARD,)), history).state, plan, "run-1", 1, 9.0)


def test_the_status_tells_all_of_it() -> None:
    """Phase, waits, services and nodes, those without an agent included."""
    found = status(SERVED)
    assert (found["run_id"], found["role"], found["phase"]) == ("run-1", "head", "booting")
    assert [(n["name"], n["joined"]) for n in found["nodes"]] == [
        ("pod4", False),
        ("pod2", True),
        ("10.0.0.3", True),
    ]
    assert found["nodes"][1]["heard_seconds_ago"] == 7.0
    reward = {"name": REWARD, "state": "pending", "detail": EVIL, "restarts": 0}
    assert found["services"] == [reward]
    assert found["waits"] == [{"what": REWARD, "evidence": EVIL, "seconds_left": 291.0}]
    assert found["job"] == {"name": "rehearsal", "status": "not submitted", "attempt": 1}


def test_the_status_follows_the_job() -> None:
    """The job's status is Ray's word; the verdict is there at the end."""
    running = [
        *SERVED,
        (5.0, h.ServiceReady(REWARD)),
        (6.0, h.Submitted("run-1")),
        (7.0, job("RUNNING")),
    ]
    assert status(running)["job"]["status"] == "running"
    assert status(running)["verdict"] is None
    assert status([*running, (8.0, TERM)])["verdict"]["exit_code"] == 143


@pytest.mark.parametrize("found", [status(SERVED), status([]), WORKER])
def test_the_page_escapes_what_others_said(found: dict[str, Any]) -> None:
    """No text of a worker's or a service's becomes markup; no secret is on the page."""
    text = page.overview(found)
    assert "<script" not in text
    assert SECRET not in text
    assert ("&lt;script&gt;" in text) == (EVIL in str(found))
    assert found["phase"] in text


def test_the_form_posts_the_token() -> None:
    """The token goes by POST, never into a URL; a wrong one is told."""
    assert 'method="post"' in page.login()
    assert 'type="password"' in page.login()
    assert "not the token" in page.login(wrong=True)
    assert "not the token" not in page.login()


@pytest.mark.parametrize("found", [status(SERVED), status([]), WORKER])
def test_metrics_can_be_scraped(found: dict[str, Any]) -> None:
    """Every line is a comment or `name{labels} value`, and the counts are right."""
    lines = page.metrics(found).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all(float(value) >= 0 for value in values.values())
    joined = sum(1 for node in found.get("nodes", []) if node["joined"])
    assert values['pod_agent_workers{joined="true"}'] == str(joined)
    assert values["pod_agent_waits"] == str(len(found["waits"]))
    label = f'pod_agent_phase{{role="{found["role"]}",phase="{found["phase"]}"}}'
    assert values[label] == "1"
