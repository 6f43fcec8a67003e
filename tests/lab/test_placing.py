"""Placement and Ray's settings: resources per node, flags of `ray start`, partial clusters."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

from support.scenario import AGENT, BOOT, Cluster, ends, last_line

PLACE = textwrap.dedent(
    """
    import json, ray
    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0)
    class Model:
        def where(self):
            return ray.util.get_node_ip_address()

    where = {}
    for kind in ("v100", "h100"):
        actors = [Model.options(resources={kind: 1}).remote() for _ in range(2)]
        where[kind] = sorted(set(ray.get([actor.where.remote() for actor in actors])))
    nodes = [node for node in ray.nodes() if node["Alive"]]
    where["store"] = sorted({node["Resources"]["object_store_memory"] for node in nodes})
    where["labels"] = sorted({node["Labels"].get("pool", "") for node in nodes})
    print(json.dumps(where))
    """
)


@pytest.mark.pods(3)
def test_actors_run_where_their_resources_are(cluster: Cluster) -> None:
    """As in OpenRLHF's docs: nodes with v100, nodes with h100; Ray's flags reach each node.

    On all nodes, sessions are below --temp-dir, in a folder with mode 700.
    """
    for pod in cluster.pods:
        (pod.tmp / "nvme").mkdir()
    (cluster.pods[0].tmp / "place.py").write_text(PLACE)
    flags = "--temp-dir=/tmp/nvme --object-store-memory 100000000 --labels=pool=a"
    cluster.env["AGENT_RAY_ARGS"] = (
        flags + " --system-config='{\"raylet_report_resources_period_milliseconds\": 90}'"
    )
    kinds: tuple[dict[str, str], ...] = (
        {},
        {"AGENT_RESOURCES": '{"v100": 8}'},
        {"AGENT_RESOURCES": '{"h100": 8}'},
    )
    job = (sys.executable, "/tmp/place.py")
    agents = [
        cluster.agent(pod, *job, env=kind) for pod, kind in zip(cluster.pods, kinds, strict=True)
    ]
    assert ends(agents, BOOT * 2) == [0, 0, 0], agents[0].tail()
    assert json.loads(agents[0].stdout().splitlines()[-1]) == {
        "v100": [cluster.pods[1].ip],
        "h100": [cluster.pods[2].ip],
        "store": [1e8],
        "labels": ["a"],
    }
    for pod in cluster.pods:
        mine = pod.tmp / "nvme/pod-agent"
        assert mine.stat().st_mode & 0o077 == 0
        assert list(mine.glob("ray/session_2*")), pod.name
        assert not (pod.tmp / "pod-agent").exists()


@pytest.mark.pods(3)
def test_a_partial_cluster_runs_on_the_nodes_that_joined(cluster: Cluster) -> None:
    """One of two workers is enough: at the deadline the job starts, sized for one worker."""
    cluster.env |= {
        "AGENT_PARTIAL": "proceed",
        "AGENT_MIN_WORKERS": "1",
        "AGENT_WAIT_WORKERS": "30s",
        "AGENT_NUM_GPUS": "2",
    }
    words = "nodes={nodes} gpus={gpus_per_node} total={total_gpus}"
    agents = [cluster.agent(pod, "echo", words) for pod in cluster.pods[:2]]
    assert ends(agents) == [0, 0], agents[0].tail()
    assert agents[0].stdout() == "nodes=2 gpus=2 total=4\n"
    log = agents[0].stderr()
    assert "going on with 1 worker(s), as AGENT_PARTIAL=proceed" in log
    assert "1 of 2" in log


@pytest.mark.pods(2)
def test_fewer_workers_than_the_minimum(cluster: Cluster) -> None:
    """With fewer than AGENT_MIN_WORKERS the run ends with 69, as without AGENT_PARTIAL."""
    cluster.env |= {
        "AGENT_PARTIAL": "proceed",
        "AGENT_MIN_WORKERS": "1",
        "AGENT_WAIT_WORKERS": "20s",
    }
    head = cluster.agent(0, "true")
    assert head.wait(BOOT) == 69
    assert "worker" in last_line(head)


OF_VERL = """
working_dir: ./
excludes: ["/.git/"]
env_vars:
  TORCH_NCCL_AVOID_RECORD_STREAMS: "1"
"""


@pytest.mark.pods(1)
def test_verls_runtime_env_is_uploaded_without_ignored_files(cluster: Cluster) -> None:
    """The job runs in a copy of the checkout with the file's env_vars; an oversized copy is 78."""
    place = cluster.pods[0].tmp / "verl"
    for name in ("verl/trainer", "data", ".git"):
        (place / name).mkdir(parents=True)
    (place / "verl/trainer/runtime_env.yaml").write_text(OF_VERL)
    (place / "main.sh").write_text("find . -type f | sort; echo $TORCH_NCCL_AVOID_RECORD_STREAMS")
    (place / "data/train.parquet").write_bytes(b"1")
    (place / ".git/HEAD").write_bytes(b"2")
    (place / ".gitignore").write_text("data/\n")
    cluster.env["AGENT_RUNTIME_ENV"] = "verl/trainer/runtime_env.yaml"
    line = f"cd /tmp/verl && exec {AGENT} run -- sh main.sh"
    own = {"RUNPOD_POD_ID": cluster.pods[0].name}
    head = cluster.pods[0].start(["sh", "-c", line], env={**cluster.env, **own})
    assert head.wait(BOOT) == 0, head.tail()
    files = ["./.gitignore", "./main.sh", "./verl/trainer/runtime_env.yaml"]
    assert head.stdout().splitlines()[-4:] == [*files, "1"]

    with (place / "weights.bin").open("wb") as file:
        file.truncate(300 << 20)
    again = cluster.pods[0].start(["sh", "-c", line], env={**cluster.env, **own})
    assert again.wait(20) == 78
    assert "300 MiB in 4 files (weights.bin 300 MiB" in again.stderr()
