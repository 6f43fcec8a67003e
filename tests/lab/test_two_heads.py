"""Two heads of one run after the disk lost its lock: the later head stays."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, await_true, ends, last_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.lab import Container

SHARED = Path("/var/tmp")
"""A folder of the machine that all pods see, like a network volume."""
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - any will do
TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all pods share."""
    with tempfile.TemporaryDirectory(prefix="pod-agent-", dir=SHARED) as folder:
        yield Path(folder)


def _status(worker: Container) -> str:
    """Return the status from a worker's port, which has the address of its head."""
    url = "http://127.0.0.1:8266/status"
    bearer = f"u.Request('{url}', headers={{'Authorization': 'Bearer {TOKEN}'}})"
    ask = f"import urllib.request as u; print(u.urlopen({bearer}).read().decode())"
    return worker.exec([sys.executable, "-c", ask]).stdout


@pytest.mark.fault(
    "superseded",
    "a second head starts in the same run",
    "the first stops its job and leaves with 75, superseded",
)
@pytest.mark.pods(3)
@pytest.mark.parametrize("found_by", ["run.json", "the worker", "nobody"])
def test_a_second_head_supersedes_the_first(cluster: Cluster, found_by: str, shared: Path) -> None:
    """The first head finds the later one in run.json, or in a worker's report with a token.

    Without both, the first head loses its worker to the later one, and its job after
    AGENT_NODE_GRACE.
    """
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_JOB_RETRIES": "1"}
    on_disk = found_by == "run.json"
    if on_disk:
        cluster.env["AGENT_LOG_DIR"] = str(shared)
    if found_by == "the worker":
        cluster.env["RAY_AUTH_TOKEN"] = TOKEN
    own = {"AGENT_NODE_GRACE": "10s", "AGENT_JOB_RETRIES": "0"} if found_by == "nobody" else {}
    first = cluster.agent(0, "sh", "-c", TWICE, env=own)
    worker = cluster.agent(1, "sh", "-c", TWICE)
    first.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    if on_disk:
        (shared / "latest" / ".head.lock").unlink()  # a disk that loses its locks
    cluster.lab.publish("poda", cluster.pods[2].ip)
    second = cluster.agent(2, "sh", "-c", TWICE, env={"RUNPOD_POD_ID": "poda"})
    if not on_disk:
        second.wait_for("starting Ray's head", timeout=20)
        other = cluster.pods[2].ip
        cluster.pods[1].drop(cluster.pods[0])  # DNS now returns the second head's address
        await_true("the worker follows the other", lambda: other in _status(worker), 60)
        cluster.pods[1].heal()  # while it still retries its report to the first
    assert first.wait(60) == 75
    why = {"run.json": "run.json has its epoch", "the worker": "podb follows it"}.get(found_by)
    assert ("superseded: a later head of run" in last_line(first)) == (why is not None)
    assert (why or "lost a needed node") in last_line(first)
    assert second.stdout() == "", "attempt 2 began beside attempt 1"
    second.wait_for("the end of attempt 1 on .*, out of reach", timeout=20)
    assert ends([second, worker], 2 * BOOT) == [7, 7], second.tail() + worker.tail()
    assert second.stdout() == "attempt 2\n"
    assert first.stdout() == "attempt 1\n"
