"""The agent, Ray and the job of an ordinary user, from a directory that the user owns."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import AGENT, BOOT, REPO, Cluster, ends, read_outcome

if TYPE_CHECKING:
    from tools.lab import Container, Pod

USER = 10001
JOB = """
import os, time, ray
ray.init()
print("uid", os.getuid(), ray.get(ray.remote(lambda: os.getuid()).remote()), flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
"""


def open_homes() -> str:
    """Return commands that let the user reach agent and Python where they lie in a private folder.

    They cover that folder, such as /root, in the container's own view of the file system.
    """
    commands = ""
    for number, path in enumerate({REPO, Path(sys.prefix), Path(sys.base_prefix).resolve()}):
        private = [above for above in path.parents if not above.stat().st_mode & stat.S_IXOTH]
        if private:
            kept = f"/run/kept-{number}"
            commands += f"mkdir {kept}; mount --bind {path} {kept}; "
            commands += f"mount -t tmpfs -o mode=755 none {private[-1]}; "
            commands += f"mkdir -p {path}; mount --bind {kept} {path}; "
    return commands


def agent(cluster: Cluster, pod: Pod) -> Container:
    """Start the agent as the user, with nothing set of where it writes."""
    home = pod.tmp / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    drop = f"exec setpriv --reuid={USER} --regid={USER} --clear-groups"
    command = [AGENT, "run", "--", sys.executable, "-c", JOB]
    env = {name: text for name, text in cluster.env.items() if name != "AGENT_LOG_DIR"}
    container = pod.start(
        ["unshare", "--mount", "sh", "-ec", f"{open_homes()}{drop} {shlex.join(command)}"],
        env={**env, "RUNPOD_POD_ID": pod.name, "HOME": "/tmp/home"},
        cwd="/tmp/home",
    )
    cluster.started.append(container)
    return container


@pytest.mark.pods(2)
def test_an_ordinary_user_runs_a_job(cluster: Cluster) -> None:
    """Every process and file is the user's; the run folder lies below the working directory."""
    agents = [agent(cluster, pod) for pod in cluster.pods]
    agents[0].wait_for(f"^uid {USER} {USER}$", "stdout", timeout=BOOT)
    for container in agents:
        processes = container.processes()
        assert "raylet" in {process.name for process in processes}
        owners = {
            Path(f"/proc/{one.host_pid}").stat().st_uid for one in processes if not one.zombie
        }
        assert owners == {USER}
    (cluster.pods[0].tmp / "go").touch()
    assert ends(agents, 60) == [0, 0], agents[0].tail()
    for pod in cluster.pods:
        (folder,) = (pod.tmp / "home/agent-logs").glob(f"2*/{pod.name}")
        about = folder.stat()
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (USER, 0o700)
        assert read_outcome(folder)["kind"] == "done"
