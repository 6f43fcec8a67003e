"""The judgment of a run in one look: state, sentences, and what differs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.port.glance import MOST_EXCEPTIONS, glance_of
from agent.port.status_model import AdviceStatus, Glance, StallStatus
from support.statuses import a_group, a_member, altered
from tools.page import situations

made_run = cache(situations.made_run)


def judged(situation: str, nodes: int = 3, **changes: Any) -> Glance:  # noqa: ANN401 - any field
    """Return the judgment on a made run whose reader has the token, with changed fields."""
    return glance_of(replace(made_run(situation, nodes).private, **changes))


@pytest.mark.parametrize(
    ("situation", "nodes", "state", "sentence", "details"),
    [
        ("ok", 3, "keep", "Training: step 212 of 400. Nothing to do.", "All 3 nodes report."),
        ("ok", 1, "keep", "Training: step 212 of 400. Nothing to do.", "The node reports."),
        ("ok", 3, "keep", "Training", "UTC, in 3 h 10 min and $132"),
        ("boot", 3, "keep", "Starting: 2 of 3 nodes have joined.", "Waiting for workers (1 of 2"),
        ("boot", 1, "keep", "Starting on one node.", "Waiting for the reward server (connection"),
        ("hang", 16, "end", "No step for 14 min 20 s since step 212.", "GPUs: 100 %, 131 W."),
        ("hang", 16, "end", "No step", "rank 3 on pod1 is in `compute_score` (reward.py:44)"),
        ("hang", 16, "end", "No step", "checkpoint: step 200. Each further hour costs $221."),
        ("collapse", 3, "end", "The mean reward fell from 0.", "Newest checkpoint: step 200."),
        ("lost", 3, "look", "1 of 3 nodes is missing: pod2.", "ends in 19 s unless all are back"),
        ("lost", 256, "look", "2 of 256 nodes are missing: pod255 and pod41.", "attempt 3 of 3"),
        ("lost", 256, "look", "2 of 256", "from step 200: 12 steps again, $718."),
        ("failed", 3, "end", "CUDA out of memory on pod2, step 212.", "AGENT_JOB_ARGS="),
        ("ended", 3, "keep", "Done: the job succeeded.", "400 steps, last reward 0.7"),
        ("cluster", 3, "keep", "The cluster is up; no job is submitted", "It stays until"),
        ("stepless", 3, "keep", "The job runs for", "All 3 nodes report."),
    ],
)
def test_a_situation_has_its_sentence(
    situation: str, nodes: int, state: str, sentence: str, details: str
) -> None:
    """State, sentence and details; the first situation that applies makes them."""
    found = judged(situation, nodes)
    assert (found.state, sentence in found.sentence) == (state, True), found.sentence
    assert details in found.details


def test_the_node_of_a_suspect_differs_from_the_others() -> None:
    """In a hang: it is the first row."""
    row = judged("hang", 16).exceptions[0]
    assert (row.name, row.state) == ("pod1", "suspect")
    assert "suspect" not in {other.state for other in judged("ok", 16).exceptions}


STALL = StallStatus("no step for 14 min", "log", "", (), "agent")


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        (
            {"stall": replace(STALL, then="retry")},
            "look",
            "Then attempt 3 of 3 starts from step 200",
        ),
        ({"stall": replace(STALL, then="stop")}, "look", "then the run is stopped"),
        ({"stall": STALL}, "end", "Nothing ends it by itself"),
        (
            {"attempts_allowed": 2, "loss_seconds_left": 3.0},
            "look",
            "No attempt follows: this is 2",
        ),
        ({"slow": "GPU clock 345 MHz"}, "look", "with a slow node: pod0"),
        ({"max_cost": 150.0, "cost": 120.0}, "look", "$120 of AGENT_MAX_COST=$150 are used."),
        ({"max_cost": 150.0, "cost": 120.0, "price": 60.0}, "look", "The end is in 30 min."),
        ({"max_cost": 150.0, "cost": None}, "look", "AGENT_MAX_COST has no effect yet"),
        (
            {"advice": (AdviceStatus("the KL rose", "R", "look", "kl", is_reward_lost=False),)},
            "look",
            "The KL rose",
        ),
        ({"phase": HeadPhase.STOPPING}, "look", "being stopped"),
        ({"phase": HeadPhase.RESUMING}, "look", "restarted"),
        ({"phase": HeadPhase.SUBMITTING}, "keep", "Attempt 2 of 3 is being submitted."),
        ({"phase": HeadPhase.JUDGING}, "look", "whether one was lost"),
    ],
)
def test_what_changes_the_judgment_of_a_healthy_run(
    changes: dict[str, Any], state: str, words: str
) -> None:
    """One field each; without the change the state is `keep`."""
    assert judged("ok").state == "keep"
    found = judged("ok", **changes)
    assert (found.state, words in f"{found.sentence} {found.details}") == (state, True), found


def changed(status_field: str, **changes: Any) -> Glance:  # noqa: ANN401 - any field
    """Return the judgment with changes in an object, or the first item of a list, of the status."""
    return glance_of(altered(made_run("ok", 3).status, status_field, **changes))


@pytest.mark.parametrize(
    ("usual", "since", "is_pausing", "state", "sentence"),
    [
        (61.0, 182.0, False, "keep", "Training: step 212 of 400. Nothing to do."),
        (61.0, 184.0, False, "look", "No step for 3 min 4 s. A step usually takes 61 s."),
        (61.0, 184.0, True, "look", "No step for 3 min 4 s: an evaluation or checkpoint runs."),
        (1.0, 59.0, False, "keep", "Training: step 212 of 400. Nothing to do."),
        (1.0, 61.0, False, "look", "No step for 61 s. A step usually takes 1 s."),
    ],
)
def test_a_step_that_takes_long(
    usual: float, since: float, state: str, sentence: str, *, is_pausing: bool
) -> None:
    """From three times a usual step on, and a minute; a pause that the job shows is named."""
    times = {"usual_seconds": usual, "seconds_since_step": since, "is_pausing": is_pausing}
    found = changed("progress", **times)
    assert (found.state, found.sentence) == (state, sentence)


def test_an_overdue_end_is_left_out() -> None:
    """A forecast that has passed would be wrong."""
    assert "done about" in changed("progress").details
    assert "done about" not in changed("progress", ends_at="2026-11-22T01:00:00Z").details


def test_a_service_that_is_out() -> None:
    """Since when, and what is known of it."""
    found = changed("services", outage_since=13_200.0, detail="connection refused")
    assert found.sentence == "Reward server does not answer."
    assert "Connection refused." in found.details
    row = found.exceptions[0]
    assert (row.name, row.state, row.figure) == ("reward server", "down", "24 s")


def test_a_gpu_fault_is_named() -> None:
    """An Xid error of one GPU."""
    run = made_run("ok", 3).status
    figures = run.nodes[1].figures
    assert figures is not None
    failing = replace(figures, gpus=replace(figures.gpus, xid=(0, 0, 0, 79, 0, 0, 0, 0)))
    found = glance_of(altered(run, "nodes", 1, figures=failing))
    assert found.sentence == "Training, with a GPU fault: pod2."
    assert found.exceptions[0].figure == "Xid 79"


def test_a_disk_that_is_full_soon_is_named_early_and_counts_late() -> None:
    """It differs from 12 hours on; it changes the state in the last two."""
    run = made_run("ok", 3)
    found = glance_of(run.status)
    assert (found.state, found.exceptions[0].state) == ("keep", "full soon")
    soon = (("disk /workspace", 3600.0),)
    found = glance_of(altered(run.status, "figures", forecasts=soon))
    assert (found.state, found.sentence) == (
        "look",
        "Training; disk /workspace will be full on pod0 in 60 min.",
    )


def test_what_differs_is_worst_first_and_bounded() -> None:
    """Lost before silent before slow; rows beyond the limit are counted."""
    found = judged("lost", 256)
    assert [row.state for row in found.exceptions] == ["lost", "silent", "slow", "full soon"]
    slow = found.exceptions[2]
    assert (slow.name, slow.figure) == ("pod170", "14 %")
    assert slow.detail.endswith("(limited by temperature); 84 °C")
    assert found.exceptions[1].detail == "does not report; it was following the head"
    run = made_run("boot", 256).status
    nodes = tuple(replace(node, state=NodeState.BOOTING) for node in run.nodes)
    found = glance_of(replace(run, nodes=nodes))
    assert (len(found.exceptions), found.more_exceptions) == (
        MOST_EXCEPTIONS,
        256 - MOST_EXCEPTIONS,
    )


def test_without_the_token_nothing_quotes_a_log() -> None:
    """The judgment is made from what its reader may read: the suspects of a hang are not there."""
    run = made_run("hang", 3)
    assert "reward.py" in glance_of(run.private).details
    assert "reward.py" not in glance_of(run.status).details


@pytest.mark.parametrize(("cost", "shown"), [(None, False), (12.5, True)])
def test_money_is_named_where_the_price_is_known(cost: float | None, shown: bool) -> None:  # noqa: FBT001 - a row
    """A failed run says what it has cost."""
    assert ("and $12.50" in judged("failed", cost=cost).details) is shown


OOM = "no engine serves since 14:02 UTC: all 4 on pod4 and pod5: exit code 1 (CUDA out of memory)"
WAITS = f"{OOM}; the trainer waits for samples"
DEAD = [a_member(n, "dead", "exit code 1 (CUDA out of memory)") for n in range(4)]
SERVING = [a_member(n) for n in range(4)]


@pytest.mark.parametrize(
    ("members", "more", "state", "words"),
    [
        (SERVING, {}, "keep", "Nothing to do"),
        ([*SERVING[:3], DEAD[3]], {}, "keep", "Nothing to do"),
        (
            [SERVING[0], *DEAD[1:]],
            {"short": "engine: 1 of 4 serve, 2 needed"},
            "look",
            "engine: 1 of 4 serve, 2 needed.",
        ),
        (DEAD, {"short": WAITS, "nothing_since": 40.0}, "look", f"N{WAITS[1:]}. Its members are"),
        (
            DEAD,
            {"short": WAITS, "nothing_since": 40.0, "may_recover": False},
            "end",
            "another attempt must send them the weights by NCCL (lost = wait).",
        ),
    ],
)
def test_a_group_of_which_too_few_serve(
    members: list[Any], more: dict[str, Any], state: str, words: str
) -> None:
    """The members that may be missed change nothing; without any the group is the sentence."""
    found = judged("ok", groups=(a_group(*members, **more),))
    assert (found.state, words in f"{found.sentence} {found.details}") == (state, True), found


def test_a_stall_does_not_hide_that_nothing_serves() -> None:
    """The group is the cause, and the stall stands beside it."""
    group = a_group(*DEAD, short=WAITS, nothing_since=40.0)
    found = judged("hang", groups=(group,))
    assert found.sentence.startswith("No engine serves since 14:02 UTC")
    assert "No step for 14 min 20 s since step 212." in found.details


def test_members_in_one_state_are_one_row() -> None:
    """Of hundreds, three are named."""
    members = [a_member(n, "dead" if n < 100 else "serving") for n in range(512)]
    rows = judged("ok", groups=(a_group(*members),)).exceptions
    assert (rows[0].name, rows[0].state, rows[0].figure) == ("engine", "dead", "100 of 512")
    assert "engine" not in {row.name for row in rows[1:]}
    assert rows[0].detail == "engine.0 on pod4, engine.1 on pod4, engine.0 on pod5 and 97 more"
