"""The agents that each example starts: their arguments and environment.

Formats are parsed by their own parsers, and shell code is run by a shell, with stand-ins for
programs that would use the network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from support.clusters import CLUSTERS, WITH_GROUPS, address

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).parents[2]
EXAMPLES = REPO / "examples"
STAND_IN = REPO / "tests" / "support" / "stand_in.py"
TOKEN = "the-secret-of-the-cluster"  # noqa: S105 - what the platforms' stores of secrets give
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}
PROGRAMS = ("pod-agent", "srun", "docker", "podman", "apptainer", "ssh")
"""Those that run something: stand_in.py stands for them."""
ONLY_RECORDED = ("scontrol", "git", "pip", "python3", "sha256sum", "enroot")
RECORD = """#!/bin/sh
set -C  # no call replaces another
printf '%s\\0' "$STAND_IN_PLACE" "${0##*/}" "$@" >"$STAND_IN_NOTES/$$.call"
"""
FOLDERS = (
    *(
        "opt/Search-R1",
        "opt/OpenRLHF-M",
        "root/slime",
        "opt/pod-agent/lib/python3.12/site-packages",
    ),
    *("root", "workspace", "usr/local/bin"),
)
"""Folders of images and disks that the examples use."""
ONE_FILE = re.compile(r"\bsh /[\w./-]+/pod-agent\b")
INSTALLED = "/opt/pod-agent/bin/pod-agent"
ON_A_NODE = re.compile(r"(?<![\w$./])/(?=(?:opt|root|workspace|usr/local)/)")


@dataclass(frozen=True)
class Launch:
    """One node's agent as an example starts it."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    address: str
    is_first_process: bool = True


@dataclass(frozen=True)
class Call:
    """A call of a program, recorded by a stand-in."""

    program: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    place: str


def documents(path: str) -> list[Any]:
    """Read an example in YAML."""
    return list(yaml.safe_load_all((EXAMPLES / path).read_text(encoding="utf-8")))


# --- what a shell runs -------------------------------------------------------------------------


@dataclass(frozen=True)
class Shell:
    """A shell with the stand-ins first on PATH."""

    folder: Path
    environ: dict[str, str]

    @classmethod
    def make(cls, folder: Path, *missing: str) -> Shell:
        """Install the stand-ins, except those that this machine is to lack."""
        for name in ("bin", "notes", "home", *FOLDERS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in {*PROGRAMS, *ONLY_RECORDED} - {*missing}:
            program = folder / "bin" / name
            words = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), name])
            runs = f'#!/bin/sh\nexec {words} "$@"\n'
            program.write_text(runs if name in PROGRAMS else RECORD, encoding="utf-8")
            program.chmod(0o755)
        secrets = folder / "home" / ".config" / "pod-agent"
        secrets.mkdir(parents=True, exist_ok=True)
        (secrets / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
        if not (folder / "home/pod-agent").exists():
            (folder / "home/pod-agent").symlink_to(folder / "bin/pod-agent")
        environ = {
            "PATH": f"{folder / 'bin'}:{os.defpath}:/usr/bin",
            "HOME": str(folder / "home"),
            "STAND_IN_NOTES": str(folder / "notes"),
        }
        return cls(folder, environ)

    def here(self, script: str) -> str:
        """Return a script with a node's paths replaced by local ones."""
        own = str(self.folder / "bin/pod-agent")
        script = ONE_FILE.sub(f"sh {own}", script.replace(INSTALLED, own))
        return ON_A_NODE.sub(f"{self.folder}/", script)

    def run(self, words: list[str], environ: dict[str, str]) -> int:
        """Run a command; return its exit code."""
        given = {**self.environ, **environ}
        found = subprocess.run(words, env=given, cwd=self.folder / "home", check=False, timeout=60)
        return found.returncode

    @contextmanager
    def started(self, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command in the background, which must exit by itself; kill it otherwise."""
        where = self.folder / "home"
        with subprocess.Popen(words, env=self.environ, cwd=where, start_new_session=True) as found:
            try:
                yield found
            finally:
                if found.returncode is None:
                    os.killpg(found.pid, signal.SIGKILL)

    def loop(self) -> list[str]:
        """Return the command of the loop over ssh, beside a wheel."""
        place = self.folder / "home" / "loop.sh"
        place.write_bytes((EXAMPLES / "ssh/loop.sh").read_bytes())
        place.with_name("pod_agent-0.1.0-py3-none-any.whl").write_bytes(b"the wheel")
        return ["bash", str(place)]

    def wait_for_agents(self, count: int) -> None:
        """Wait until this many agents have started."""
        until = time.monotonic() + 60
        while len(self.agents()) < count:
            assert time.monotonic() < until, [call.program for call in self.calls()]
            time.sleep(0.05)

    def calls(self) -> list[Call]:
        """Return every recorded call; those of ONLY_RECORDED without their environment."""
        calls = []
        notes = self.folder / "notes"
        for note in notes.glob("*.json"):
            known = json.loads(note.read_text(encoding="utf-8"))
            argv = tuple(known["argv"])
            calls.append(Call(known["program"], argv, known["environ"], known["place"]))
        for note in notes.glob("*.call"):
            text = note.read_text(encoding="utf-8")
            if text:  # empty until it is written
                place, program, *words = text.split("\0")[:-1]
                calls.append(Call(program, tuple(words), {}, place))
        return sorted(calls, key=lambda call: call.place)

    def agents(self) -> list[Call]:
        """Return the agent's calls, ordered by node."""
        return [call for call in self.calls() if call.program == "pod-agent"]


# --- one reader per platform --------------------------------------------------------------------


def runpod_pods(folder: Path, bodies: list[dict[str, Any]]) -> list[Launch]:
    """Return the pods of requests for pods."""
    own = [  # RunPod sets a key of the pod's own
        {"RUNPOD_POD_ID": f"pod{rank}", "RUNPOD_API_KEY": "the-key-of-the-pod"}
        for rank in range(len(bodies))
    ]
    envs = [{**mine, **from_secrets(body["env"])} for mine, body in zip(own, bodies, strict=True)]
    return by_words(folder, shlex.split(bodies[0]["args"]), envs)


def by_words(folder: Path, words: list[str], envs: list[dict[str, str]]) -> list[Launch]:
    """Run a container's command once per node; return the agents that it started."""
    shell = Shell.make(folder)
    for rank, env in enumerate(envs):
        node = {**env, "STAND_IN_PLACE": str(rank)}
        assert shell.run([shell.here(word) for word in words], node) == 0
    return launched(shell, is_first_process=True)


def instant_cluster(folder: Path) -> list[Launch]:
    """Return the pods of an Instant Cluster."""
    body = json.loads((EXAMPLES / "runpod/instant-cluster.json").read_text(encoding="utf-8"))
    nodes, env = body["compute"]["podCount"], from_secrets(body["env"])
    envs = [{**env, **CLUSTERS["runpod-cluster"](rank, nodes)} for rank in range(nodes)]
    return by_words(folder, shlex.split(body["args"]), envs)


def dstack(folder: Path) -> list[Launch]:
    """Return the nodes of a dstack task: a shell runs its joined commands."""
    (task,) = documents("dstack/verl-grpo.dstack.yml")
    env = from_secrets(task["env"])
    return by_shell(folder, "dstack", task["nodes"], env, " && ".join(task["commands"]))


def dstack_groups(folder: Path) -> list[Launch]:
    """Return the nodes of a dstack task with groups, whose ranks follow their order."""
    (task,) = documents("dstack/groups.dstack.yml")
    scripts = [" && ".join(group["commands"]) for group in task["groups"]]
    assert [*dict.fromkeys(scripts)] == scripts[:1]
    nodes = sum(group["nodes"] for group in task["groups"])
    return by_shell(folder, "dstack", nodes, from_secrets(task["env"]), scripts[0])


def skypilot(folder: Path) -> list[Launch]:
    """Return the nodes of a SkyPilot task: a shell runs `run` on each."""
    (task,) = documents("skypilot/search-r1.yaml")
    assert task["secrets"] == {"RAY_AUTH_TOKEN": None}  # given on the command line
    env = {**task["envs"], "RAY_AUTH_TOKEN": TOKEN}
    script = f"{task['setup']}\n{task['run']}"
    return by_shell(folder, "skypilot", task["num_nodes"], env, script)


def job_group(folder: Path) -> list[Launch]:
    """Return the nodes of a SkyPilot job group: those of its first task, then of the second."""
    header, *tasks = documents("skypilot/groups.yaml")
    assert header["name"] == "slime-grpo"
    assert [task["name"] for task in tasks] == ["trainer", "rollout"]
    shell = Shell.make(folder)
    nodes = sum(task["num_nodes"] for task in tasks)
    for rank in range(nodes):
        task = tasks[rank // tasks[0]["num_nodes"]]
        own = WITH_GROUPS["skypilot, groups"](rank, nodes)
        given = {**task["envs"], "RAY_AUTH_TOKEN": TOKEN, **own, "STAND_IN_PLACE": str(rank)}
        script = f"{task['setup']}\n{task['run']}"
        assert shell.run(["bash", "-c", shell.here(script)], given) == 0
    return launched(shell, is_first_process=False)


def by_shell(
    folder: Path, platform: str, nodes: int, env: dict[str, str], script: str
) -> list[Launch]:
    """Run a script once per node, and return the agents that it started."""
    shell = Shell.make(folder)
    for rank in range(nodes):
        node = {**env, **CLUSTERS[platform](rank, nodes), "STAND_IN_PLACE": str(rank)}
        assert shell.run(["bash", "-c", shell.here(script)], node) == 0
    return launched(shell, is_first_process=False)


def launched(shell: Shell, *, is_first_process: bool) -> list[Launch]:
    """Return the agents that a shell's stand-ins recorded."""
    return [
        Launch(call.argv, call.environ, address(rank), is_first_process)
        for rank, call in enumerate(shell.agents())
    ]


def sbatch(shell: Shell, path: str, code: int = 0, restarts: int = 0) -> int:
    """Run a batch script on the first of the nodes that its directives request."""
    components = directives_of_components(path)
    nodes = sum(int(component["nodes"]) for component in components)
    build = CLUSTERS["slurm"] if len(components) == 1 else WITH_GROUPS["slurm, groups"]
    given = [build(rank, nodes) for rank in range(nodes)]
    steps = [{name: text for name, text in node.items() if "STEP" in name} for node in given]
    batch = {name: text for name, text in given[0].items() if name not in steps[0]}
    environ = {
        **batch,
        "SLURM_GPUS_ON_NODE": "8",
        "SLURMD_NODENAME": "gpu-000",
        "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "STAND_IN_NODES": json.dumps(given),
        "STAND_IN_CODE": str(code),
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }
    return shell.run(["bash", str(EXAMPLES / path)], environ)


def directives(path: str) -> dict[str, str]:
    """Parse the options of a batch script with one component."""
    (found,) = directives_of_components(path)
    return found


def directives_of_components(path: str) -> list[dict[str, str]]:
    """Parse the options of a batch script, which end at its first command, by component."""
    found: list[dict[str, str]] = [{}]
    for line in (EXAMPLES / path).read_text(encoding="utf-8").splitlines():
        if line.startswith("#SBATCH "):
            for word in shlex.split(line.removeprefix("#SBATCH "), comments=True):
                name, _, value = word.removeprefix("--").partition("=")
                if name == "hetjob":
                    found.append({})
                else:
                    found[-1][name] = value
        elif line and not line.startswith("#"):
            break
    return found


def pods(folder: Path, template: dict[str, Any], platform: str, nodes: int) -> list[Launch]:
    """Return the pods that a Kubernetes controller makes from one template."""
    (container,) = template["spec"]["containers"]
    given = variables(container)
    envs = [{**KUBERNETES, **given, **CLUSTERS[platform](rank, nodes)} for rank in range(nodes)]
    return by_words(folder, container["command"], envs)


def leader_worker_sets(folder: Path) -> list[Launch]:
    """Return the pods of a LeaderWorkerSet that trains and of one whose pods stand alone."""
    trainer, rollout = (
        one["spec"]
        for one in documents("kubernetes/groups.yaml")
        if one["kind"] == "LeaderWorkerSet"
    )
    assert rollout["leaderWorkerTemplate"]["size"] == 1
    trainers = trainer["leaderWorkerTemplate"]["size"]
    nodes = trainers + rollout["replicas"]
    envs = []
    commands = []
    for rank in range(nodes):
        template = (trainer if rank < trainers else rollout)["leaderWorkerTemplate"]
        (container,) = template["workerTemplate"]["spec"]["containers"]
        own = WITH_GROUPS["lws, groups"](rank, nodes)
        envs.append({**KUBERNETES, **variables(container), **own})
        commands.append(container["command"])
    assert commands == [commands[0]] * nodes
    return by_words(folder, commands[0], envs)


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables; optional secrets are missing."""
    env = {item["name"]: value(item) for item in container["env"]}
    return {name: text for name, text in env.items() if text is not None}


def value(item: dict[str, Any]) -> str | None:
    """Return a container's variable; an optional secret is missing."""
    if "value" in item:
        return str(item["value"])
    secret = item["valueFrom"]["secretKeyRef"]
    return None if secret.get("optional") else TOKEN


def from_secrets(env: dict[str, str]) -> dict[str, str]:
    """Fill in the values from a platform's secrets."""
    form = re.compile(r"\$?\{\{ (RUNPOD_SECRET_|secrets\.)ray_auth_token \}\}")
    return {name: form.sub(TOKEN, text) for name, text in env.items()}
