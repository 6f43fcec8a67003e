"""Runs are started in pods by the files that `init` writes.

Each test prints what it replaces, which only the platform has: the rest is what a user gets.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from support.scenario import AGENT, BOOT, ENVIRONMENT, await_true, dstack, ends
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from support.scenario import Cluster
    from tools.lab import Container

ON_POD = {
    "/opt/": "/tmp/opt/",  # pods share all of the machine's disk but /tmp
    "/usr/local/bin/": "/tmp/bin/",
    "/workspace": "/tmp/workspace",
    "/checkpoints": "/tmp/checkpoints",
    "ray[default]==2.52.0": "ray[default]",  # the lab's Python has another one
}
"""What is replaced in every file: places on the disk, and the version of Ray."""
PATHS = {"PATH": f"{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin", "PIP_NO_INDEX": "1"}


def written(folder: Path, *words: str) -> None:
    """Have `init` write the files of the rehearsal."""
    argv = [AGENT, "init", *words, "--nodes", "2", "--to", str(folder)]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)


def replaced(text: str, further: Mapping[str, str] = ON_POD) -> str:
    """Replace what only the platform has; print each replacement."""
    for before, after in further.items():
        if before in text:
            print(f"replaced: {before} by {after}")
            text = text.replace(before, after)
    return text


def succeed(containers: list[Container]) -> None:
    """Check that the rehearsal has succeeded on both nodes."""
    assert ends(containers, 2 * BOOT) == [0, 0], containers[0].tail()
    assert "step 40/40" in containers[0].stdout()
    assert "nodes          2 of 2" in containers[0].stderr()


@pytest.mark.pods(2)
def test_dstack(cluster: Cluster, tmp_path: Path) -> None:
    """The task's commands run on each node with dstack's variables and files."""
    written(tmp_path, "dstack", "rehearsal")
    task = yaml.safe_load(replaced((tmp_path / "rehearsal.dstack.yml").read_text()))
    secret = {"${{ secrets.ray_auth_token }}": SECRET}
    env = {name: replaced(str(value), secret) for name, value in task["env"].items()}

    containers = []
    for rank, pod in enumerate(cluster.pods):
        for given in task["files"]:
            name, _, place = given.rpartition(":")
            target = pod.tmp / place.removeprefix("/tmp/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((tmp_path / name).read_bytes())
        (pod.tmp / "bin").mkdir()
        script = "\n".join(["set -e", *task["commands"]])
        containers.append(
            pod.start(["bash", "-c", script], env={**PATHS, **env, **dstack(cluster.pods, rank)})
        )
    cluster.started.extend(containers)
    succeed(containers)


@pytest.mark.pods(2)
def test_runpod(cluster: Cluster, tmp_path: Path) -> None:
    """Each pod runs the request's command; pods.py sends both of them the agent."""
    written(tmp_path, "runpod", "rehearsal")
    request = json.loads(replaced((tmp_path / "pod.json").read_text()))
    ends_itself = {"stop-pod": "exit"}  # there is no RunPod that could stop the pod
    secret = {"{{ RUNPOD_SECRET_ray_auth_token }}": SECRET}
    further = {**ends_itself, **secret}
    env = {
        name: value if name == "RECEIVE_AGENT" else replaced(value, further)
        for name, value in request["env"].items()
    }

    # What pods.py asks RunPod for: the head's pod, then a worker's with the head's id.
    containers = []
    head = cluster.pods[0].name
    for pod in cluster.pods:
        own = {"RUNPOD_POD_ID": pod.name}
        if pod.name != head:
            own["HEAD_POD_ID"] = head
        (pod.tmp / "bin").mkdir()
        argv = shlex.split(request["args"])
        containers.append(pod.start(argv, env={**PATHS, **env, **own}))
    cluster.started.extend(containers)

    # It sends the agent when the image is there.
    proxy = {"https://{pod}-8266.proxy.runpod.net": "http://{pod}.runpod.internal:8266"}
    program = cluster.pods[0].tmp / "request" / "pods.py"
    program.parent.mkdir()
    program.write_text(replaced((tmp_path / "pods.py").read_text(), proxy))
    for wheel in tmp_path.glob("*.whl"):
        (program.parent / wheel.name).write_bytes(wheel.read_bytes())
    await_true(
        "the pod waits for the agent",
        lambda: "waiting for the agent" in containers[0].stdout(),
        BOOT,
    )
    names = [pod.name for pod in cluster.pods]
    sent = containers[0].exec(
        ["python3", "/tmp/request/pods.py", "--send", *names], env=PATHS, timeout=BOOT
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert sent.stdout.count("has the agent") == 2
    succeed(containers)
