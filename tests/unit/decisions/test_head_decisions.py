"""The head's decisions: a history of events gives actions, log lines and an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from agent.decisions.shared import ItemReport, Step
from agent.frameworks.recipe import NodeSize
from agent.job.job import sizes
from agent.record.run_record import ChosenRun
from agent.run.make_goal import make_goal
from agent.run.run_store import RunStore
from support.event_words import cases
from support.heads import (
    HEAD,
    NODES,
    RETRIEVER,
    REWARD,
    SPECS,
    Trace,
    goal,
    nodes,
    reported,
    unfit,
)
from support.histories import Case, head_after, play
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

HAS_ENDED = (ItemReport(RETRIEVER, Step.LOST, "exit code 1"),)
MISFIT = Outcome(Kind.REFUSED, 78, "5 GPUs are not divisible by 2")
TAKEN = Outcome(Kind.REFUSED, 78, "port 8265 is taken", culprit="ports")
WORDS = {
    "inessential retriever": replace(
        goal(1), services=(replace(SPECS[RETRIEVER], essential=False, restarts=0),)
    ),
    "inessential server": replace(
        goal(), services=(replace(SPECS[REWARD], essential=False, restarts=0),)
    ),
    "named": replace(
        goal(services=(REWARD,)),
        job="train.py",
        gcs_port=6379,
        watch="ssh -L 8266:localhost:8266 pod0",
    ),
    "refused by its own checks": replace(goal(2), refusal=TAKEN),
    "it does not fit": unfit(MISFIT),
    "pod2 hangs": reported(2, "joining Ray", joined=False, detail="no route"),
    "pod2 prepares": reported(2, joined=False, preparing=True),
    "pod2 reports its end": reported(2, items=HAS_ENDED),
    "waits for Ray": (
        "3 nodes -> submit run-1 | 9 Ray delays it: No agent | 10 TERM -> stop run-1 | "
        "11 Ray delays it: No agent"
    ),
    "two Rays of pod2": h.RaySeen((*nodes(2).nodes, RayNode("again", NODES[2].ip))),
}

UNDER_WAY = cases(
    """\
nothing yet
    1 tick | phase booting
a list without the head is no Ray
    1 no Ray | phase booting
one machine
    3 nodes -> submit run-1 | phase submitting
a worker is missing [1 worker]
    3 nodes | phase booting
a worker joined [1 worker]
    3 nodes 2 -> submit run-1 | 4 pod2 joined | phase submitting
its word came first [1 worker]
    2 pod2 joined | 4 nodes 2 -> submit run-1 | phase submitting
in GCS, but not joined by its own word [1 worker]
    2 pod2 reports | 3 nodes 2 | phase booting
joined by hand [1 worker]
    3 nodes 2 -> submit run-1 | phase submitting
more than expected [1 worker]
    3 nodes 2 3 -> submit run-1 | phase submitting
a dead node does not count [1 worker]
    3 nodes dead 2 | phase booting
one address counts once [2 workers]
    3 two Rays of pod2 | phase booting
a worker that left does not count [1 worker]
    2 pod2 joined | 3 pod2 joined, has left | 4 nodes 2 | phase booting
a dead node came back [1 worker]
    3 nodes dead 2 | 4 nodes 3, dead 2 -> submit run-1 | phase submitting
the reward server is awaited [reward server]
    3 nodes | phase booting
the reward server answers [reward server]
    3 nodes | 5 ready reward server -> submit run-1 | phase submitting
Ray is awaited [reward server]
    5 ready reward server | phase booting
data is prepared [prepares]
    3 nodes | phase booting
data is there [prepares]
    3 nodes | 9 ready AGENT_PREPARE_EACH | 9 ready AGENT_PREPARE -> submit run-1
    phase submitting
a Ray that does not start is started again
    1 Ray dies: exit 1 -> start Ray, generation 2
    2 Ray dies: exit 1 -> start Ray, generation 3 | 3 nodes -> submit run-1 | phase submitting
a preparing worker has more time [1 worker, prepares]
    1 ready AGENT_PREPARE_EACH | 1 ready AGENT_PREPARE | 3 nodes | 190 pod2 prepares | 201 tick
    phase booting
one that prepares unheard has not [1 worker]
    3 nodes | 4 pod2 prepares
    201 tick -> end 69: workers not ready in time: …pod2 last reported: following the head
    phase leaving
going on with fewer [2 workers, at least 1]
    3 nodes 2 | 199 tick | 200 tick -> submit run-1 | phase submitting
with fewer, once the reward server answers [2 workers, at least 1, reward server]
    3 nodes 2 | 200 tick | 210 ready reward server -> submit run-1 | phase submitting
Ray does not take the job yet
    3 nodes -> submit run-1 | 4 Ray delays it: No available agent | phase submitting
the job runs
    alone | phase running
submitted is said twice
    alone | 9 accepted | phase running
a node is short [1 worker]
    pair | 9 nodes dead 2 | phase running
it is back in time [1 worker]
    pair | 9 nodes dead 2 | 60 nodes 2 | 70 job RUNNING | 100 tick | phase running
it is not back [1 worker]
    pair | 9 nodes dead 2 | 60 job RUNNING | 69 tick -> stop run-1 | phase stopping
more than needed may go [1 worker]
    3 nodes 2 3 -> submit run-1 | 4 accepted | 9 nodes 2 | 80 tick | phase running
the reward server is restarted [reward server]
    served | 9 lost reward server: exit code 1 -> start reward server, generation 2
    12 ready reward server | phase running
asked to stop
    alone | 9 TERM -> stop run-1 | phase stopping
asked to stop while submitting
    3 nodes -> submit run-1 | 4 TERM -> stop run-1 | phase stopping
submitted late, then silent for a while
    3 nodes -> submit run-1 | 110 accepted | 229 tick | phase running
serving [1 worker, no job]
    3 nodes 2 | 500000 tick | phase running
""",
    WORDS,
)
ON_THE_WAY = cases(
    """\
every change is a line that a person can grep [named]
    3 nodes | log Ray 10.0.0.1:6379 | 5 ready reward server -> submit run-1
    log reward server scored a test answer | log nodes 1 of 1 | 6 accepted
    log job train.py, attempt 1 of 1 | log watch ssh -L 8266:localhost:8266 pod0 | 7 job RUNNING
    9 lost reward server: exit code 1 -> start reward server, generation 2
    log reward server is down (exit code 1): restart 1 of 3 | 12 ready reward server
    13 TERM -> stop run-1 | log asked to stop by SIGTERM: stopping the job
    29 tick -> end 143: …SIGTERM | log the job did not stop in time
what a service printed last is in the log, and in the reason [reward server]
    3 nodes | 5 ready reward server -> submit run-1 | 6 accepted
    9 lost reward server: exit code 1, printed: no port -> start reward server, generation 2
    log reward server is down (exit code 1; last output: no port): restart 1 of 3
    waits waiting for the job's status from Ray, …
        & waiting for reward server, exit code 1; last output: no port (2 min left)
    12 pending reward server: connection refused
    waits waiting for the job's status from Ray, …
        & waiting for reward server, connection refused (117 s left)
what a step printed last is in the reason [prepares]
    3 nodes
    9 lost AGENT_PREPARE: exit code 2, printed: no set
        -> end 69: AGENT_PREPARE failed: exit code 2; last output: no set
what `ray start` printed last is in the log, and in the reason
    1 lost Ray: exit code 1, printed: no port -> start Ray, generation 2
    log Ray did not start: exit code 1; last output: no port; starting it again: 1 of 2
    waits waiting for Ray on this node, exit code 1; last output: no port (99 s left)
    2 lost Ray: exit code 1, printed: no port -> start Ray, generation 3
    3 lost Ray: exit code 1, printed: no memory
        -> end 69: Ray did not start: exit code 1; last output: no memory
# Nobody sent the SIGTERM for which it stands
a stop on request is named so
    alone | 9 stop by request -> stop run-1
    log asked to stop by `pod-agent stop` or the page: stopping the job
    10 job STOPPED -> end 143: …
nodes that join and leave are named, or given by address [2 workers]
    2 pod2 joined | 3 nodes 2 3 -> submit run-1 | log pod2 joined Ray | log 10.0.0.3 joined Ray
    4 nodes 3, dead 2 | log pod2 left Ray
a service that is not essential is done without [inessential server]
    3 nodes | 5 ready reward server -> submit run-1 | 6 accepted
    9 lost reward server: exit code 1 | 10 tick
    log reward server is lost for good: exit code 1; the run goes on without it
a service that is not essential is not waited for longer than its limit [inessential server]
    3 nodes | 300 tick -> submit run-1
a service that was given up on a worker is not started again [inessential retriever]
    1 pod2 joined -> start retriever on agent2 | 2 pod2 reports its end | 3 pod2 reports its end
    log the run goes on without it
# Only Ray's answer ends the wait for a job that it may still accept, or its grace
silence is no proof that a given Ray has no such job [given Ray]
    waits for Ray | 25.9 tick | 26 tick -> end 143: …
a given Ray has no such job [given Ray]
    waits for Ray | 12 Ray cancels it: stopped -> end 143: …
the loss of a service that is not essential is logged once [inessential server]
    served | 9 lost reward server: exit code 1 | 10 tick | 11 tick
    once the run goes on without it
every wait has its limit and the last evidence [1 worker, reward server, prepares]
    2 pending reward server: connection refused
    waits waiting for Ray on this node (98 s left)
        & waiting for reward server, connection refused (4 min 58 s left)
        & waiting for AGENT_PREPARE_EACH and AGENT_PREPARE (119 min 58 s left)
        & waiting for workers, 0 of 1 joined; 1 never reported (3 min 18 s left)
# Until GCS reports its loss, its data about that node is older than the agent's end
a node whose agent left is not counted for GCS still lists it [2 workers]
    2 pod2 joined | 3 nodes 2 | 4 pod2 replaced | 5 nodes 2 | alive nothing
a node whose agent left has joined anew [2 workers]
    2 pod2 joined | 3 nodes 2 | 4 pod2 replaced | 5 nodes | 6 nodes 2 | alive 10.0.0.2
a node whose agent left has another agent [2 workers]
    2 pod2 joined | 3 nodes 2 | 4 pod2 replaced | 5 pod2 joined | 6 nodes 2 | alive pod2
""",
    WORDS,
)
ENDS = cases(
    """\
Ray never starts
    1 pending Ray: connection refused by 10.0.0.1:6379
    100 tick -> end 69: Ray on this node not ready in time: connection refused by 10.0.0.1:6379
    culprit Ray on this node
Ray starts by half
    1 pending Ray: connection refused | 2 Ray opens
    100 tick -> end 69: Ray on this node not ready in time: GCS answered, the head's node is
        not in it yet
    culprit Ray on this node
a Ray that others start never comes [given Ray]
    1 pending Ray: connection refused
    100 tick -> end 69: KubeRay's Ray not ready in time: connection refused
    culprit KubeRay's Ray
a Ray that others start is not started again [given Ray]
    1 Ray dies: exit 1 -> end 69: …did not start: exit 1 | culprit ray
its own checks forbid it [refused by its own checks]
    0.5 tick -> end 78: port 8265 is taken | culprit ports
Ray ends at once, thrice
    1 Ray dies: exit 1 -> start Ray, generation 2
    2 Ray dies: exit 1 -> start Ray, generation 3
    3 Ray dies: exit 1 -> end 69: …did not start: exit 1 | culprit ray
Ray ends after its deadline
    101 Ray dies: exit 1 -> end 69: …did not start: exit 1 | culprit ray
a worker never comes [2 workers]
    3 nodes 2 | 4 pod2 joined as 1 | 200 tick -> end 69: …1 of 2 joined…no report from rank 2
    culprit workers
another cluster's node has a rank of this run [3 workers]
    3 nodes 2 3 | 4 pod2 joined as 1 | 5 pod3 joined as 1
    200 tick -> end 69: …no report from rank 2 and 3; rank 1 is reported by pod2…a node of
        another cluster has…
    culprit workers
another cluster's node has a rank beyond those of this run [2 workers]
    3 nodes 2 | 4 pod2 joined as 7
    200 tick -> end 69: …reports rank 7, beyond the last, 2: a node of another cluster has this
        head's address…
    culprit workers
a worker without rank never comes [2 workers]
    3 nodes 2 | 200 tick -> end 69: …1 of 2 joined…1 never reported | culprit workers
a worker hangs [1 worker]
    3 nodes | 4 pod2 hangs
    200 tick -> end 69: …0 of 1 joined; pod2 last reported: joining Ray, no route
    culprit workers
a worker was refused [1 worker]
    3 nodes | 4 pod2 reports, refused (version mismatch)
    200 tick -> end 69: …pod2 was refused: version mismatch | culprit workers
a worker prepares for ever [1 worker]
    3 nodes | 4 pod2 reports: AGENT_PREPARE_EACH pending | 7200 tick -> end 69: …pod2…
    culprit workers
fewer than the least [3 workers, at least 2]
    3 nodes 2 | 200 tick -> end 69: …1 of 3 joined… | culprit workers
the reward server dies early [reward server]
    1 lost reward server: exit code 1 -> end 69: …ended before it was ready…exit code 1
    culprit reward server
the reward server talks nonsense [reward server]
    3 nodes | 9 pending reward server: its reply is not JSON
    300 tick -> end 69: …not ready in time: its reply is not JSON | culprit reward server
data fails [prepares]
    3 nodes | 9 lost AGENT_PREPARE: exit code 2 -> end 69: AGENT_PREPARE failed: exit code 2
    culprit AGENT_PREPARE
every node's step fails on the head [prepares]
    3 nodes
    9 lost AGENT_PREPARE_EACH: exit code 2 -> end 69: AGENT_PREPARE_EACH failed: exit code 2
    culprit AGENT_PREPARE_EACH
data takes too long [prepares]
    3 nodes | 7200 tick -> end 69: …not ready in time…
    culprit AGENT_PREPARE_EACH and AGENT_PREPARE
stopped while booting [1 worker]
    3 nodes | 4 TERM -> end 143: …SIGTERM | culprit SIGTERM
interrupted while booting [1 worker]
    4 INT -> end 130: …SIGINT | culprit SIGINT
Ray never takes the job
    3 nodes -> submit run-1 | 9 Ray delays it: No available agent
    123 tick -> end 69: …could not be submitted: No available agent | culprit ray
Ray refuses the job
    3 nodes -> submit run-1 | 9 Ray refuses it: bad runtime_env -> end 78: …bad runtime_env
    culprit AGENT_RUNTIME_ENV
Ray dies under the submission
    3 nodes -> submit run-1 | 4 Ray dies: exit 1 -> end 75: Ray was lost on the head: exit 1
    culprit ray
the job succeeds
    alone | 9 job SUCCEEDED 0 -> end 0: …succeeded
the job fails
    alone | 9 job FAILED 7 -> end 7: …exit code 7 | culprit job
the job is killed
    alone | 9 job FAILED -9 -> end 137: …SIGKILL… | culprit job
the job is stopped from outside
    alone | 9 job STOPPED -> end 143: …stopped from outside | culprit job
the job dies without a code
    alone | 9 job FAILED: driver died -> end 75: …driver died | culprit job
Ray dies under the job
    alone | 9 Ray dies: exit 1 -> end 75: …exit 1 | culprit ray
Ray falls silent
    alone | 125 tick -> end 75: …no status of the job for 120… | culprit ray
a node is lost for good [1 worker]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1
    70 job STOPPED -> end 75: lost a needed node (0 of 1 joined…AGENT_NODE_GRACE | culprit node
the job ends by itself after a loss [1 worker]
    pair | 9 nodes dead 2
    20 job FAILED 1 -> end 1: …exit code 1…before that, lost a needed node… | culprit job
the reward server is lost for good [reward server]
    served | 10 lost reward server: exit code 1 -> start reward server, generation 2
    20 lost reward server: exit code 1 | 21 tick -> start reward server, generation 3
    30 lost reward server: exit code 1 | 32 tick -> start reward server, generation 4
    90 lost reward server: exit code 1 -> stop run-1
    91 job STOPPED -> end 69: …lost for good: exit code 1 | culprit reward server
a restarted reward server never answers [reward server]
    served | 10 lost reward server: exit code 1 -> start reward server, generation 2
    100 job RUNNING | 130 tick -> stop run-1 | 131 job STOPPED -> end 69: …lost for good…
    culprit reward server
stopped while running
    alone | 9 TERM -> stop run-1 | 11 job STOPPED -> end 143: …SIGTERM | culprit SIGTERM
interrupted while running
    alone | 9 INT -> stop run-1 | 10 TERM | 11 job SUCCEEDED 0 -> end 130: …SIGINT
    culprit SIGINT
a job that does not stop
    alone | 9 TERM -> stop run-1 | 25 tick -> end 143: … | culprit SIGTERM
Ray dies while stopping
    alone | 9 TERM -> stop run-1 | 10 Ray dies: exit 1 -> end 143: … | culprit SIGTERM
stopped before Ray took it
    3 nodes -> submit run-1 | 4 TERM -> stop run-1
    5 Ray cancels it: stopped before Ray took it -> end 143: … | culprit SIGTERM
serving, stopped [1 worker, no job]
    3 nodes 2 | 9 TERM -> end 0: …SIGTERM | culprit SIGTERM
serving, interrupted while booting [1 worker, no job]
    9 INT -> end 0: …SIGINT | culprit SIGINT
serving, Ray dies once too often [1 worker, no job]
    3 nodes 2 | 9 Ray dies: exit -> start Ray, generation 2 | 13 nodes 2
    19 Ray dies: exit -> start Ray, generation 3 | 23 nodes 2
    29 Ray dies: exit -> end 75: …lost… | culprit ray
serving, stopped while a node is lost [1 worker, no job]
    3 nodes 2 | 9 nodes dead 2 | 500 tick | 501 TERM -> end 0: …SIGTERM | culprit SIGTERM
a given Ray falls silent: the job is stopped first [given Ray]
    alone | 125 tick -> stop run-1 | 130 job STOPPED -> end 75: …no status of the job for 120…
    culprit ray
a given Ray never takes the job, and must not take it later [given Ray]
    3 nodes -> submit run-1 | 9 Ray delays it: No available agent | 123 tick -> stop run-1
    124 Ray cancels it: stopped -> end 69: …could not be submitted: No available agent
    culprit ray
attempts are used up [1 retry]
    alone | 9 Ray dies: exit 1 -> start Ray, generation 2 | 12 nodes | 19 tick -> submit run-2
    20 accepted 2 | 21 job RUNNING, attempt 2 | 30 Ray dies: exit 2 -> end 75: …exit 2
    culprit ray
a job that fails by itself is its own verdict [3 retries]
    alone | 9 job FAILED 75 -> end 75: …exit code 75 | culprit job
asked to stop while a lost attempt stops [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 70 TERM
    71 job STOPPED -> end 143: …SIGTERM | culprit SIGTERM
a runtime_env is at fault
    alone | 9 job FAILED: runtime_env setup failed: no such package -> end 78: …no such package
    culprit AGENT_RUNTIME_ENV
a traceback through Ray's agent is the runtime_env's fault all the same
    alone | 9 job FAILED: runtime_env setup failed: runtime_env_agent.py -> end 78: …
    culprit AGENT_RUNTIME_ENV
Ray's runtime_env agent died
    alone | 9 job FAILED: runtime_env setup failed: Runtime Env Agent timed out in 10
        -> end 75: …timed out…
    culprit job
a job that does not fit what joined
    3 nodes -> submit run-1 | 4 it does not fit -> end 78: 5 GPUs are not divisible by 2
only a job's own end is worth a hold
    alone | 9 job FAILED 7 -> end 7: … | marks is_jobs_verdict & holds_pod
an end on request is not
    alone | 9 TERM -> stop run-1 | 25 tick -> end 143: … | marks nothing
""",
    WORDS,
)


@pytest.mark.parametrize("case", (rows := UNDER_WAY | ON_THE_WAY | ENDS).values(), ids=rows)
def test_histories(case: Case) -> None:
    """A history of events gives these actions, lines, phases and ends, and no others."""
    play(case)


def test_nodes_of_a_large_run_are_logged_together() -> None:
    """Up to 16 nodes each have a line; beyond that, those of one second share one."""
    few = Trace(goal(15), [(3, nodes(*range(2, 17)))])
    assert few.log.count(" joined Ray") == 15

    many = head_after(goal(17), "3 nodes 2 3 | 3.5 nodes 2 3 4 | 3.9 tick")
    assert " joined Ray" not in many.log
    assert head.deadline(many.state) == 4.0
    many = head_after(goal(17), "3 nodes 2 3 | 3.5 nodes 2 3 4 | 4 tick", (5, nodes(*range(2, 15))))
    assert many.log.splitlines().count("10.0.0.2, 10.0.0.3 and 10.0.0.4 joined Ray") == 1
    assert many.log.count(" joined Ray") == 1

    # Nobody waits for the line once all are there.
    many = head_after(goal(17), "3 nodes 2 3 | 3.5 nodes 2 3 4 | 4 tick", (5, nodes(*range(2, 19))))
    last = next(line for line in many.log.splitlines() if "10.0.0.5" in line)
    assert last.endswith("10.0.0.12 and 6 more joined Ray")


FEW = RayNode("few", "10.0.0.9", gpus=4.0)
DEAD = RayNode("dead", "10.0.0.8", gpus=1.0, alive=False)
BARE = replace(HEAD, gpus=0.0)


@pytest.mark.parametrize(
    ("there", "counted"),
    [
        pytest.param((*nodes(2).nodes, FEW, DEAD), (3, 4, 20), id="the fewest GPUs count"),
        pytest.param((BARE, NODES[2], NODES[3]), (2, 8, 16), id="a head without is left out"),
        pytest.param((BARE, replace(NODES[2], gpus=0.0)), (2, 0, 0), id="none has any"),
    ],
)
def test_what_a_job_is_sized_by(there: tuple[RayNode, ...], counted: tuple[int, int, int]) -> None:
    """The nodes that count, the fewest GPUs of one, and all GPUs; dead nodes do not count."""
    trace = Trace(goal(2), [(3, h.RaySeen(there))])
    assert sizes([node.gpus for node in trace.state.nodes()]) == counted


def test_a_size_has_cpus_and_memory_too() -> None:
    """A recipe is made of them."""
    sized = RayNode("id1", "10.0.0.1", is_head=True, gpus=5.0, cpus=12.0, memory=2.0**30)
    trace = Trace(goal(), [(3, h.RaySeen((sized,)))])
    assert trace.state.nodes() == (NodeSize(5, 12, 1 << 30),)


@pytest.mark.parametrize(
    ("command", "environ", "is_sized"),
    [
        (["train", "--nnodes={nodes}"], {}, True),
        (["train", "--gpus", "{gpus_per_node}"], {}, True),
        (["sh", "-c", "exec train {total_gpus}"], {}, True),
        (["train", "{head_ip}", "{checkpoints}", "{attempt}"], {}, False),
        (None, {"AGENT_JOB": "rehearsal"}, True),
        (None, {"AGENT_JOB": "none"}, False),
        (["train.py"], {"AGENT_LAUNCHER": "torchrun"}, True),
    ],
)
def test_a_job_is_sized_for_its_nodes(
    command: list[str] | None, environ: dict[str, str], *, is_sized: bool, tmp_path: Path
) -> None:
    """A recipe, a node or GPU placeholder, and torchrun are sized; other commands are not."""
    plan = plan_of(environ, command=command)
    store = RunStore(tmp_path, "f" * 16, ChosenRun("run", None))
    assert make_goal(plan, store, 0.0).is_sized_to_nodes is is_sized
    store.close()


EXTERNAL = replace(
    SPECS[REWARD],
    argv=None,
    url="http://me:hidden@10.0.0.9:9/get_reward?key=hidden",
    deadline_variable="AGENT_WAIT_REWARD",
)
AT = "Start it at http://10.0.0.9:9/get_reward, or correct AGENT_REWARD, or raise AGENT_W"


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("a worker never comes", ["EXPECTED_WORKERS", "AGENT_WAIT_WORKERS"]),
        ("the reward server is lost for good", ["See the end of reward-server.log"]),
        ("the reward server talks nonsense", ["reward-server.log, or raise "]),
    ],
)
def test_what_is_missing_has_a_remedy(title: str, words: list[str]) -> None:
    """It names the variable, and where to look."""
    (end,) = play(ENDS[title]).outcomes
    assert [w for w in words if w not in end.remedy] == []


def test_the_remedy_names_an_url_without_its_secrets() -> None:
    """Of a reward server that the agent does not run."""
    trace = head_after(
        replace(goal(), services=(EXTERNAL,)),
        "3 nodes | 9 pending reward server: connection refused | 300 tick",
    )
    (end,) = trace.outcomes
    assert AT in end.remedy
    assert "hidden" not in end.remedy
