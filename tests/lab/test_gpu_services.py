"""A service with GPUs of its own on one node, whose address the job gets."""

from __future__ import annotations

import sys

import pytest

from support.scenario import Cluster, ends

SERVICE = """
[services.judge]
command = "echo GPU $CUDA_VISIBLE_DEVICES; exec {python} -m http.server 8001 --bind {{node_ip}}"
where = "rank 1"
gpus = 1
ready.http = "http://{{node_ip}}:8001/"

[services.tool]
command = "echo asks {{address:judge}} $JUDGE; exec {python} -m http.server 8002 --bind {{node_ip}}"
ready.http = "http://{{node_ip}}:8002/"
env = {{ JUDGE = "http://{{address:judge}}:8001" }}
"""
JOB = """
import os, sys, urllib.request, ray

ray.init()

@ray.remote(num_gpus=1)
def look():
    import time
    time.sleep(1)  # so that each task needs a GPU of its own
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["JUDGE_URL"]

by_ray = ray.cluster_resources()["GPU"]
seen = ray.get([look.remote() for _ in range(int(by_ray))])
print("gpus", int(by_ray), "{total_gpus}", sorted(gpu for gpu, _ in seen))
print("urls", sorted({url for _, url in seen}), sys.argv[1])
print("answer", urllib.request.urlopen(sys.argv[1], timeout=10).status)
"""


@pytest.mark.pods(2)
def test_a_service_has_a_gpu_that_ray_does_not_see(cluster: Cluster) -> None:
    """Of four GPUs Ray gets three; the job, its tasks and another service get the address."""
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(SERVICE.format(python=sys.executable))
    url = "http://{address:judge}:8001/"
    cluster.env |= {
        "AGENT_SERVICES": "/tmp/services.toml",
        "AGENT_NUM_GPUS": "2",
        "JUDGE_URL": url,
    }
    agents = cluster.agents(sys.executable, "-c", JOB, url)
    assert ends(agents) == [0, 0], agents[0].tail()
    judge = f"http://{cluster.pods[1].ip}:8001/"
    assert agents[0].stdout().splitlines()[-3:] == [
        "gpus 3 3 ['0', '0', '1']",
        f"urls ['{judge}'] {judge}",
        "answer 200",
    ]
    assert "GPU 1" in cluster.file(1, "judge.log").read_text()
    ip = cluster.pods[1].ip
    assert f"asks {ip} http://{ip}:8001" in cluster.file(0, "tool.log").read_text()
