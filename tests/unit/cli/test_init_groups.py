"""`pod-agent init` for runs with groups, which it writes as the platform's own."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent.cli.command_line import main as agent
from support.stand_in_packages import ONE_FILE

if TYPE_CHECKING:
    from pathlib import Path

SLIME = ("slime-grpo", "--nodes", "4", "--gpus", "8")
OWN = ("--nodes", "3", "--gpus", "8", "--image", "ghcr.io/acme/rl:1")
COMMAND = ("--", "train", "--engines", "{addresses:engine|space}")
SERVICES = """\
[groups.rollout]
nodes = 1

[services.engine]
command = "exec serve --port {port}"
where = "rollout"
gpus = 2
ready.http = "http://{node_ip}:{port}/health"
"""


def written(folder: Path, *words: str) -> dict[str, str]:
    """Run the verb; return its text files by name."""
    one_file = folder.parent / "pod-agent"
    one_file.write_bytes(ONE_FILE)
    at = words.index("--") if "--" in words else len(words)
    options = ("--agent", str(one_file), "--to", str(folder))
    assert agent(["init", *words[:at], *options, *words[at:]]) == 0
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.name != "pod-agent"
    }


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """Run the verb, which must refuse and write nothing; return why."""
    at = words.index("--") if "--" in words else len(words)
    argv = ["init", *words[:at], "--to", str(folder / "made"), *words[at:]]
    assert agent(argv) == code
    assert not (folder / "made").exists()
    return capsys.readouterr().err


def directives(batch: str) -> list[list[str]]:
    """Return the options of each component of a batch script."""
    lines = re.findall(r"^#SBATCH (.+)$", batch, re.MULTILINE)
    components: list[list[str]] = [[]]
    for line in lines:
        if line == "hetjob":
            components.append([])
        else:
            components[-1] += shlex.split(line)
    return components


# --- Slurm -------------------------------------------------------------------------------------


def test_a_heterogeneous_job(tmp_path: Path) -> None:
    """The trainer's component comes first; one step runs over both, and no node ends the others."""
    slurm = ("slurm", *SLIME, "--container", "pyxis", "--partition", "h100", "--account", "rl")
    batch = written(tmp_path / "a", *slurm, "--group-nodes", "scavenge")["slime-grpo.sbatch"]
    trainer, rollout = directives(batch)
    common = {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--no-kill", "--account=rl"}
    assert common | {"--partition=h100", "--requeue"} <= {*trainer}
    assert common | {"--partition=scavenge"} <= {*rollout}
    step = "srun --het-group=0,1 --kill-on-bad-exit=0 --no-kill "
    assert step in batch


def test_a_component_of_one_node_is_avoided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm would end it with any lost node: ranks decide, unless its partition is another one."""
    slurm = ("slurm", "slime-grpo", "--nodes", "2", "--gpus", "8", "--container", "pyxis")
    batch = written(tmp_path / "a", *slurm)["slime-grpo.sbatch"]
    (only,) = directives(batch)
    assert {"--nodes=2", "--no-kill"} <= {*only}
    assert "\nsrun --kill-on-bad-exit=0 --no-kill " in batch
    assert "requeued" not in capsys.readouterr().out
    batch = written(tmp_path / "b", *slurm, "--group-nodes", "cheap")["slime-grpo.sbatch"]
    assert len(directives(batch)) == 2
    assert "Slurm ends a component of one node with any lost node" in capsys.readouterr().out


def test_a_job_without_groups_has_one_component(tmp_path: Path) -> None:
    """Nothing of it changes: a failed node ends the others at once."""
    words = ("slurm", "verl-grpo", "--nodes", "4", "--gpus", "8", "--container", "pyxis")
    batch = written(tmp_path / "a", *words)["verl-grpo.sbatch"]
    (only,) = directives(batch)
    assert {"--nodes=4", "--requeue"} <= {*only}
    assert "--no-kill" not in batch
    assert "--kill-on-bad-exit=1" in batch


# --- dstack, SkyPilot --------------------------------------------------------------------------

NODE_GROUP = {"name", "nodes", "resources", "commands", "ports"}
"""What dstack 0.22 knows of a node group."""
NOT_BESIDE_GROUPS = {"nodes", "commands", "ports", "entrypoint"}
JOB_GROUP = {"name", "execution", "primary_tasks", "termination_delay", "inter_connection"}
"""What SkyPilot 0.14 knows of a job group."""


def test_node_groups_of_dstack(tmp_path: Path) -> None:
    """Each has the nodes of its part; their machines and commands are the same."""
    text = written(tmp_path / "a", "dstack", *SLIME, "--volume", "v")["slime-grpo.dstack.yml"]
    task = yaml.safe_load(text)
    assert not task.keys() & (NOT_BESIDE_GROUPS | {"resources"})
    trainer, rollout = task["groups"]
    assert (trainer["name"], trainer["nodes"]) == ("trainer", 2)
    assert (rollout["name"], rollout["nodes"]) == ("rollout", 2)
    assert trainer.keys() == NODE_GROUP
    assert {trainer[key] == rollout[key] for key in ("resources", "commands")} == {True}


def test_an_image_with_a_user_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may not write to a volume: root runs it, or an image of the user's own where none can."""
    words = ("prime-rl", "--nodes", "4", "--gpus", "8")
    task = written(tmp_path / "a", "dstack", *words, "--volume", "v")["prime-rl.dstack.yml"]
    assert yaml.safe_load(task)["user"] == "root"
    sets = written(tmp_path / "b", "kubernetes", *words)["lws.yaml"]
    assert sets.count("securityContext: {runAsUser: 0}") == sets.count("- name: agent\n")
    own = written(tmp_path / "c", "dstack", *words, "--volume", "v", "--image", "ghcr.io/acme/rl:1")
    assert "user" not in yaml.safe_load(own["prime-rl.dstack.yml"])
    pods = ("runpod", *words, "--kind", "pods", "--volume", "v")
    assert "and root as its user" in refused(tmp_path, capsys, *pods)


def test_dstack_says_that_spot_is_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node group has no policy of its own, and a lost instance starts all nodes anew."""
    written(tmp_path / "a", "dstack", *SLIME, "--volume", "v", "--spot")
    assert "! --spot is for the nodes of all groups" in capsys.readouterr().out


def test_a_job_group_of_skypilot(tmp_path: Path) -> None:
    """Only the engines may be taken away; every task counts the nodes of all."""
    words = ("skypilot", *SLIME, "--center", "k8s", "--volume", "claim", "--spot")
    text = written(tmp_path / "a", *words)["slime-grpo.sky.yaml"]
    header, trainer, rollout = yaml.safe_load_all(text)
    assert header.keys() == JOB_GROUP
    assert (header["execution"], header["primary_tasks"]) == ("parallel", ["trainer"])
    assert header["inter_connection"] is True
    assert (trainer["name"], trainer["num_nodes"]) == ("trainer", 2)
    assert (rollout["name"], rollout["num_nodes"]) == ("rollout", 2)
    assert "use_spot" not in trainer["resources"]
    assert rollout["resources"]["use_spot"] is True
    assert rollout["resources"]["job_recovery"] == {"recover_on_exit_codes": [69, 75]}
    for task in (trainer, rollout):
        assert task["envs"]["EXPECTED_WORKERS"] == "3"
        assert task["volumes"] == {"/checkpoints": "claim"}
    assert trainer["run"] == rollout["run"]


def test_skypilot_on_a_cloud_has_one_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks have names for each other on Kubernetes alone; elsewhere ranks decide."""
    text = written(tmp_path / "a", "skypilot", *SLIME, "--volume", "s3://b")["slime-grpo.sky.yaml"]
    (task,) = yaml.safe_load_all(text)
    assert (task["name"], task["num_nodes"]) == ("slime-grpo", 4)
    assert "EXPECTED_WORKERS" not in task["envs"]
    assert "--center k8s" in capsys.readouterr().out


# --- Kubernetes --------------------------------------------------------------------------------


def env_of(lws: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a LeaderWorkerSet's pods."""
    (container,) = pod_of(lws)["containers"]
    return {item["name"]: str(item.get("value")) for item in container["env"]}


def pod_of(lws: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a LeaderWorkerSet."""
    pod: dict[str, Any] = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    return pod


def test_leader_worker_sets(tmp_path: Path) -> None:
    """The trainer's pods are started again together, each engine's pod alone."""
    words = ("kubernetes", *SLIME, "--group-nodes", "cloud.google.com/gke-spot=true")
    text = written(tmp_path / "a", *words)["lws.yaml"]
    trainer, rollout, _ = yaml.safe_load_all(text)
    assert trainer["metadata"]["name"] == "slime-grpo"
    assert trainer["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert rollout["metadata"]["name"] == "slime-grpo-rollout"
    assert rollout["spec"]["replicas"] == 2
    template = rollout["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (1, "None")
    own = {"AGENT_GROUP": "trainer", "EXPECTED_WORKERS": "3"}
    assert own.items() <= env_of(trainer).items()
    assert "AGENT_HEAD" not in env_of(trainer)
    own = {"AGENT_GROUP": "rollout", "AGENT_HEAD": "slime-grpo-0.slime-grpo"}
    assert own.items() <= env_of(rollout).items()
    assert env_of(rollout)["EXPECTED_WORKERS"] == "3"
    assert "nodeSelector" not in pod_of(trainer)
    assert pod_of(rollout)["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    (taint,) = pod_of(rollout)["tolerations"]
    assert taint["key"] == "cloud.google.com/gke-spot"


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob"])
def test_other_kinds_go_by_ranks(kind: str, tmp_path: Path) -> None:
    """Their controllers give ranks to all pods of the job."""
    files = written(tmp_path / "a", "kubernetes", *SLIME, "--kind", kind)
    assert "AGENT_GROUP" not in "".join(files.values())


# --- one's own command and file ----------------------------------------------------------------


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_file_of_ones_own(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups become the platform's; it is sent along to every node."""
    file = tmp_path / "mine.toml"
    file.write_text(SERVICES)
    option: tuple[str, ...] = ("--services", str(file))
    if named == "variable":
        monkeypatch.setenv("AGENT_SERVICES", str(file))
        option = ()
    words = ("slurm", *OWN, "--container", "pyxis", "--group-nodes", "cheap")
    slurm = written(tmp_path / "a", *words, *option, *COMMAND)
    assert slurm["services.toml"] == SERVICES
    batch = slurm["command.sbatch"]
    trainer, rollout = directives(batch)
    assert "--nodes=2" in trainer
    assert "--nodes=1" in rollout
    assert "export AGENT_SERVICES=$PWD/services.toml" in batch
    sky = written(tmp_path / "b", "skypilot", *OWN, "--center", "k8s", *option, *COMMAND)
    assert [task["name"] for task in yaml.safe_load_all(sky["command.sky.yaml"])][1:] == [
        "trainer",
        "rollout",
    ]
    manifest = written(tmp_path / "c", "kubernetes", *OWN, *option, *COMMAND)["lws.yaml"]
    *_, config = yaml.safe_load_all(manifest)
    assert config["data"]["services.toml"].strip() == SERVICES.strip()
    assert manifest.count("- {name: services, mountPath: /etc/pod-agent}") == 2


def test_every_job_reads_the_file(tmp_path: Path) -> None:
    """Also the rehearsal, and a recipe that brings no groups."""
    file = tmp_path / "judge.toml"
    file.write_text("[services.judge]\ncommand = 'exec serve'\nready.tcp = 9000\n")
    for job in ("rehearsal", "verl-grpo"):
        words = (job, "--nodes", "2", "--gpus", "8", "--services", str(file))
        files = written(tmp_path / job, "dstack", *words)
        task = yaml.safe_load(files[f"{job}.dstack.yml"])
        assert task["env"]["AGENT_SERVICES"] == "/opt/services.toml"
        assert "services.toml:/opt/services.toml" in task["files"]


def test_the_split_of_a_recipe_is_the_users(tmp_path: Path) -> None:
    """A file with one key changes it alone."""
    file = tmp_path / "mine.toml"
    file.write_text("[groups.rollout]\nnodes = 3\n")
    cheap = ("--group-nodes", "cheap")
    words = ("slurm", *SLIME, "--container", "pyxis", *cheap, "--services", str(file))
    trainer, rollout = directives(written(tmp_path / "a", *words)["slime-grpo.sbatch"])
    assert "--nodes=1" in trainer
    assert "--nodes=3" in rollout


def test_the_estimate_is_written_down(tmp_path: Path) -> None:
    """The platform is asked for so many nodes: other arguments must not change it later."""
    six = ("slime-grpo", "--nodes", "6", "--gpus", "8")
    words = ("slurm", *six, "--container", "pyxis", "--group-nodes", "cheap")
    for folder, model, nodes in (("a", "Qwen3-8B", 3), ("b", "Qwen3-30B-A3B", 4)):
        files = written(tmp_path / folder, *words, "--model", f"Qwen/{model}")
        _, rollout = directives(files["slime-grpo.sbatch"])
        assert f"--nodes={nodes}" in rollout
        assert files["services.toml"].endswith(f"[groups.rollout]\nnodes = {nodes}\n")
        assert "export AGENT_SERVICES=$PWD/services.toml" in files["slime-grpo.sbatch"]

    mine = tmp_path / "mine.toml"
    mine.write_text("[services.engine]\nready.within = '1h'\n")
    text = written(tmp_path / "c", *words, "--services", str(mine))["services.toml"]
    assert text.startswith(mine.read_text())
    assert text.endswith("[groups.rollout]\nnodes = 4\n")


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["runpod", "dstack", "skypilot"])
def test_engines_need_a_disk_of_all_nodes(
    platform: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They load each new model from it; without one no step would end."""
    error = refused(tmp_path, capsys, platform, *SLIME)
    assert "load each new model from a disk that all nodes share. Add --volume: " in error


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each refusal names the option, or the table of the file."""
    file = tmp_path / "mine.toml"
    file.write_text(SERVICES)
    given = ("--services", str(file))
    one = ("--nodes", "1", *OWN[2:])
    k8s = ("kubernetes", *SLIME, "--group-nodes")
    rows = [
        (("dstack", *one, *given, *COMMAND), "--nodes 1: no node trains beside 1 of rollout"),
        (("dstack", *OWN, "--group-nodes", "x", *COMMAND), "dstack has no --group-nodes"),
        (("kubernetes", *OWN, "--group-nodes", "a=b", *COMMAND), "the run has no groups"),
        ((*k8s, "spot"), "expected a label of nodes, LABEL=VALUE"),
        ((*k8s, "a=b", "--kind", "trainjob"), "has one kind of pods"),
        (("kuberay", *OWN, *given, *COMMAND), "kuberay has no --services"),
        (
            ("dstack", "search-r1-ppo", *OWN, *given),
            "search-r1-ppo writes a services.toml of its own",
        ),
    ]
    for words, expected in rows:
        assert expected in refused(tmp_path, capsys, *words), words
    file.write_text("[groups.rollout]\nmin = 1\n")
    lacks = "[groups.rollout] lacks nodes = 2, or as you like"
    assert lacks in refused(tmp_path, capsys, "slurm", *SLIME, "--container", "pyxis", *given)
    file.write_text(SERVICES.replace("gpus = 2", "gpus = 'two'"))
    assert "[services.engine]" in refused(
        tmp_path, capsys, "dstack", *OWN, *given, *COMMAND, code=78
    )
