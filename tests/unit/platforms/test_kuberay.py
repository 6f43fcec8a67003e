"""KubeRay: Ray is given, so its address is read from the platform."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.attempts import JobReport
from agent.decisions.durable import Durable, Succession
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_decide import first_state
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import Answered
from agent.plan.show import render
from agent.platforms.rank_variables import GivenRay
from agent.record.run_record import ChosenRun
from agent.run.make_goal import make_goal
from agent.run.run_store import RunStore
from agent.settings.redact import redactor_for
from support import heads
from support.captured import changed, plan_of, planned, read
from support.heads import FollowJob, SubmitJob, accepted, status_of
from support.run_records import NOW, record_of, submitted

EXAMPLE = Path(__file__).parents[3] / "examples" / "kuberay" / "rayjob.yaml"
START = "KUBERAY_GEN_RAY_START_CMD"
SERVICE = "rl-5v7kq-head-svc.default.svc.cluster.local"
LOCAL = GivenRay("KubeRay", "127.0.0.1", 6379, "http://127.0.0.1:8265", "/tmp/ray")
REMOTE = GivenRay("KubeRay", SERVICE, 6379, f"http://{SERVICE}:8265", None, "rl-8h2pd")


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("kuberay-head", LOCAL),
        (f"kuberay-head !{START}", LOCAL),
        (f"""kuberay-head {START}="ray start --head --block 'a stray quote" """, LOCAL),
        (
            (
                f"""kuberay-head {START}="ulimit -n 65536; ray start --head  --port=6380 """
                """ --dashboard-port=8080  --dashboard-host=10.0.0.5  --temp-dir=/data/ray"""
                r""" --resources='{\"a b\": 1}'" """
            ),
            GivenRay("KubeRay", "127.0.0.1", 6380, "http://10.0.0.5:8080", "/data/ray"),
        ),
        (
            f"kuberay-head {START}='ray start --head --dashboard-host=::1'",
            GivenRay("KubeRay", "127.0.0.1", 6379, "http://[::1]:8265", "/tmp/ray"),
        ),
        (
            "kuberay-head AGENT_RAY_PORT=6380 AGENT_DASHBOARD_PORT=8080",
            GivenRay("KubeRay", "127.0.0.1", 6380, "http://127.0.0.1:8080", "/tmp/ray"),
        ),
        ("kuberay-submitter-head", REMOTE),
        (f"kuberay-submitter-head RAY_DASHBOARD_ADDRESS={SERVICE}", REMOTE),
        (f"kuberay-submitter-head RAY_DASHBOARD_ADDRESS=http://{SERVICE}:8265", REMOTE),
        (
            "kuberay-submitter-head AGENT_RAY_PORT=6380 RAY_DASHBOARD_ADDRESS=https://[fd00::7]:44",
            GivenRay("KubeRay", "fd00::7", 6380, "https://[fd00::7]:44", None, "rl-8h2pd"),
        ),
    ],
)
def test_where_kuberays_ray_answers(line: str, given: GivenRay) -> None:
    """The head's own flags give it in its container; the dashboard's address in a submitter."""
    plan = planned(line)
    assert plan.topology.given_ray == given
    assert plan.own_ray is None
    assert plan.launch == given
    bridge = [process.argv[-2:] for process in plan.processes]
    assert bridge == ([(given.gcs, given.dashboard)] if plan.topology.is_head else [])


def test_addresses_with_colons_are_bracketed() -> None:
    """Ray's address has one meaning, IPv6 included."""
    assert GivenRay("KubeRay", "fd00::7", 6379, "").gcs == "[fd00::7]:6379"


@pytest.mark.parametrize(
    ("name", "run", "job"),
    [
        ("kuberay-head", None, "run-7-1"),
        ("kuberay-submitter-head", "rl-8h2pd", "rl-8h2pd"),
    ],
)
def test_the_submissions_id(name: str, run: str | None, job: str, tmp_path: Path) -> None:
    """A RayJob looks for its job by its own ID; elsewhere the run's ID is used."""
    plan = plan_of(*read(name))
    assert plan.topology.platform.run_id == run
    store = RunStore(tmp_path, "f" * 16, ChosenRun(run or "run-7", None))
    assert first_state(make_goal(plan, store, 0.0), store.durable).attempt.id == job
    store.close()


@pytest.mark.parametrize("later", ["rl-8h2pd-2", "an-id-of-another-version"])
def test_only_the_first_attempt_has_the_rayjobs_id(tmp_path: Path, later: str) -> None:
    """A killed agent's attempt is followed by the ID in run.json, and never submitted twice."""
    plan = plan_of(*read("kuberay-submitter-head"))

    def next_agents(left: Durable) -> tuple[HeadPhase, int, str]:
        chosen = ChosenRun("rl-8h2pd", record_of(left))
        how = Succession(replaces_agent=True, job_survives=True)
        store = RunStore(tmp_path, "f" * 16, chosen, how)
        state = first_state(make_goal(plan, store, 0.0), store.durable)
        store.close()
        return state.phase, state.attempt.number, state.attempt.id

    durable = submitted(Durable("rl-8h2pd"), id="rl-8h2pd")
    assert next_agents(durable) == (HeadPhase.RESUMING, 1, "rl-8h2pd")
    durable = durable.with_end(ends.RAY_LOST_ON_HEAD.outcome(evidence="it exited"), NOW)
    assert next_agents(durable) == (HeadPhase.BOOTING, 2, "rl-8h2pd-2")
    assert next_agents(submitted(durable, id=later)) == (HeadPhase.RESUMING, 2, later)


@pytest.mark.parametrize("name", ["kuberay-head", "kuberay-submitter-head", "kuberay-worker"])
def test_nothing_of_ray_is_planned(name: str) -> None:
    """No `ray start`, no port of Ray, no removal of a stale Ray: the operator owns these."""
    plan = plan_of(*read(name))
    text = render(plan, redactor_for(plan.environ, plan.settings))
    assert "ray start --block" not in text
    assert "stale" not in text
    assert {x.who for x in plan.listeners} <= {"agent", "reward server"}
    idle = name == "kuberay-worker"
    assert plan.topology.is_idle is idle
    assert (not plan.listeners, not plan.waits, not plan.findings) == (idle,) * 3


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ("", "disabled"),
        ("RAY_AUTH_TOKEN=0123456789abcdef", "token"),
        ("RAY_AUTH_MODE=token RAY_ENABLE_K8S_TOKEN_AUTH=true", "token"),
    ],
)
def test_the_token_mode_is_kuberays(changes: str, mode: str) -> None:
    """Kubernetes' own tokens, which are not our secret, also enable the mode."""
    environ = planned(f"kuberay-head {changes}").environment("10.0.0.5", "10.0.0.5")
    assert environ["RAY_AUTH_MODE"] == mode
    assert "RAY_ADDRESS" not in environ
    assert "NCCL_SOCKET_IFNAME" not in environ


def test_a_proxy_stays_out_of_the_way_to_ray() -> None:
    """Requests to the head's service bypass the proxy."""
    plan = planned("kuberay-submitter-head http_proxy=http://proxy:3128")
    found = plan.environment("10.0.0.5", "10.0.0.5")["no_proxy"].split(",")
    assert SERVICE in found


def test_the_example_is_a_rayjob_whose_submitter_is_the_agent() -> None:
    """The example parses; its two worker counts agree; its submitter's pod has a plan."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "# change (" not in text
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    (submitter,) = job["spec"]["submitterPodTemplate"]["spec"]["containers"]
    given = {x["name"]: x["value"] for x in submitter["env"]}
    replicas = sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    assert int(given["EXPECTED_WORKERS"]) == replicas
    images = {
        container["image"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for container in group["template"]["spec"]["containers"]
    }
    assert images == {submitter["image"]}
    assert submitter["command"][-1].splitlines()[-1] == "exec /opt/pod-agent/bin/pod-agent run"
    plan = plan_of(changed("kuberay-submitter-head", given), read("kuberay-submitter-head")[1])
    assert plan.job is not None
    assert plan.job.argv[1:3] == ("-m", "verl.trainer.main_ppo")
    assert plan.topology.expected_workers == replicas
    assert plan.settings.stop_grace == 90


GIVEN = replace(heads.goal(retries=2, given=True), submission_id="rl", asks_for_jobs=True)
NEW = Durable("rl")
"""Of a head whose log disk is gone: another may have submitted jobs to this Ray."""


def test_without_a_record_the_newest_job_of_the_run_is_followed() -> None:
    """Not the first, which has failed, while a later attempt runs."""
    trace = heads.Trace(GIVEN, [(1.0, heads.nodes())], NEW)
    assert trace.effects == [h.Ask(h.ListJobs("rl"))]
    trace.take(Answered(h.JobsListed(("rl", "rl-10", "rl-2", "rl-x", "rlx-77"))), 2.0)
    assert trace.effects[1:] == [FollowJob("rl-10")]
    assert [len(one.ended) for one in trace.persisted[:1]] == [9]
    trace.take(accepted(10), 3.0)
    trace.take(status_of(JobReport("SUCCEEDED", driver_exit_code=0), 10), 9.0)
    assert [end.exit_code for end in trace.outcomes] == [0]


def test_the_jobs_of_a_run_with_an_id_of_its_own_are_found() -> None:
    """Where the platform sets no id, the first attempt has a number, too."""
    run = replace(GIVEN, submission_id=None)
    trace = heads.Trace(run, [(1.0, heads.nodes())], NEW)
    assert trace.effects == [h.Ask(h.ListJobs("rl"))]
    trace.take(Answered(h.JobsListed(("rl", "rl-1", "rl-2", "rl-02", f"rl-{'9' * 5000}"))), 2.0)
    assert trace.effects[1:] == [FollowJob("rl-2")]
    assert [len(one.ended) for one in trace.persisted[:1]] == [1]


def test_a_followed_job_that_is_lost_is_followed_by_another_attempt() -> None:
    """Ray has listed the jobs: it is not asked again."""
    run = replace(GIVEN, expected_workers=1)
    trace = heads.Trace(run, [(1.0, heads.nodes(2)), (2.0, Answered(h.JobsListed(("rl",))))], NEW)
    trace.take(accepted(), 3.0)
    trace.take(heads.nodes(dead=(2,)), 4.0)
    trace.take(status_of(JobReport("FAILED", driver_exit_code=1)), 5.0)
    trace.take(Answered(h.NodesAsked("rl", {})), 6.0)
    assert [one.number for one in trace.state.durable.ended] == trace.progress_asked == [1]
    assert "the list of jobs" not in str([wait.what for wait in head.pending_waits(trace.state)])


def test_a_run_without_jobs_begins_once_ray_has_said_so() -> None:
    """The first attempt, by the id that the RayJob expects."""
    trace = heads.Trace(GIVEN, [(1.0, heads.nodes())], NEW)
    (wait,) = head.pending_waits(trace.state)
    assert wait.what == "the list of jobs of KubeRay's Ray"
    trace.take(Answered(h.JobsListed(())), 2.0)
    assert trace.effects[1:] == [SubmitJob("rl")]


def test_a_record_says_which_attempt_to_follow(tmp_path: Path) -> None:
    """Ray is asked only where there is none."""
    plan = plan_of(*read("kuberay-submitter-head"))
    store = RunStore(tmp_path, "f" * 16, ChosenRun("rl-8h2pd", None))
    assert make_goal(plan, store, 0.0).asks_for_jobs
    store.put(submitted(store.durable), 0.0)
    assert not make_goal(plan, store, 0.0).asks_for_jobs
    store.close()
