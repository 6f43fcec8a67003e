"""The requirements of each platform on its example: start, probes, stop and restart."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.base.ends import Kind, Outcome
from agent.job.services import Placeholders
from agent.job.services_file import parse
from agent.processes.probing import ReadinessProbe
from agent.record.outcome_file import RunFacts, outcome_text
from agent.record.run_record import AttemptOutcome
from agent.settings import load
from support.example_table import IN_THE_CONTAINER, make_pods, runtime_template
from support.fake_server import Answer, by_turns, fake_server
from support.free_ports import free_port
from support.launches import (
    EXAMPLES,
    TOKEN,
    Shell,
    directives,
    directives_of_components,
    documents,
    sbatch,
)
from support.worlds import settings_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

# --- Slurm -------------------------------------------------------------------------------------


NO_FACTS = RunFacts()
SCRIPTS = [f"slurm/{name}.sbatch" for name in ("plain", "apptainer", "pyxis", "amd")]
PLAIN_THEN_OTHERS = [
    SCRIPTS[0],
    *(pytest.param(script, marks=pytest.mark.slow) for script in SCRIPTS[1:]),
]


@pytest.mark.parametrize("path", SCRIPTS)
def test_slurm_starts_one_agent_a_node(path: str, tmp_path: Path) -> None:
    """One task per node, whose exit code is returned; a failed node ends the others."""
    assert directives(path)["ntasks-per-node"] == "1"
    late = (EXAMPLES / path).read_text(encoding="utf-8").partition("\nexport ")[2]
    assert "#SBATCH" not in late
    shell = Shell.make(tmp_path)
    assert sbatch(shell, path, code=7) == 7
    (step,) = [call for call in shell.calls() if call.program == "srun"]
    assert "--kill-on-bad-exit=1" in step.argv


def leave(tmp_path: Path, outcome: Outcome, facts: RunFacts = NO_FACTS) -> None:
    """Write the outcome where the head's node has it."""
    folder = tmp_path / "home" / "agent-logs" / "4711" / "gpu-000"
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(outcome_text(outcome, facts), encoding="utf-8")


@pytest.mark.parametrize("path", PLAIN_THEN_OTHERS)
@pytest.mark.parametrize(
    ("kind", "code", "restarts", "again"),
    [
        (Kind.LOST, 75, 0, True),
        (Kind.LOST, 143, 2, True),  # a node had to be killed, and its code is the higher one
        (Kind.LOST, 75, 3, False),
        (Kind.JOB_FAILED, 75, 0, False),
        (Kind.DONE, 0, 0, False),
        (None, 78, 0, False),
    ],
)
def test_slurm_requeues_what_was_lost(  # noqa: PLR0913 - a table's row
    path: str, kind: Kind | None, code: int, restarts: int, *, again: bool, tmp_path: Path
) -> None:
    """On 75 the job is requeued, up to three times; any other exit code is final."""
    shell = Shell.make(tmp_path)
    if kind is not None:
        leave(tmp_path, Outcome(kind, 0 if kind is Kind.DONE else 75, "why"))
    assert sbatch(shell, path, code, restarts) == code
    asked = [call.argv for call in shell.calls() if call.program == "scontrol"]
    assert asked == ([("requeue", "4711")] if again else [])
    assert "requeue" in directives(path)
    assert directives(path)["open-mode"] == "append"


@pytest.mark.parametrize(
    ("kind", "own", "of_srun", "code"),
    [
        (Kind.DONE, 0, 137, 0),
        (Kind.JOB_FAILED, 7, 137, 7),
        (Kind.LOST, 75, 143, 75),
        (None, 0, 78, 78),
    ],
)
def test_a_lost_node_of_a_group_is_no_failure(
    kind: Kind | None, own: int, of_srun: int, code: int, tmp_path: Path
) -> None:
    """Slurm goes on without it, and the job ends with the head's code, not with srun's."""
    path = "slurm/groups.sbatch"
    for component in directives_of_components(path):
        assert "no-kill" in component
        assert component["ntasks-per-node"] == "1"
    shell = Shell.make(tmp_path)
    if kind is not None:
        attempts = (AttemptOutcome(1, "2026-11-01", None, "a node is lost", 75),)
        leave(tmp_path, Outcome(kind, own, "why"), RunFacts(attempts=attempts))
    assert sbatch(shell, path, of_srun) == code
    calls = shell.calls()
    watch, step = sorted(
        (call for call in calls if call.program == "srun"),
        key=lambda call: "--overlap" not in call.argv,
    )
    assert {"--het-group=0", "--relative=1", "--gres=none"} <= {*watch.argv}
    assert not [name for name in watch.environ if name.startswith("SLURM_GPUS")]
    assert {"--het-group=0,1", "--no-kill", "--kill-on-bad-exit=0"} <= {*step.argv}
    asked = [call.argv for call in calls if call.program == "scontrol"]
    assert asked == ([("requeue", "4711")] if kind is Kind.LOST else [])


def test_pyxis_finds_the_token_in_its_container(tmp_path: Path) -> None:
    """The file that the agent's variable names is the mounted one."""
    shell = Shell.make(tmp_path)
    assert sbatch(shell, "slurm/pyxis.sbatch") == 0
    (step,) = [call for call in shell.calls() if call.program == "srun"]
    (mounts,) = [w for w in step.argv if w.startswith("--container-mounts=")]
    assert f"{tmp_path}/home/.config/pod-agent:/run/pod-agent:ro" in mounts
    assert step.environ["RAY_AUTH_TOKEN_FILE"] in IN_THE_CONTAINER
    assert f"{tmp_path}/home/pod-agent:/usr/local/bin/pod-agent:ro" in mounts
    assert f"--container-image={tmp_path}/home/image.sqsh" in step.argv


@pytest.mark.parametrize("missing", ["podman", "docker"])
def test_amd_hands_slurms_variables_into_the_container(missing: str, tmp_path: Path) -> None:
    """Both engines get every SLURM_* variable; variables that hide GPUs from Ray are dropped."""
    shell = Shell.make(tmp_path, missing)
    assert sbatch(shell, "slurm/amd.sbatch") == 0
    called = [call for call in shell.calls() if call.program in {"podman", "docker"}]
    assert {call.argv[:2] for call in called} >= {("image", "inspect")}
    engines = [call for call in called if call.argv[0] == "run"]
    assert {call.program for call in engines} == {"podman", "docker"} - {missing}
    for engine, agent in zip(engines, shell.agents(), strict=True):
        outside = {name for name in engine.environ if name.startswith("SLURM")}
        assert outside == {name for name in agent.environ if name.startswith("SLURM")}
        assert agent.environ["SLURM_NODEID"] == agent.place
        assert "ROCR_VISIBLE_DEVICES" in engine.environ.keys() - agent.environ.keys()
        assert {"/dev/dri", "/dev/kfd", "128G", "host"} <= set(engine.argv)


def test_amd_reports_a_missing_container_engine(tmp_path: Path) -> None:
    """A node without podman and docker gets an error message, and fails."""
    assert sbatch(Shell.make(tmp_path, "podman", "docker"), "slurm/amd.sbatch") == 127


# --- Kubernetes --------------------------------------------------------------------------------


def kubernetes_pods() -> dict[str, dict[str, Any]]:
    """Return the pod of every manifest."""
    group = documents("kubernetes/lws.yaml")[0]["spec"]["leaderWorkerTemplate"]
    job = documents("kubernetes/pytorchjob.yaml")[0]["spec"]["pytorchReplicaSpecs"]
    found = {
        "lws": group["workerTemplate"],
        "trainjob": runtime_template(documents("kubernetes/kubeflow-trainjob.yaml")[0]),
        "pytorchjob": job["Worker"]["template"],
    }
    return {name: template["spec"] for name, template in found.items()}


@pytest.mark.parametrize("name", ["lws", "trainjob", "pytorchjob"])
def test_kubernetes_is_more_patient_than_the_agent(name: str) -> None:
    """Probes use the agent's port with longer limits than the agent's; shared memory is mounted."""
    pod = kubernetes_pods()[name]
    (container,) = pod["containers"]
    env = {item["name"]: str(item.get("value")) for item in container["env"]}
    settings = load({k: v for k, v in env.items() if k.startswith("AGENT_")}).settings
    assert pod["terminationGracePeriodSeconds"] >= settings.stop_grace + 10
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > settings.wait_head
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in (startup, container["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/livez", "port": "agent"}
    assert ports == {"agent": 8266}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert set(mounts.values()) == set(volumes)


def test_who_restarts_what() -> None:
    """LWS restarts every ended container, so the pods hold; Kubeflow's jobs end for good."""
    group = documents("kubernetes/lws.yaml")[0]["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert "restartPolicy" not in kubernetes_pods()["lws"]
    assert kubernetes_pods()["trainjob"]["restartPolicy"] == "Never"
    job = documents("kubernetes/pytorchjob.yaml")[0]["spec"]
    assert {r["restartPolicy"] for r in job["pytorchReplicaSpecs"].values()} == {"Never"}
    assert job["runPolicy"]["cleanPodPolicy"] == "None"
    assert "readinessProbe" not in kubernetes_pods()["pytorchjob"]["containers"][0]


# --- the others --------------------------------------------------------------------------------


def test_dstack_forwards_the_dashboard() -> None:
    """The port that dstack forwards is the one on which the dashboard listens."""
    (task,) = documents("dstack/verl-grpo.dstack.yml")
    assert task["ports"] == [8265, 8266]
    assert task["resources"]["shm_size"]


def test_the_loop_ends_with_the_heads_code(tmp_path: Path) -> None:
    """The loop exits with the code of the head's agent; workers' output goes to files."""
    shell = Shell.make(tmp_path)
    given = {"RAY_AUTH_TOKEN": TOKEN, "STAND_IN_CODE": "7"}
    command = [*shell.loop(), "run", "--", "echo", "a b", "{nodes}"]
    assert shell.run(command, given) == 7
    assert {call.argv for call in shell.agents()} == {("run", "--", "echo", "a b", "{nodes}")}
    logs = {path.name for path in (tmp_path / "home").glob("*.log")}
    assert logs == {"10.0.0.6.log", "10.0.0.7.log"}


NO_REPLY = Answer(status=0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_loop_stops_every_machine(signum: int, tmp_path: Path) -> None:
    """On a stop signal it stops the containers, waits for them, and exits with the head's code."""
    shell = Shell.make(tmp_path)
    shell.environ.update(RAY_AUTH_TOKEN=TOKEN, STAND_IN_STAY="1", STAND_IN_CODE="143")
    with shell.started(shell.loop()) as loop:
        shell.wait_for_agents(3)
        loop.send_signal(signum)
        assert loop.wait(timeout=60) == 143
    stops = [call for call in shell.calls() if call.program == "docker" and call.argv[0] == "stop"]
    assert {call.place for call in stops} == {"10.0.0.5", "10.0.0.6", "10.0.0.7"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Answer(b"try later", 500), "try later"),
        (Answer(b"<html>"), "JSONDecodeError"),
        (Answer(b"{}"), "KeyError('id')"),
        (NO_REPLY, "RemoteDisconnected"),
        (Answer(b"no such GPU", 422), "no such GPU"),
    ],
)
def test_every_pod_is_terminated_after_a_broken_reply(
    reply: Answer,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The third pod fails, and so does the end of the first: the second is terminated too."""
    request = json.loads((EXAMPLES / "runpod/pod.json").read_text(encoding="utf-8"))
    request["env"]["EXPECTED_WORKERS"] = "2"
    (tmp_path / "pod.json").write_text(json.dumps(request), encoding="utf-8")
    script = make_pods()
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setenv("RUNPOD_API_KEY", "key")
    monkeypatch.setattr(sys, "argv", ["pods.py", "--no-secrets"])
    made = (Answer({"id": "a"}), Answer({"id": "b"}), reply)
    with fake_server(by_turns(*made, NO_REPLY, Answer(b"", 204))) as server:
        monkeypatch.setattr(script, "API", server.url)
        assert script.main() == 1
    asked = [f"{one.method} {one.path}" for one in server.asked]
    assert asked == ["POST /pods"] * 3 + ["DELETE /pods/a", "DELETE /pods/b"]
    printed = capsys.readouterr().err
    assert said in printed
    assert "whether a pod worker-2 was made" in printed
    assert "pod a may still bill" in printed
    assert "pod b is terminated" in printed


# --- Search-R1's retriever -----------------------------------------------------------------------


def test_every_node_has_the_services_file() -> None:
    """The repository's file is mounted at the path in AGENT_SERVICES."""
    (task,) = documents("skypilot/search-r1.yaml")
    wheel = "pod_agent-0.1.0-py3-none-any.whl"
    assert task["file_mounts"] == {
        f"/root/{wheel}": f"./{wheel}",
        task["envs"]["AGENT_SERVICES"]: "./services.toml",
    }
    assert "retriever.url=http://127.0.0.1:8000/retrieve" in task["envs"]["AGENT_JOB_ARGS"]


def test_the_example_asks_a_real_question(tmp_path: Path) -> None:
    """The example retriever answers the file's probe, and not before it is ready."""
    text = (EXAMPLES / "services/search-r1.toml").read_text(encoding="utf-8")
    port = free_port()
    asked, problems = parse(text.replace(":8000", f":{port}"), "s.toml", settings_of({}))
    assert problems == []
    probe = ReadinessProbe(
        asked.services[0].ready, Placeholders("127.0.0.1", "127.0.0.1"), tmp_path / "log"
    )
    assert anyio.run(probe.ask) == "connection refused"
    command = [sys.executable, "-m", "agent", "retriever", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as retriever:
        assert retriever.stderr is not None
        assert "listening" in retriever.stderr.readline()
        assert anyio.run(probe.ask) == ""
        retriever.terminate()
