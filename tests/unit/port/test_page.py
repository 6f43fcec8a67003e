"""The page, its form, and the status that fills them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

import pytest
from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import fields, replace

from agent import __version__
from agent.base.ends import Outcome
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import NodeState
from agent.decisions.stall import Stalled
from agent.plan import waits as planned
from agent.port import server
from agent.port.glance import judged
from agent.port.page_files import ASSETS, SCRIPTS, asset
from agent.port.page_status import page_status
from agent.port.status_model import (
    CheckpointStatus,
    Glance,
    GpusStatus,
    GroupServiceStatus,
    GroupStatus,
    JobStatus,
    LogPart,
    PageStatus,
    ProgressStatus,
    ServiceStatus,
    StallStatus,
    WaitStatus,
    WhatRunsStatus,
    WorkerStatus,
)
from agent.record.outcome_file import OutageRecord, ShortageRecord
from agent.record.run_record import AttemptOutcome
from support.fake_runs import status_of
from support.groups import UP, a_goal, left, says
from support.head_status import EVIL, SERVED, status_after
from support.heads import (
    PAIR,
    REWARD,
    TERM,
    TICK,
    History,
    Trace,
    accepted,
    goal,
    job,
    lost,
    nodes,
    pending,
    ready,
)
from support.schemas import validator_of
from support.statuses import a_group, a_member
from support.worlds import SECRET, plan_of
from tools.http.description import PAGE
from tools.page.rules import color_complaints
from tools.page.situations import made_run

if TYPE_CHECKING:
    from agent.run.head_server import RunStatus

SCRIPT = "\n".join(asset(path).decode() for path in SCRIPTS)
ARRAY = {"filter", "find", "forEach", "join", "length", "map", "push", "reduce", "slice"}
"""What belongs to arrays, not to the cluster."""


def test_the_status_has_all_of_it() -> None:
    """Phase, waits, services and nodes, those without an agent included."""
    found = status_after(SERVED)
    assert (found.run_id, found.role, found.phase) == ("run", "head", h.HeadPhase.BOOTING)
    assert [(node.name, node.joined) for node in found.nodes] == [
        ("pod4", False),
        ("pod2", True),
        ("10.0.0.3", True),
    ]
    assert found.nodes[1].heard_seconds_ago == 7.0
    (reward,) = found.services
    assert (reward.name, reward.state, reward.detail) == (REWARD, "pending", EVIL)
    assert (reward.restarts, reward.outages, reward.outage_since) == (0, 0, None)
    assert found.phases == (("booting", 0.0),)
    assert found.nodes[1].phases == (("following the head", 2.0),)
    assert found.waits == (WaitStatus(REWARD, EVIL, 291.0, following=False),)
    assert found.job == JobStatus("rehearsal", "not submitted", 1)


@pytest.mark.parametrize(
    ("set_by_user", "command", "name"),
    [
        ({}, None, "rehearsal-run"),
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
    assert found.status().run_name == name


def test_the_status_follows_the_job() -> None:
    """The job's status is Ray's; the verdict is included at the end."""
    running = [
        *SERVED,
        (5.0, ready(REWARD)),
        (70.0, TICK),
        (71.0, accepted()),
        (72.0, job("RUNNING")),
    ]
    found = status_after(running)
    assert found.job is not None
    assert (found.job.status, found.verdict) == ("running", None)
    verdict = status_after([*running, (73.0, TERM)]).verdict
    assert verdict is not None
    assert verdict.exit_code == 143


def test_the_status_counts_outages() -> None:
    """A service that was never ready has none; a current outage counts up to now."""
    history: History = [
        (1.0, pending(REWARD, "connection refused")),
        (2.0, ready(REWARD)),
        (5.0, lost(REWARD, "killed by SIGKILL")),
        (6.5, ready(REWARD, generation=2)),
        (8.0, lost(REWARD, "killed by SIGKILL", 2)),
    ]
    (reward,) = status_after(history).services
    assert (reward.restarts, reward.outages) == (1, 2)
    assert (reward.outage_seconds, reward.outage_since) == (2.5, 8.0)


@pytest.mark.parametrize("name", ["page.html", "login.html"])
def test_markup_holds_no_program_and_loads_only_what_is_ours(name: str) -> None:
    """The content policy requires it: scripts and styles are separate files."""
    text = asset(name).decode()
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|javascript:", text)
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert set(loaded) <= ASSETS.keys()
    assert 'lang="en"' in text
    assert 'name="viewport"' in text


def test_the_page_loads_all_scripts_in_their_order() -> None:
    """A file of the page that is not loaded would be dead; the last one begins."""
    assert tuple(re.findall(r'<script src="([^"]*)"', asset("page.html").decode())) == SCRIPTS
    names = re.findall(r"^(?:async )?function (\w+)|^(?:const|let) (\w+)", SCRIPT, re.MULTILINE)
    defined = [one or other for one, other in names]
    assert len(defined) == len(set(defined))


def test_the_script_makes_no_markup() -> None:
    """It writes text nodes only, requests only our URLs, and finds its elements on the page."""
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", SCRIPT)
    assert not re.findall(r"https?://[^\"]+", SCRIPT)
    asked = re.findall(r"\bask\([\"`](/\w+)", SCRIPT)
    assert set(asked) == {"/status", "/stop", "/logs"}
    assert '"/series"' in SCRIPT
    assert SCRIPT.count("fetch(") == 1  # with a limit: `ask`
    ids = set(re.findall(r'\bat\("([^"]+)"\)', SCRIPT)) - {"data"}
    assert ids <= set(re.findall(r'\bid="([^"]+)"', asset("page.html").decode()))


READS: dict[str, tuple[type[Struct], ...]] = {
    "status": (PageStatus, WorkerStatus),
    "known": (PageStatus, WorkerStatus),
    "progress": (ProgressStatus,),
    "service": (ServiceStatus,),
    "group": (GroupStatus,),
    "part": (GroupServiceStatus, LogPart),
    "attempt": (AttemptOutcome,),
    "outage": (OutageRecord,),
    "shortage": (ShortageRecord,),
    "gpus": (GpusStatus,),
    "saved": (CheckpointStatus,),
    "wait": (WaitStatus,),
    "job": (JobStatus,),
    "verdict": (Outcome,),
    "glance": (Glance,),
    "stall": (StallStatus,),
}
"""By the name of a variable in the scripts: the fields of the object that it holds."""


@pytest.mark.parametrize("variable", READS)
def test_what_the_scripts_read_is_there(variable: str) -> None:
    """A wrong name would make an empty place on the page."""
    names = set(re.findall(rf"\b{variable}\.(\w+)", SCRIPT))
    assert names
    known = {one.encode_name for kind in READS[variable] for one in fields(kind)}
    assert names <= known | ARRAY


def test_the_brief_status_is_small_and_fits_its_description() -> None:
    """At 256 nodes it is a tenth of the whole one; each node is a short row."""
    full = judged(made_run("lost", 256).private)
    brief = replace(page_status(full), curves=UNSET)
    data = json.dumps(to_builtins(brief))
    validator_of(PAGE).validate(json.loads(data))
    assert len(data) < 25_000 < len(json.dumps(to_builtins(full))) / 10
    assert len(brief.cells) == 256
    assert brief.cells[170] == ("pod170", "joined", (14,) * 8, True)
    assert brief.cells[255] == ("pod255", "lost", brief.cells[255][2], False)
    assert brief.gpus is not None
    assert (brief.gpus.lowest, brief.gpus.lowest_use) == ("pod170", 14.0)


def test_colors_are_told_apart_by_all() -> None:
    """Fine, slow and lost differ in both schemes, as color-blind people see them."""
    assert color_complaints(asset("page.css").decode()) == []
    same = asset("page.css").decode().replace("--warn: #", "--warn: #a3002b; --other: #", 1)
    assert "light, protanopia: warn and bad differ by 0" in color_complaints(same)


def test_the_form_posts_the_token() -> None:
    """The token goes by POST, never into a URL; a note is shown."""
    assert b'method="post"' in server.login_page()
    assert b'type="password"' in server.login_page()
    assert b"not the token" in server.login_page("That is not the token.")
    assert b"not the token" not in server.login_page()


RUNNING = [(1.0, nodes(2, 3)), (2.0, accepted()), (3.0, job("RUNNING"))]


def test_the_status_has_the_grace_of_a_missing_node() -> None:
    """From its loss on, until the job is stopped."""
    plan = plan_of({"AGENT_JOB_RETRIES": "2"})
    trace = Trace(goal(2, retries=2), ())
    for at, event in RUNNING:
        trace.take(event, at)
    assert status_of(trace.state, plan).status().loss_seconds_left is None
    trace.take(nodes(2), 5.0)
    found = status_of(trace.state, plan, now=9.0).status()
    grace = trace.state.goal.limits[planned.NODE]
    assert found.loss_seconds_left == grace - 4.0
    assert (found.nodes_expected, found.attempts_allowed) == (3, 3)


@pytest.mark.parametrize(
    ("set_by_user", "retries", "then"),
    [
        ({}, 0, "log"),
        ({"AGENT_JOB_RETRIES": "1"}, 1, "retry"),
        ({"AGENT_JOB_RETRIES": "1", "AGENT_ON_STALL": "retry"}, 0, "log"),
        ({"AGENT_ON_STALL": "stop"}, 0, "stop"),
    ],
)
def test_the_status_has_a_stall_and_what_follows(
    set_by_user: dict[str, str], retries: int, then: Literal["log", "retry", "stop"]
) -> None:
    """For the running attempt; the suspects, text of the job, only for readers with the token."""
    trace = Trace(goal(2, retries=retries), ())
    for at, event in RUNNING:
        trace.take(event, at)
    status = status_of(trace.state, plan_of(set_by_user))
    assert status.status().stall is None
    what = "no step for 12 min since step 41"
    status.stalled = Stalled(1, what, "rank 3 is in f", nodes=("pod2",))
    found = StallStatus(what, then, "", ("pod2",), "agent")
    assert status.status().stall == found
    private = replace(found, suspects="rank 3 is in f")
    assert status.with_private(status.status()).stall == private
    status.stalled = Stalled(2, "no step of another attempt")
    assert status.status().stall is None


@pytest.mark.parametrize(
    ("trace", "history", "expected"),
    [
        (Trace(goal(3), ()), [(nodes(), 1), (nodes(2, 3), 3), (nodes(3), 3)], 4),
        (Trace(a_goal(), UP), [(says(2), 2), (says(3), 3), (says(5), 3), (left(3), 3)], 3),
    ],
    ids=["nodes of Ray", "nodes of a group, which join no Ray; a spare is one more"],
)
def test_the_status_counts_the_nodes_that_joined(
    trace: Trace, history: list[tuple[h.HeadEvent, int]], expected: int
) -> None:
    """The most at one time: at the end of a run they leave, and some may never have joined."""
    status = status_of(trace.state, plan_of({}), get_state=lambda: trace.state)
    for event, joined in history:
        trace.take(event, 3.0)
        status.apply_event(event)
        found = status.status()
        assert (found.nodes_joined, found.nodes_expected) == (joined, expected)


def test_a_lost_node_whose_agent_reports() -> None:
    """It is lost since Ray's list lacks it, such as a new Ray on a replaced pod: not silent."""
    trace = Trace(goal(1), [*PAIR, (9.0, nodes(dead=(2,)))])
    (node,) = status_of(trace.state, plan_of({})).status().nodes
    assert (node.state, node.detail) == (
        NodeState.LOST,
        "reports; Ray's list of nodes does not have it",
    )


def test_a_silent_node_whose_rank_another_one_has_is_not_missing() -> None:
    """Its members run elsewhere: the run lacks nothing."""
    trace = Trace(a_goal(), [*UP, (3.0, says(2)), (3.0, says(3))])
    silent = h.WorkerSilent("agent2", "no answer", ray_answers=False)
    trace.take(silent, 20.0)
    assert status_of(trace.state, plan_of({})).status().nodes[0].state is NodeState.SILENT
    other = replace(says(2, agent=4).worker, name="pod4", ip="10.0.0.4")
    trace.take(h.WorkerReported(other), 30.0)
    nodes_shown = {node.name: node for node in status_of(trace.state, plan_of({})).status().nodes}
    assert nodes_shown["pod2"].state is NodeState.LEFT
    assert nodes_shown["pod2"].detail == "silent; another node has its rank"
    assert nodes_shown["pod4"].state is NodeState.JOINED


def what_runs_of(status: RunStatus) -> WhatRunsStatus:
    """Return what the job is made of, as readers with the token have it."""
    found = status.with_private(status.status()).what_runs
    assert isinstance(found, WhatRunsStatus)
    return found


def test_what_runs_is_for_those_with_the_token() -> None:
    """Model, data, command and versions, masked; the planned command until one is submitted."""
    environ = {"AGENT_MODEL": "some/model", "AGENT_TRAIN_DATA": f"/data/{SECRET}.parquet"}
    plan = plan_of(environ, command=["python3", "train.py", f"--key={SECRET}"])
    status = status_of(
        Trace(goal(0), ()).state, plan, clean=lambda text: text.replace(SECRET, "***")
    )
    assert status.status().what_runs is UNSET
    found = what_runs_of(status)
    assert (found.model, found.data) == ("some/model", "/data/***.parquet")
    assert found.command == "python3 train.py --key=***"
    ray = plan.facts.ray
    assert found.versions == {"pod-agent": __version__, "Ray": ray.version, "Python": ray.python}
    status.command = f"sh -c 'train {SECRET}'"
    assert what_runs_of(status).command == "sh -c 'train ***'"
    status.command = "x" * 100_000  # the page asks for it every two seconds
    assert len(what_runs_of(status).command) < 10_000


def test_the_page_gets_only_some_members() -> None:
    """Of hundreds it gets the numbers by state, and the first that do not serve.

    In place of their outages it gets the newest shortages; the outages of other services stay.
    """
    whole = made_run("ok", 3).status
    members = [a_member(n, "dead" if n % 2 else "serving") for n in range(512)]
    outages = tuple(OutageRecord(f"engine.{n}", "pod4", "T") for n in range(9))
    short = tuple(ShortageRecord("rollout", "engine", f"{n}") for n in range(30))
    changed = replace(
        whole,
        groups=(a_group(*members),),
        outages=(*whole.outages, *outages),
        shortages=short,
    )
    page = page_status(judged(changed))
    ((service,),) = (group.services for group in page.groups)
    assert service.states == {"serving": 256, "dead": 256}
    assert [member.state for member in service.members] == ["dead"] * 8
    assert page.outages == whole.outages
    assert page.shortages == short[10:]
