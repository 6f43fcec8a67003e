"""Prepare steps run during the boot and before the job; a failed step ends the run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support import hub
from support.scenario import AGENT, BOOT, Cluster, ends, last_line

if TYPE_CHECKING:
    from pathlib import Path

    from tools.lab.process import Running

FETCH = "until [ -e /tmp/go ]; do sleep 0.1; done; echo data > /tmp/data"


@pytest.mark.pods(2)
def test_steps_run_beside_the_boot_and_before_the_job(cluster: Cluster) -> None:
    """Ray boots and the worker joins during the head's step; the job starts after all steps."""
    cluster.env |= {"AGENT_PREPARE": FETCH, "AGENT_PREPARE_EACH": "echo each > /tmp/each"}
    head, worker = cluster.agents("sh", "-c", "cat /tmp/each /tmp/data && exit 7")
    head.wait_for("podb joined Ray", timeout=BOOT)
    assert (cluster.pods[1].tmp / "each").read_text() == "each\n"
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [7, 7]
    assert head.stdout() == "each\ndata\n"
    log = head.stderr()
    done = log.index("✓ AGENT_PREPARE_EACH and AGENT_PREPARE done")
    assert done < log.index("✓ nodes ")


@pytest.mark.pods(2)
def test_a_reward_command_waits_for_the_data_that_it_reads(cluster: Cluster) -> None:
    """It starts after AGENT_PREPARE, whose data it needs; Ray and the worker do not wait."""
    serve = f"exec {AGENT} reward-server --host {{node_ip}} --port 5000"
    cluster.env |= {
        "AGENT_PREPARE": FETCH,
        "AGENT_REWARD": f"test -s /tmp/data || exit 2; {serve}",
    }
    head, worker = cluster.agents("cat", "/tmp/data")
    head.wait_for("podb joined Ray", timeout=BOOT)
    assert "reward server waits for AGENT_PREPARE" in head.stderr()
    shown = json.loads(head.exec([AGENT, "status", "--json"]).stdout)
    (server,) = shown["services"]
    assert (server["state"], server["detail"]) == ("pending", "waits for AGENT_PREPARE")
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [0, 0], head.tail()
    assert head.stdout() == "data\n"
    log = head.stderr()
    assert log.index("✓ AGENT_PREPARE ") < log.index("✓ reward server ")


@pytest.mark.pods(2)
def test_a_failed_step_ends_the_run(cluster: Cluster) -> None:
    """Head and worker end with 69 at once; the last line has the variable and the output."""
    cluster.env["AGENT_PREPARE"] = "echo no such dataset; exit 3"
    head, worker = cluster.agents("true")
    assert ends([head, worker]) == [69, 69]
    assert "AGENT_PREPARE failed: exit code 3; last output: no such dataset" in last_line(head)
    assert "AGENT_PREPARE failed" in last_line(worker)
    assert cluster.outcome(0)["culprit"] == "AGENT_PREPARE"


@pytest.mark.pods(2)
def test_a_worker_whose_step_fails_is_named_by_the_head(cluster: Cluster) -> None:
    """It ends with 69; the head waits for another until its deadline, and logs the reason."""
    cluster.env |= {
        "AGENT_PREPARE_EACH": "[ $RUNPOD_POD_ID = poda ] || { echo disk full; exit 5; }",
        "AGENT_WAIT_WORKERS": "20s",
    }
    head, worker = cluster.agents("true")
    assert worker.wait(BOOT) == 69
    assert "AGENT_PREPARE_EACH failed: exit code 5; last output: disk full" in last_line(worker)
    assert head.wait(BOOT) == 69
    assert "podb" in last_line(head)
    assert "AGENT_PREPARE_EACH failed: exit code 5; last output: disk full" in last_line(head)


def start_hub(cluster: Cluster, client: Path) -> Running:
    """Start a hub on the head's pod, for the client on all pods."""
    for pod in cluster.pods:
        shutil.copytree(client, pod.tmp / "client")
    head_pod = cluster.pods[0]
    shutil.copy(hub.__file__, head_pod.tmp / "hub.py")
    server = head_pod.start([sys.executable, "/tmp/hub.py", "--host", head_pod.ip])
    server.wait_for("the hub listens", stream="stdout")
    cluster.env |= {
        "PYTHONPATH": "/tmp/client",
        "HF_HOME": "/tmp/hf",
        "HF_ENDPOINT": f"http://{head_pod.ip}:9100",
        "HF_HUB_DISABLE_XET": "1",
        "AGENT_MODEL": hub.MODEL,
    }
    return server


@pytest.mark.pods(2)
def test_a_model_is_fetched_on_each_node_beside_the_boot(cluster: Cluster) -> None:
    """Both nodes have it before the job; if the hub lacks the model, the run ends with 69."""
    try:
        client = hub.client()
    except (OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"huggingface_hub cannot be installed here: {problem}")
    start_hub(cluster, client)
    head, worker = cluster.agents("sh", "-c", "ls /tmp/hf/hub/models--*/snapshots/*")
    assert ends([head, worker]) == [0, 0], head.tail()
    assert head.stdout().split() == ["README.md", "config.json", "model.safetensors"]
    assert list((cluster.pods[1].tmp / "hf").glob("hub/models--*/snapshots/*/config.json"))
    log = head.stderr()
    assert log.index("starting Ray's head") < log.index("✓ nodes ")
    assert f"{hub.MODEL} is in /tmp/hf" in cluster.file(1, "model.log").read_text()

    cluster.env["AGENT_MODEL"] = "acme/none"
    again = cluster.agents("true")
    assert ends(again) == [69, 69]
    assert "AGENT_MODEL failed: exit code 1; last output: acme/none: " in last_line(again[0])
