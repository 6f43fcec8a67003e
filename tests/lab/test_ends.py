"""Every way for a job or a node to end: exit code, grace, no leftovers."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from support.scenario import AGENT, BOOT, RAY, Cluster, await_true, ends, last_line

CLEANS_UP = "trap 'echo cleaned up; exit 0' TERM; echo running; while :; do sleep 0.1; done"


@pytest.mark.pods(1)
def test_a_signal_gives_128_and_the_signal(cluster: Cluster) -> None:
    """A job killed by SIGKILL ends the run with 137."""
    head = cluster.agent(0, "sh", "-c", "kill -KILL $$")
    assert head.wait(BOOT) == 137, head.tail()
    assert cluster.outcome(0)["kind"] == "job-failed"
    assert "SIGKILL" in last_line(head)


@pytest.mark.pods(1)
def test_a_job_stopped_from_outside_gives_143(cluster: Cluster) -> None:
    """`ray job stop` by hand ends the run with 143; the job could clean up first."""
    head = cluster.agent(0, "sh", "-c", CLEANS_UP)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    job = next(p.name for p in (cluster.pods[0].tmp / "logs").iterdir() if p.name != "latest")
    dashboard = {"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265", "RAY_AUTH_MODE": "disabled"}
    stopped = head.exec([RAY, "job", "stop", "--no-wait", f"{job}-1"], env=dashboard, timeout=60)
    assert stopped.returncode == 0, stopped.stderr
    assert head.wait(40) == 143
    assert "cleaned up" in head.stdout()
    assert cluster.outcome(0)["kind"] == "stopped"


@pytest.mark.fault(
    "signals",
    "SIGTERM, SIGINT twice, `pod-agent stop`, or SIGUSR1",
    "143 or 130 on all nodes, within the grace, and nothing is left; the job receives SIGUSR1",
)
@pytest.mark.pods(2)
def test_sigterm_to_the_head_stops_all_within_the_grace(cluster: Cluster) -> None:
    """The job cleans up, head and worker end with 143 in time, and no process is left."""
    head, worker = cluster.agents("sh", "-c", CLEANS_UP)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    began = time.monotonic()
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 40) == [143, 143]
    assert time.monotonic() - began < 25
    assert "cleaned up" in head.stdout()
    assert cluster.outcome(0)["kind"] == cluster.outcome(1)["kind"] == "stopped"


@pytest.mark.fault("signals")
@pytest.mark.pods(2)
def test_stop_only_from_the_heads_node(cluster: Cluster) -> None:
    """`pod-agent stop` works like SIGTERM; without a token, only from the head's node."""
    head, worker = cluster.agents("sh", "-c", CLEANS_UP)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    refused = worker.exec([AGENT, "stop"], env=cluster.env, timeout=20)
    assert refused.returncode == 69
    assert "RAY_AUTH_TOKEN" in refused.stderr
    stopped = head.exec([AGENT, "stop"], env=cluster.env, timeout=40)
    # the command ends with the pod, when the first process exits
    assert "is being stopped" in stopped.stderr
    assert ends([head, worker], 10) == [143, 143]
    assert "cleaned up" in head.stdout()


@pytest.mark.fault(
    "worker-gone",
    "a worker is lost and does not return",
    "after AGENT_NODE_GRACE the job is stopped: another attempt, or 75 with its name",
)
@pytest.mark.pods(2)
def test_sigterm_to_a_worker(cluster: Cluster) -> None:
    """The worker ends with 143; the head waits AGENT_NODE_GRACE, then ends with 75."""
    cluster.env["AGENT_NODE_GRACE"] = "4s"
    head, worker = cluster.agents("sh", "-c", CLEANS_UP)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    assert worker.wait(25) == 143
    assert head.wait(40) == 75
    assert 4 < time.monotonic() - began < 20
    assert "podb" in last_line(head)
    assert "AGENT_NODE_GRACE" in last_line(head)
    assert "cleaned up" in head.stdout()
    assert cluster.outcome(0)["kind"] == "lost"


@pytest.mark.fault("signals")
@pytest.mark.pods(1)
def test_sigterm_while_booting(cluster: Cluster) -> None:
    """A stop while Ray boots takes effect at once."""
    head = cluster.agent(0, "true")
    head.wait_for("starting Ray", timeout=20)
    began = time.monotonic()
    head.signal(signal.SIGTERM)
    assert head.wait(20) == 143
    assert time.monotonic() - began < 10


@pytest.mark.fault("signals")
@pytest.mark.pods(1)
def test_a_second_sigint_kills(cluster: Cluster) -> None:
    """A second Ctrl-C ends everything at once with 130, although the job ignores signals."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"])
    deaf = "trap '' TERM INT; echo running; while :; do sleep 0.1; done"
    command = [AGENT, "run", "--", "sh", "-c", deaf]
    agent = idle.spawn(command, env={**cluster.env, "RUNPOD_POD_ID": pod.name})
    agent.wait_for("running", stream="stdout", timeout=BOOT)
    agent.signal(signal.SIGINT)
    agent.wait_for("stopping the job", timeout=10)
    agent.signal(signal.SIGINT)
    began = time.monotonic()
    assert agent.wait(10) == 130
    assert time.monotonic() - began < 3
    agent.wait_for("stopped: asked to stop by a second SIGINT \\(exit code 130\\)", timeout=5)
    assert (cluster.outcome(0)["kind"], cluster.outcome(0)["exit_code"]) == ("stopped", 130)
    await_true(
        "no process is left",
        lambda: all(p.zombie or "sleep infinity" in p.cmdline for p in idle.processes()),
        10,
    )


@pytest.mark.pods(1)
def test_hold_stops_all_but_the_agent(cluster: Cluster) -> None:
    """As RunPod's first process, the agent holds the pod: no Ray, no driver, no zombie.

    The job exits on SIGUSR1, which reaches it through the agent.
    """
    del cluster.env["AGENT_ON_DONE"]
    orphan = "trap 'exit 5' USR1; (setsid sleep 1000 &) ; (sleep 0.2 &) ; echo running; "
    head = cluster.agent(0, "sh", "-c", orphan + "while :; do sleep 0.1; done")
    head.wait_for("running", stream="stdout", timeout=BOOT)
    head.signal(signal.SIGUSR1)
    head.wait_for("holding the pod", timeout=BOOT)
    assert cluster.outcome(0)["exit_code"] == 5
    left = [p.cmdline for p in head.processes()]
    assert len(left) == 2, left
    assert all("pod-agent" in line for line in left), left
    assert not any(p.zombie for p in head.processes())
    status = head.exec([AGENT, "status"])
    assert "job-failed" in status.stdout, status.stderr
    head.signal(signal.SIGTERM)
    assert head.wait(10) == 5


@pytest.mark.pods(1)
def test_without_a_job_the_cluster_stays(cluster: Cluster) -> None:
    """AGENT_JOB=none boots, answers `status`, allows `ray job submit`, and ends with 0."""
    head = cluster.agent(0, env={"AGENT_JOB": "none", "DEBUG_RAY": "post-mortem"})
    head.wait_for("is up and stays", timeout=BOOT)
    status = head.exec([AGENT, "status", "--json"])
    assert '"phase": "running"' in status.stdout
    raylets = [p for p in head.processes() if p.name == "raylet"]
    assert [p.environ().get("RAY_DEBUG_POST_MORTEM") for p in raylets] == ["1"]
    assert "RAY_DEBUG" not in raylets[0].environ()
    head.signal(signal.SIGTERM)
    assert head.wait(25) == 0


@pytest.mark.fault(
    "ray-boot",
    "Ray's GCS is killed or hangs while it boots",
    "logged within 3 s; Ray is restarted in place at once, or after 30 s if it hangs",
)
@pytest.mark.pods(2)
def test_a_ray_killed_while_booting_is_restarted(cluster: Cluster) -> None:
    """GCS is killed during boot: `ray start` runs again, and the run continues.

    `ray start` itself needs 40 to 70 s to notice the loss.
    """
    head, worker = cluster.agents("sh", "-c", "exit 6")
    await_true("GCS is there", lambda: any(p.name == "gcs_server" for p in head.processes()), BOOT)
    gcs = next(p for p in head.processes() if p.name == "gcs_server")
    assert head.exec(["kill", "-9", str(gcs.pid)]).returncode == 0
    killed = time.monotonic()
    head.wait_for(
        r"Ray did not start: its gcs_server .* is gone.* starting it again: 1 of 2", timeout=20
    )
    assert time.monotonic() - killed < 4
    assert ends([head, worker], 150) == [6, 6]


@pytest.mark.fault("ray-boot")
@pytest.mark.pods(1)
def test_a_ray_that_hangs_while_booting_is_restarted(cluster: Cluster) -> None:
    """After 30 s without progress the wait is logged again, and Ray is started again."""
    head = cluster.agent(0, "true")
    await_true("GCS is there", lambda: any(p.name == "gcs_server" for p in head.processes()), BOOT)
    gcs = next(p for p in head.processes() if p.name == "gcs_server")
    assert head.exec(["kill", "-STOP", str(gcs.pid)]).returncode == 0
    stopped = time.monotonic()
    head.wait_for(r"its gcs_server \(pid \d+\) is stopped: ", timeout=10)
    assert time.monotonic() - stopped < 3
    head.wait_for(
        r"Ray did not start: its gcs_server .* is stopped for 30 s.*starting it again: 1",
        timeout=45,
    )
    assert head.wait(60) == 0


@pytest.mark.pods(2)
def test_a_failed_check_on_the_head_ends_its_workers(cluster: Cluster) -> None:
    """A taken port on the head also ends the worker at once, with the same sentence."""
    holder = cluster.pods[0].start([sys.executable, "-u", "-m", "http.server", "8265"])
    holder.wait_for("Serving HTTP")
    head, worker = cluster.agents("true")
    assert ends([head, worker], 20) == [78, 78]
    assert "on the head poda: ports: taken: 8265" in last_line(head)
    assert last_line(worker).split("refused: ")[1] == last_line(head).split("refused: ")[1]
    holder.kill()


@pytest.mark.fault(
    "worker-idle",
    "a worker is lost while no job runs (AGENT_JOB=none)",
    "the cluster keeps running, and the worker rejoins",
)
@pytest.mark.pods(2)
def test_a_worker_rejoins_a_cluster_without_a_job(cluster: Cluster) -> None:
    """AGENT_JOB=none: a lost worker does not end the run; it counts again after it rejoins."""
    cluster.env |= {"AGENT_JOB": "none", "AGENT_NODE_GRACE": "3s"}
    head, worker = cluster.agents()
    head.wait_for("is up and stays", timeout=BOOT)
    worker.signal(signal.SIGTERM)
    assert worker.wait(25) == 0
    head.wait_for("the cluster stays up, and the node can rejoin", timeout=30)
    gone = time.monotonic()
    await_true("the grace is over", lambda: time.monotonic() > gone + 6 or not head.running, 10)
    assert head.running, head.tail()
    again = cluster.agent(1)
    head.wait_for("all needed nodes are back", timeout=BOOT)
    head.signal(signal.SIGTERM)
    assert ends([head, again], 30) == [0, 0]


@pytest.mark.pods(2)
def test_a_restarted_pod_does_not_get_a_held_verdict(cluster: Cluster) -> None:
    """All pods restart, the worker first: it waits for the new head and runs with it."""
    del cluster.env["AGENT_ON_DONE"]
    head, worker = cluster.agents("sh", "-c", "exit 5")
    for agent in (head, worker):
        agent.wait_for("holding the pod", timeout=BOOT)
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 5
    again = cluster.agent(1, "sh", "-c", "exit 6")
    again.wait_for("it holds the verdict of an earlier run", timeout=30)
    assert again.running
    head.signal(signal.SIGTERM)
    assert head.wait(15) == 5
    cluster.env["AGENT_ON_DONE"] = "exit"
    second = cluster.agent(0, "sh", "-c", "exit 6")
    second_worker = again
    assert second.wait(BOOT) == 6
    second_worker.wait_for("holding the pod", timeout=30)
    second_worker.signal(signal.SIGTERM)
    assert second_worker.wait(15) == 6


@pytest.mark.pods(2, unpublished=("poda",))
def test_a_workers_port_answers_before_its_head_is_known(cluster: Cluster) -> None:
    """A platform's probes query the pod's address while the head's name does not resolve."""
    worker = cluster.agent(1, "true")
    worker.wait_for("does not resolve", timeout=30)
    url = f"http://{cluster.pods[1].decoy_ip}:8266/livez"
    code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).status)"
    await_true(
        "the port answers",
        lambda: worker.exec([sys.executable, "-c", code, url], timeout=20).stdout.strip() == "200",
        20,
    )
    assert worker.running
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 143
