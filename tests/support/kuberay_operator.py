"""The variables and the command with which KubeRay's operator starts Ray, in the lab."""

from __future__ import annotations

from support.scenario import RAY

START_RAY = ("sh", "-c", "exec $KUBERAY_GEN_RAY_START_CMD")
COMMON = {"RAY_CLUSTER_NAME": "rl", "RAY_PORT": "6379", "RAY_USAGE_STATS_ENABLED": "0"}


def head_variables(ip: str, size: str = "--num-cpus=2") -> dict[str, str]:
    """Return the variables of the container in which the head's Ray starts."""
    flags = f"--dashboard-host=0.0.0.0 --node-ip-address={ip} {size}"
    return {
        **COMMON,
        "RAY_NODE_TYPE_NAME": "headgroup",
        "KUBERAY_GEN_RAY_START_CMD": f"{RAY} start --head  --block  {flags}",
        "RAY_ADDRESS": "127.0.0.1:6379",
        "AGENT_NODE_IP": ip,  # the lab's default route leads nowhere
    }


def worker_variables(ip: str, service: str, size: str = "--num-cpus=2") -> dict[str, str]:
    """Return the variables of the container in which a worker's Ray starts."""
    flags = f"--address={service}:6379 --node-ip-address={ip}"
    return {
        **COMMON,
        "RAY_NODE_TYPE_NAME": "workers",
        "FQ_RAY_IP": service,
        "RAY_IP": service.partition(".")[0],
        "KUBERAY_GEN_RAY_START_CMD": f"{RAY} start --block  {flags} {size}",
        "RAY_ADDRESS": f"{service}:6379",
    }


def submitter_variables(service: str, name: str) -> dict[str, str]:
    """Return the variables of the pod in which a RayJob submits its job."""
    return {"RAY_DASHBOARD_ADDRESS": f"{service}:8265", "RAY_JOB_SUBMISSION_ID": name}
