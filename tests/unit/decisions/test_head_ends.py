"""The head's ends: a history of events ends with a code, a culprit and a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.head import head_decide as head
from agent.decisions.head.head_state import HeadPhase
from support.heads import (
    INT,
    LOST,
    PAIR,
    REWARD,
    RUNNING,
    SERVED,
    SERVING,
    TERM,
    TICK,
    WITH_REWARD,
    History,
    Trace,
    accepted,
    goal,
    job,
    lost,
    nodes,
    pending,
    ray_lost,
    ray_open,
    ray_waits,
    reported,
    waits,
)

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

DEATHS: History = [
    *((10, LOST), (20, LOST), (21, TICK), (30, LOST), (32, TICK)),
    (90, LOST),
]
"""A reward server exits three times: restarted at once, after one second, after two."""

ENDS: dict[str, tuple[HeadGoal, History, int, str, list[str]]] = {
    "Ray never starts": (
        goal(),
        [(1, ray_waits("connection refused by 10.0.0.1:6379")), (100, TICK)],
        69,
        "Ray on this node",
        ["Ray on this node not ready in time: connection refused by 10.0.0.1:6379"],
    ),
    "Ray starts by half": (
        goal(),
        [(1, ray_waits("connection refused")), (2, ray_open()), (100, TICK)],
        69,
        "Ray on this node",
        ["Ray on this node not ready in time: GCS answered, the head's node is not in it yet"],
    ),
    "a Ray that others start never comes": (
        goal(given=True),
        [(1, ray_waits("connection refused")), (100, TICK)],
        69,
        "KubeRay's Ray",
        ["KubeRay's Ray not ready in time: connection refused"],
    ),
    "a Ray that others start is not started again": (
        goal(given=True),
        [(1, ray_lost("exit 1"))],
        69,
        "ray",
        ["did not start: exit 1"],
    ),
    "its own checks forbid it": (
        replace(goal(2), refusal=Outcome(Kind.REFUSED, 78, "port 8265 is taken", culprit="ports")),
        [(0.5, TICK)],
        78,
        "ports",
        ["port 8265 is taken"],
    ),
    "Ray ends at once, thrice": (
        goal(),
        [(1, ray_lost("exit 1")), (2, ray_lost("exit 1")), (3, ray_lost("exit 1"))],
        69,
        "ray",
        ["did not start: exit 1"],
    ),
    "Ray ends after its deadline": (
        goal(),
        [(101, ray_lost("exit 1"))],
        69,
        "ray",
        ["did not start: exit 1"],
    ),
    "a worker never comes": (
        goal(2),
        [(3, nodes(2)), (4, reported(2, rank=1)), (200, TICK)],
        69,
        "workers",
        ["1 of 2 joined", "no report from rank 2"],
    ),
    "another cluster's node has a rank of this run": (
        goal(3),
        [(3, nodes(2, 3)), (4, reported(2, rank=1)), (5, reported(3, rank=1)), (200, TICK)],
        69,
        "workers",
        [
            "no report from rank 2 and 3; rank 1 is reported by pod2",
            "a node of another cluster has",
        ],
    ),
    "another cluster's node has a rank beyond those of this run": (
        goal(2),
        [(3, nodes(2)), (4, reported(2, rank=7)), (200, TICK)],
        69,
        "workers",
        ["reports rank 7, beyond the last, 2: a node of another cluster has this head's address"],
    ),
    "a worker without rank never comes": (
        goal(2),
        [(3, nodes(2)), (200, TICK)],
        69,
        "workers",
        ["1 of 2 joined", "1 never reported"],
    ),
    "a worker hangs": (
        goal(1),
        [
            (3, nodes()),
            (4, reported(2, "joining Ray", joined=False, detail="no route")),
            (200, TICK),
        ],
        69,
        "workers",
        ["0 of 1 joined", "pod2 last reported", "joining Ray, no route"],
    ),
    "a worker was refused": (
        goal(1),
        [(3, nodes()), (4, reported(2, joined=False, refused="version mismatch")), (200, TICK)],
        69,
        "workers",
        ["pod2 was refused: version mismatch"],
    ),
    "a worker prepares for ever": (
        goal(1),
        [(3, nodes()), (4, reported(2, joined=False, preparing=True)), (7200, TICK)],
        69,
        "workers",
        ["pod2"],
    ),
    "fewer than the least": (
        goal(3, least=2),
        [(3, nodes(2)), (200, TICK)],
        69,
        "workers",
        ["1 of 3 joined"],
    ),
    "the reward server dies early": (
        WITH_REWARD,
        [(1, LOST)],
        69,
        REWARD,
        ["ended before it was ready", "exit code 1"],
    ),
    "the reward server talks nonsense": (
        WITH_REWARD,
        [(3, nodes()), (9, pending(REWARD, "its reply is not JSON")), (300, TICK)],
        69,
        REWARD,
        ["not ready in time: its reply is not JSON"],
    ),
    "data fails": (
        goal(prepare=True),
        [(3, nodes()), (9, lost("AGENT_PREPARE", "exit code 2"))],
        69,
        "AGENT_PREPARE",
        ["AGENT_PREPARE failed: exit code 2"],
    ),
    "every node's step fails on the head": (
        goal(prepare=True),
        [(3, nodes()), (9, lost("AGENT_PREPARE_EACH", "exit code 2"))],
        69,
        "AGENT_PREPARE_EACH",
        ["AGENT_PREPARE_EACH failed: exit code 2"],
    ),
    "data takes too long": (
        goal(prepare=True),
        [(3, nodes()), (7200, TICK)],
        69,
        "AGENT_PREPARE_EACH and AGENT_PREPARE",
        ["not ready in time"],
    ),
    "stopped while booting": (goal(1), [(3, nodes()), (4, TERM)], 143, "SIGTERM", ["SIGTERM"]),
    "interrupted while booting": (goal(1), [(4, INT)], 130, "SIGINT", ["SIGINT"]),
    "Ray never takes the job": (
        goal(),
        [(3, nodes()), (9, waits("No available agent")), (123, TICK)],
        69,
        "ray",
        ["could not be submitted: No available agent"],
    ),
    "Ray refuses the job": (
        goal(),
        [(3, nodes()), (9, waits("bad runtime_env", final=True))],
        78,
        "AGENT_RUNTIME_ENV",
        ["bad runtime_env"],
    ),
    "Ray dies under the submission": (
        goal(),
        [(3, nodes()), (4, ray_lost("exit 1"))],
        75,
        "ray",
        ["Ray was lost on the head: exit 1"],
    ),
    "the job succeeds": (goal(), [*RUNNING, (9, job("SUCCEEDED", 0))], 0, "", ["succeeded"]),
    "the job fails": (goal(), [*RUNNING, (9, job("FAILED", 7))], 7, "job", ["exit code 7"]),
    "the job is killed": (goal(), [*RUNNING, (9, job("FAILED", -9))], 137, "job", ["SIGKILL"]),
    "the job is stopped from outside": (
        goal(),
        [*RUNNING, (9, job("STOPPED"))],
        143,
        "job",
        ["stopped from outside"],
    ),
    "the job dies without a code": (
        goal(),
        [*RUNNING, (9, job("FAILED", None, "driver died"))],
        75,
        "job",
        ["driver died"],
    ),
    "Ray dies under the job": (goal(), [*RUNNING, (9, ray_lost("exit 1"))], 75, "ray", ["exit 1"]),
    "Ray falls silent": (
        goal(),
        [*RUNNING, (125, TICK)],
        75,
        "ray",
        ["no status of the job for 120"],
    ),
    "a node is lost for good": (
        goal(1),
        [*PAIR, (9, nodes(dead=(2,))), (69, TICK), (70, job("STOPPED"))],
        75,
        "node",
        ["lost a needed node (0 of 1 joined", "AGENT_NODE_GRACE"],
    ),
    "the job ends by itself after a loss": (
        goal(1),
        [*PAIR, (9, nodes(dead=(2,))), (20, job("FAILED", 1))],
        1,
        "job",
        ["exit code 1", "before that, lost a needed node"],
    ),
    "the reward server is lost for good": (
        WITH_REWARD,
        [*SERVED, *DEATHS, (91, job("STOPPED"))],
        69,
        REWARD,
        ["lost for good: exit code 1"],
    ),
    "a restarted reward server never answers": (
        WITH_REWARD,
        [*SERVED, (10, LOST), (100, job("RUNNING")), (130, TICK), (131, job("STOPPED"))],
        69,
        REWARD,
        ["lost for good"],
    ),
    "stopped while running": (
        goal(),
        [*RUNNING, (9, TERM), (11, job("STOPPED"))],
        143,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "interrupted while running": (
        goal(),
        [*RUNNING, (9, INT), (10, TERM), (11, job("SUCCEEDED", 0))],
        130,
        "SIGINT",
        ["SIGINT"],
    ),
    "a job that does not stop": (goal(), [*RUNNING, (9, TERM), (25, TICK)], 143, "SIGTERM", []),
    "Ray dies while stopping": (
        goal(),
        [*RUNNING, (9, TERM), (10, ray_lost("exit 1"))],
        143,
        "SIGTERM",
        [],
    ),
    "stopped before Ray took it": (
        goal(),
        [(3, nodes()), (4, TERM), (5, waits("stopped before Ray took it", canceled=True))],
        143,
        "SIGTERM",
        [],
    ),
    "serving, stopped": (SERVING, [(3, nodes(2)), (9, TERM)], 0, "SIGTERM", ["SIGTERM"]),
    "serving, interrupted while booting": (SERVING, [(9, INT)], 0, "SIGINT", ["SIGINT"]),
    "serving, Ray dies once too often": (
        SERVING,
        [(at, e) for n in (0, 10, 20) for at, e in ((n + 3, nodes(2)), (n + 9, ray_lost("exit")))],
        75,
        "ray",
        ["lost"],
    ),
    "serving, stopped while a node is lost": (
        SERVING,
        [(3, nodes(2)), (9, nodes(dead=(2,))), (500, TICK), (501, TERM)],
        0,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "a given Ray falls silent: the job is stopped first": (
        goal(given=True),
        [*RUNNING, (125, TICK), (130, job("STOPPED"))],
        75,
        "ray",
        ["no status of the job for 120"],
    ),
    "a given Ray never takes the job, and must not take it later": (
        goal(given=True),
        [
            (3, nodes()),
            (9, waits("No available agent")),
            (123, TICK),
            (124, waits("stopped", canceled=True)),
        ],
        69,
        "ray",
        ["could not be submitted: No available agent"],
    ),
    "attempts are used up": (
        goal(retries=1),
        [
            *RUNNING,
            (9, ray_lost("exit 1")),
            (12, nodes()),
            (19, TICK),
            (20, accepted(2)),
            (21, job("RUNNING", attempt=2)),
            (30, ray_lost("exit 2")),
        ],
        75,
        "ray",
        ["exit 2"],
    ),
    "a job that fails by itself is its own verdict": (
        goal(retries=3),
        [*RUNNING, (9, job("FAILED", 75))],
        75,
        "job",
        ["exit code 75"],
    ),
    "asked to stop while a lost attempt stops": (
        goal(1, retries=1),
        [*PAIR, (9, nodes(dead=(2,))), (69, TICK), (70, TERM), (71, job("STOPPED"))],
        143,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "a runtime_env is at fault": (
        goal(),
        [*RUNNING, (9, job("FAILED", None, "runtime_env setup failed: no such package"))],
        78,
        "AGENT_RUNTIME_ENV",
        ["no such package"],
    ),
    "a traceback through Ray's agent is the runtime_env's fault all the same": (
        goal(),
        [*RUNNING, (9, job("FAILED", None, "runtime_env setup failed: runtime_env_agent.py"))],
        78,
        "AGENT_RUNTIME_ENV",
        [],
    ),
    "Ray's runtime_env agent died": (
        goal(),
        [
            *RUNNING,
            (9, job("FAILED", None, "runtime_env setup failed: Runtime Env Agent timed out in 10")),
        ],
        75,
        "job",
        ["timed out"],
    ),
}


@pytest.mark.parametrize(
    ("of", "history", "code", "culprit", "words"), ENDS.values(), ids=ENDS.keys()
)
def test_ends(of: HeadGoal, history: History, code: int, culprit: str, words: list[str]) -> None:
    """A history ends with its last event, with this code, for this reason."""
    assert Trace(of, history[:-1]).outcomes == []
    trace = Trace(of, history)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (code, culprit)
    assert [w for w in words if w not in end.reason] == []
    assert end.phase
    assert trace.state.phase is HeadPhase.LEAVING
    assert trace.state.outcome == end
    assert head.deadline(trace.state) is None


EXTERNAL = replace(
    WITH_REWARD.services[0],
    argv=None,
    url="http://me:hidden@10.0.0.9:9/get_reward?key=hidden",
    deadline_variable="AGENT_WAIT_REWARD",
)


@pytest.mark.parametrize(
    ("of", "history", "words"),
    [
        (goal(1), [(3, nodes()), (200, TICK)], ["EXPECTED_WORKERS", "AGENT_WAIT_WORKERS"]),
        (WITH_REWARD, [*SERVED, *DEATHS], ["See the end of reward-server.log"]),
        (WITH_REWARD, [(3, nodes()), (300, TICK)], ["reward-server.log, or raise "]),
        (
            replace(WITH_REWARD, services=(EXTERNAL,)),
            [(3, nodes()), (9, pending(REWARD, "connection refused")), (300, TICK)],
            ["Start it at http://10.0.0.9:9/get_reward, or correct AGENT_REWARD, or raise AGENT_W"],
        ),
    ],
)
def test_what_is_missing_has_a_remedy(of: HeadGoal, history: History, words: list[str]) -> None:
    """It names the variable, and where to look; a URL is named without its secrets."""
    end = Trace(of, history).state.outcome
    assert end is not None
    assert [w for w in words if w not in end.remedy] == []
    assert "hidden" not in end.remedy
