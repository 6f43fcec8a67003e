"""The image: built over a base that stays unchanged, and booted as a pod of the lab."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest

import tools.lab as podlab
from image.builder import OLD_TENACITY
from support.scenario import await_true, ends, last_line

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from image.builder import Store
    from tools.lab import Container, Pod

pytestmark = pytest.mark.timeout(900)

BOOT = 120.0
LIBRARIES = "usr/local/lib/python3.11/dist-packages"
LOOK_AROUND = """
import os, sys, ray
from importlib.metadata import version
ray.init(logging_level="ERROR", log_to_driver=False)
seen = ray.get(ray.remote(lambda: (sys.executable, version("tenacity"))).remote())
print(*seen, version("tenacity"), os.getcwd(), "agent" in sys.modules, *sys.path, sep="|")
sys.exit(7)
"""


class Pods:
    """Pods that run an image like a platform: its entrypoint, environment and folder."""

    def __init__(self, store: Store, lab: podlab.Lab, name: str) -> None:
        self._config = store.config(name)
        self._root = store.mount(name)
        self.pods: list[Pod] = list(lab.pods)
        self.health = self._config["Healthcheck"]["Test"]

    def start(self, *arguments: str) -> list[Container]:
        """Start the image in every pod, with one identical environment."""
        return [
            pod.start(
                [*self._config["Entrypoint"], *arguments],
                env=self.env(pod),
                cwd=self._config.get("WorkingDir") or "/",
                image=self._root,
            )
            for pod in self.pods
        ]

    def env(self, pod: Pod) -> dict[str, str]:
        """Return the image's variables and the pod's."""
        own = dict(pair.split("=", 1) for pair in self._config["Env"])
        workers = str(len(self.pods) - 1)
        return {
            **own,
            "RUNPOD_POD_ID": pod.name,
            "HEAD_POD_ID": self.pods[0].name,
            "EXPECTED_WORKERS": workers,
            "AGENT_LOG_DIR": "/tmp/logs",
            "AGENT_ON_DONE": "exit",
        }

    def is_healthy(self, container: Container) -> bool:
        """Run the image's health check in a container."""
        assert self.health[0] == "CMD"
        return container.exec(self.health[1:]).returncode == 0


@pytest.fixture
def lab() -> Iterator[podlab.Lab]:
    """Return three pods."""
    with podlab.Lab(pods=3, shm="1g") as made:
        yield made


def contents(root: Path) -> dict[str, tuple[int, float]]:
    """Return every file of the base's libraries, with its size and time."""
    files = (path for path in (root / LIBRARIES).rglob("*") if path.is_file())
    sources = (path for path in files if "__pycache__" not in path.parts)
    return {str(p.relative_to(root)): (p.stat().st_size, p.stat().st_mtime) for p in sources}


def test_a_frameworks_image_is_unchanged(
    store: Store, over_framework: subprocess.CompletedProcess[str]
) -> None:
    """The build checks it; the two file systems confirm it."""
    assert over_framework.returncode == 0, over_framework.stdout + over_framework.stderr
    assert re.search(r"nothing moved: .*; new: nothing", over_framework.stdout)
    before, after = (contents(store.mount(name)) for name in ("framework", "agent"))
    assert any("/ray/" in name for name in before)
    assert before == after


def test_the_configuration_of_an_image(
    store: Store, over_framework: subprocess.CompletedProcess[str]
) -> None:
    """Exec-form entrypoint, no CMD of the base, labels, the base's workdir and user."""
    assert over_framework.returncode == 0
    config = store.config("agent")
    assert (config["Entrypoint"], config.get("Cmd") or []) == (["pod-agent"], [])
    assert config["StopSignal"] == "SIGTERM"
    assert config["WorkingDir"] == "/workspace"
    assert not config.get("User"), "the ordinary user is for those who choose it"
    users = (store.mount("agent") / "etc/passwd").read_text().splitlines()
    assert [line for line in users if line.startswith("pod-agent:x:10001:")]
    assert config["Labels"]["org.opencontainers.image.base.name"] == "localhost/framework"


def test_a_rehearsal_on_three_pods_from_the_image(
    store: Store, lab: podlab.Lab, over_framework: subprocess.CompletedProcess[str]
) -> None:
    """The agent is PID 1 of each pod, Ray runs in the base's Python, and every pod is healthy."""
    assert over_framework.returncode == 0
    pods = Pods(store, lab, "agent")
    agents = pods.start()
    for agent in agents:
        await_true("a healthy agent", partial(pods.is_healthy, agent), 30)
        first = agent.processes()[0]
        assert (first.pid, first.ppid) == (1, 0)
        assert first.cmdline == "/opt/pod-agent/bin/python -I /usr/local/bin/pod-agent"
    ray = "/usr/bin/python3 -m ray.scripts.scripts start --block "
    await_true("Ray", lambda: any(p.cmdline.startswith(ray) for p in agents[0].processes()), 30)
    assert ends(agents, BOOT) == [0, 0, 0], agents[0].tail()
    assert "mean reward" in agents[0].stdout()


def test_a_jobs_exit_code_and_environment(
    store: Store, lab: podlab.Lab, over_framework: subprocess.CompletedProcess[str]
) -> None:
    """The job sees only the framework's libraries, in its folder; its exit code is returned."""
    assert over_framework.returncode == 0
    agents = Pods(store, lab, "agent").start("run", "--", "python3", "-c", LOOK_AROUND)
    assert ends(agents, BOOT) == [7, 7, 7], agents[0].tail()
    line = next(line for line in agents[0].stdout().splitlines() if OLD_TENACITY in line)
    assert line.startswith(f"/usr/bin/python3|{OLD_TENACITY}|{OLD_TENACITY}|/workspace|False|")
    assert "/opt/pod-agent" not in line
    assert "exit code 7" in last_line(agents[1])


def test_over_a_base_without_ray(store: Store) -> None:
    """Ray is installed, although Debian guards its Python, and the agent boots with it."""
    done = store.build("plain", BASE="localhost/debian")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"nothing moved: .*; new: .*\bray \d", done.stdout)
    with podlab.Lab(pods=1, shm="1g") as lab:
        pods = Pods(store, lab, "plain")
        idle = pods.pods[0].start(["sleep", "infinity"], image=store.mount("plain"), cwd="/")
        assert not pods.is_healthy(idle)
        idle.kill()
        agents = pods.start("run", "--", "sh", "-c", "exit 3")
        assert ends(agents, BOOT) == [3], agents[0].tail()


def test_a_python_that_is_not_on_path(store: Store) -> None:
    """A framework's environment is given by path: its Ray is found there, without PATH."""
    python = "/opt/framework/bin/python"
    base = store.over(
        "hidden",
        "debian",
        "RUN python3 -m venv --without-pip /opt/framework",
        f"RUN pip --python {python} install --quiet 'ray[default]'",
    )
    assert base.returncode == 0, base.stderr
    done = store.build("named", BASE="localhost/hidden", PYTHON=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"nothing moved: .*; new: nothing", done.stdout)
    with podlab.Lab(pods=1, shm="1g") as lab:
        agents = Pods(store, lab, "named").start("run", "--", python, "-c", "import ray; exit(5)")
        assert ends(agents, BOOT) == [5], agents[0].tail()


def test_a_conflicting_ray_ends_the_build(store: Store) -> None:
    """A base whose libraries conflict with Ray is refused unchanged, with a remedy."""
    info = f"/{LIBRARIES}/click-6.7.dist-info"
    metadata = r"Metadata-Version: 2.1\nName: click\nVersion: 6.7\n"
    base = store.over(
        "old", "debian", f"RUN mkdir -p {info} && printf '{metadata}' >{info}/METADATA"
    )
    assert base.returncode == 0, base.stderr
    done = store.build("refused", BASE="localhost/old")
    assert done.returncode != 0
    assert re.search(
        r"pod-agent's layer: ray\[default\]==\S+ does not fit beside what", done.stderr
    )
    assert "click" in done.stdout + done.stderr  # pip names them
    assert "--build-arg RAY=" in done.stderr


def test_a_changed_library_is_found(
    store: Store, over_framework: subprocess.CompletedProcess[str]
) -> None:
    """The check stays in the image: it detects a later layer that changes a library."""
    assert over_framework.returncode == 0
    check = "/opt/pod-agent/layer/moved.py check /opt/pod-agent/base.json"
    moving = "PIP_CONSTRAINT= pip install --quiet --break-system-packages --upgrade tenacity"
    done = store.over("moved", "agent", f"RUN {moving} && python3 {check}")
    assert done.returncode != 0
    assert f"distribution tenacity was {OLD_TENACITY}, is 9." in done.stderr
