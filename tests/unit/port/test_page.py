"""The page, its form, and the status that fills them."""

from __future__ import annotations

import re

import pytest

from agent.decisions.head import head_state as h
from agent.decisions.shared import ServiceGone, ServiceReady, ServiceWaits
from agent.port import server
from support.fake_runs import status_of
from support.head_status import EVIL, SERVED, status_after
from support.heads import REWARD, TERM, History, Trace, goal, job
from support.worlds import SECRET, plan_of
from tools.http.description import NODE, SERVICE, VERDICT, WAIT
from tools.page.runs import status as run_of

DOM = {"append", "children", "className", "hidden", "setAttribute", "tagName", "textContent"}
"""The attributes of the script's elements that belong to the page, not to the cluster."""


def test_the_status_has_all_of_it() -> None:
    """Phase, waits, services and nodes, those without an agent included."""
    found = status_after(SERVED)
    assert (found["run_id"], found["role"], found["phase"]) == ("run-1", "head", "booting")
    assert [(n["name"], n["joined"]) for n in found["nodes"]] == [
        ("pod4", False),
        ("pod2", True),
        ("10.0.0.3", True),
    ]
    assert found["nodes"][1]["heard_seconds_ago"] == 7.0
    (reward,) = found["services"]
    assert (reward["name"], reward["state"], reward["detail"]) == (REWARD, "pending", EVIL)
    assert (reward["restarts"], reward["outages"], reward["outage_since"]) == (0, 0, None)
    assert found["phases"] == [("booting", 0.0)]
    assert found["nodes"][1]["phases"] == [("following the head", 2.0)]
    wait = {"what": REWARD, "evidence": EVIL, "seconds_left": 291.0, "following": False}
    assert found["waits"] == [wait]
    assert found["job"] == {"name": "rehearsal", "status": "not submitted", "attempt": 1}


@pytest.mark.parametrize(
    ("set_by_user", "command", "name"),
    [
        ({}, None, "rehearsal-run-1"),
        ({"AGENT_RUN_NAME": "first sums"}, None, "first sums"),
        ({"AGENT_RUN_NAME": f"first {SECRET}"}, None, "first ***"),
        ({"AGENT_RUN_NAME": "first sums"}, ["true"], "first sums"),
        ({}, ["true"], None),
    ],
)
def test_the_name_of_the_run(
    set_by_user: dict[str, str], command: list[str] | None, name: str | None
) -> None:
    """It is AGENT_RUN_NAME, else the recipe's name of the run in W&B; a command has no other."""
    plan = plan_of(set_by_user, command=command)
    found = status_of(
        Trace(goal(0), ()).state, plan, clean=lambda text: text.replace(SECRET, "***")
    )
    assert found.status()["run_name"] == name


def test_the_status_follows_the_job() -> None:
    """The job's status is Ray's; the verdict is included at the end."""
    running = [
        *SERVED,
        (5.0, ServiceReady(REWARD)),
        (6.0, h.Submitted("run-1")),
        (7.0, job("RUNNING")),
    ]
    assert status_after(running)["job"]["status"] == "running"
    assert status_after(running)["verdict"] is None
    assert status_after([*running, (8.0, TERM)])["verdict"]["exit_code"] == 143


def test_the_status_counts_outages() -> None:
    """A service that was never ready has none; a current outage counts up to now."""
    history: History = [
        (1.0, ServiceWaits(REWARD, "connection refused")),
        (2.0, ServiceReady(REWARD)),
        (5.0, ServiceGone(REWARD, "killed by SIGKILL")),
        (6.5, ServiceReady(REWARD, generation=2)),
        (8.0, ServiceGone(REWARD, "killed by SIGKILL", generation=2)),
    ]
    (reward,) = status_after(history)["services"]
    assert (reward["restarts"], reward["outages"]) == (1, 2)
    assert (reward["outage_seconds"], reward["outage_since"]) == (2.5, 8.0)


def test_the_page_is_the_same_for_every_run() -> None:
    """It contains no data of a run: all texts arrive as JSON, and never as markup."""
    assert server.status_page(streams=False) == server.asset("page.html")
    changed = server.status_page(streams=True).replace(b'"events"', b'"status"')
    assert changed == server.asset("page.html")


@pytest.mark.parametrize("name", ["page.html", "login.html"])
def test_markup_holds_no_program_and_loads_only_what_is_ours(name: str) -> None:
    """The content policy requires it: scripts and styles are separate files."""
    text = server.asset(name).decode()
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|javascript:", text)
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert set(loaded) <= server.ASSETS.keys()
    assert 'lang="en"' in text
    assert 'name="viewport"' in text


def test_the_script_makes_no_markup() -> None:
    """It writes text nodes only, requests only our URLs, and finds its elements on the page."""
    script, text = server.asset("page.js").decode(), server.asset("page.html").decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", script)
    assert re.findall(r"https?://[^\"]+", script) == ["http://www.w3.org/2000/svg"]
    asked = re.findall(r'(?:fetch|EventSource)\("([^"]+)"', script)
    assert asked == ["/status", "/events"]
    ids = set(re.findall(r'\bat\("([^"]+)"\)', script))
    assert ids <= set(re.findall(r'\bid="([^"]+)"', text))


def test_what_the_script_reads_is_there() -> None:
    """Every key of the status that it reads exists, from a head or in RunStatus."""
    script = server.asset("page.js").decode()
    found = status_after(SERVED)
    more = {"attempts", "curve", "warnings", "job_tail", "prepare_lines", "metrics"}
    shown = run_of(3)  # what scripts/page looks at
    assert shown.keys() == found.keys() | more
    assert shown["nodes"][0].keys() == found["nodes"][0].keys()
    assert shown["services"][0].keys() == found["services"][0].keys()
    assert set(re.findall(r"\bstatus\.(\w+)", script)) <= found.keys() | more
    assert set(re.findall(r"\bnode\.(\w+)", script)) - DOM <= found["nodes"][0].keys()
    assert set(re.findall(r"\bstep\.(\w+)", script)) <= shown["nodes"][0]["steps"][0].keys()
    (service,) = found["services"]
    assert set(re.findall(r"\bservice\.(\w+)", script)) <= service.keys()


# whose keys the variables of each function of the script are
READS = {
    "drawWaits": ("wait", WAIT),
    "drawVerdict": ("verdict", VERDICT),
    "drawServices": ("one", SERVICE),
    "drawNodes": ("node", NODE),
}


@pytest.mark.parametrize("function", READS)
def test_a_cell_reads_a_key_that_is_there(function: str) -> None:
    """A wrong name would make an empty cell."""
    script = server.asset("page.js").decode()
    (body,) = re.findall(rf"\n  function {function}\(.*?\n  }}\n", script, re.DOTALL)
    variable, schema = READS[function]
    names = set(re.findall(rf"\b{variable}\.(\w+)", body))
    assert names
    assert names - DOM <= schema["properties"].keys()


def test_every_column_of_nodes_has_its_header() -> None:
    """The table of the nodes has as many headers as cells."""
    script, markup = server.asset("page.js").decode(), server.asset("page.html").decode()
    (body,) = re.findall(r"\n  function drawNodes\(.*?\n  }\n", script, re.DOTALL)
    (cells,) = re.findall(r"return \[\n(.*?)\n      \];", body, re.DOTALL)
    headers = re.findall(r'<th scope="col">', markup.partition('id="timeline"')[2])
    depth = commas = 0
    for character in cells:
        depth += (character in "([{") - (character in ")]}")
        commas += character == "," and depth == 0
    assert commas == len(headers)


def test_the_form_posts_the_token() -> None:
    """The token goes by POST, never into a URL; a note is shown."""
    assert b'method="post"' in server.login_page()
    assert b'type="password"' in server.login_page()
    assert b"not the token" in server.login_page("That is not the token.")
    assert b"not the token" not in server.login_page()
