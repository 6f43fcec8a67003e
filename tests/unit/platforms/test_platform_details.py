"""Other data from platforms: the run's ID, allotted resources, the address, the end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.captured import changed, environ_of, machine, plan_of, planned, read
from support.worlds import our_ray


@pytest.mark.parametrize(
    ("line", "run_id"),
    [
        ("slurm-head", "4711"),
        ("slurm-requeued-head", "4711"),
        ("slurm-head SLURM_RESTART_COUNT=0", "4711"),
        ("aws-batch-head", "8f1c3c2e-5d5c-4e0e-9b6e-2f3d6a1c7b11"),
        ("aws-batch-head AWS_BATCH_JOB_ATTEMPT=3", "8f1c3c2e-5d5c-4e0e-9b6e-2f3d6a1c7b11-r2"),
        ("skypilot-head", "sky-2025-03-01-10-20-30-123456_rl_1"),
        ("sagemaker-head", "rl-2025-03-01-10-20-30-123"),
        ("lws-head", None),
    ],
)
def test_the_runs_id(line: str, run_id: str | None) -> None:
    """The platform's job names the run, under Slurm a requeued one too."""
    assert planned(line).topology.platform.run_id == run_id


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        # on a shared node Ray may use the job's CPUs, never more than the machine allows
        ("", "--num-cpus=28"),
        ("!SLURM_CPUS_ON_NODE", "--num-cpus=28"),
        ("!SLURM_CPUS_ON_NODE 'SLURM_JOB_CPUS_PER_NODE=2(x2),4'", "--num-cpus=4"),
        ("!SLURM_CPUS_ON_NODE 'SLURM_JOB_CPUS_PER_NODE=2(x2)'", "--num-cpus=192"),
        ("SLURM_CPUS_ON_NODE=? SLURM_JOB_CPUS_PER_NODE=?", "--num-cpus=192"),
        ("SLURM_CPUS_ON_NODE=512", "--num-cpus=192"),
        ("AGENT_NUM_CPUS=8", "--num-cpus=8"),
        # each Ray would otherwise take the whole machine's memory for its own
        ("SLURM_MEM_PER_NODE=204800", "--memory=150323855360 --object-store-memory=64424509440"),
        ("SLURM_MEM_PER_NODE=0", "!memory="),
        ("SLURM_MEM_PER_NODE=?", "!memory="),
    ],
)
def test_ray_counts_what_was_allotted(changes: str, flags: str) -> None:
    """Of a machine that Slurm shares between jobs."""
    command = our_ray(planned(f"slurm-worker {changes}")).command(is_head=False)
    for flag in flags.split():
        has = any(flag.lstrip("!") in word for word in command)
        assert has is not flag.startswith("!")


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ("", 8),
        ("!SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE=h100:4", 4),
        ("!SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE=a100:4,v100:2", 6),
        ("SLURM_GPUS_ON_NODE=gpu !SLURM_GPUS_PER_NODE", None),
    ],
)
def test_slurms_gpus_come_with_their_kind(changes: str, gpus: int | None) -> None:
    """Counts by kind are added; an unreadable one counts as absent."""
    assert planned(f"slurm-worker {changes}").topology.platform.gpus_per_node == gpus


@pytest.mark.parametrize(
    ("name", "owns"),
    [("slurm-head", False), ("skypilot-head", False), ("dstack-head", True), ("lws-head", True)],
)
def test_only_our_own_ray_is_stopped_on_shared_hosts(name: str, owns: bool) -> None:  # noqa: FBT001 - a table's column
    """Another job's Ray, and SkyPilot's own, must keep running."""
    assert plan_of(*read(name)).topology.owns_machine is owns


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("runpod-cluster-head", "10.65.0.2"),
        ("runpod-cluster-head PRIMARY_ADDR=node-0.cluster", "10.65.0.2"),
        ("runpod-cluster-head PRIMARY_ADDR=10.1.0.10", "10.1.0.10"),
        ("runpod-head", "10.1.0.10"),
        ("runpod-alone AGENT_HEAD=10.0.0.5", "10.0.0.5"),
        ("sagemaker-head SM_NETWORK_INTERFACE_NAME=ens1 HOSTNAME=x", "10.65.0.2"),
        ("slurm-head", "10.0.0.5"),
        ("slurm-head HOSTNAME=gpu-0.cluster.local", "10.0.0.5"),
        ("slurm-head HOSTNAME=another-name", None),
        ("aws-batch-head", "10.0.0.5"),
        ("pytorchjob-head", "10.0.0.5"),
    ],
)
def test_the_head_listens_where_the_others_call(line: str, address: str | None) -> None:
    """The head's address is the one that the others use, else the platform's interface.

    A node's own host name gives the default route's address, never that of a bridge.
    """
    environ = environ_of(line)
    facts = machine(environ, is_first_process=read(line.partition(" ")[0])[1].is_first_process)
    assert plan_of(environ, facts).address.ip == address


@pytest.mark.parametrize(
    ("found", "seen", "address"),
    [
        ((), "", "172.31.250.10"),
        ((), "10.0.0.5", "10.0.0.5"),
        ((), "10.0.0.99", "172.31.250.10"),
        (("127.0.1.1",), "10.0.0.5", "10.0.0.5"),
        (("10.65.0.2",), "10.0.0.5", "10.65.0.2"),
        (("10.0.0.99",), "", "172.31.250.10"),
    ],
)
def test_a_head_that_is_listed_by_its_own_host_name(
    found: tuple[str, ...], seen: str, address: str
) -> None:
    """The address is this node's first one: of its name, of Slurm, of the default route."""
    environ = changed("slurm-head", {"SLURM_LAUNCH_NODE_IPADDR": seen})
    facts = replace(
        machine(environ),
        interfaces={
            "lo": ("127.0.0.1",),
            "eth0": ("172.31.250.10",),
            "ib0": ("10.0.0.5",),
            "ib1": ("10.65.0.2",),
        },
        default_source="172.31.250.10",
        known_names={"gpu-0": found},
    )
    assert plan_of(environ, facts).address.ip == address


def test_a_node_of_several_has_its_own_host_name() -> None:
    """A name in the list of hosts may be a worker's own; a job of one node needs none."""
    head, worker = (planned(f"slurm-{role}") for role in ("head", "worker"))
    assert head.topology.platform.own_names == (head.topology.node_name,)
    assert worker.topology.platform.own_names == (worker.topology.node_name,)
    alone = planned(
        "slurm-head SLURM_JOB_NODELIST=gpu-0 SLURM_NODELIST=gpu-0 SLURM_NNODES=1"
        " SLURM_JOB_NUM_NODES=1 SLURM_STEP_NODELIST=gpu-0 SLURM_STEP_NUM_NODES=1"
        " SLURM_STEP_NUM_TASKS=1"
    )
    assert alone.topology.platform.own_names == ()


@pytest.mark.parametrize(
    ("pod", "launcher", "logs"),
    [
        ("a", "ray", {"agent", "ray", "job"}),
        ("b", "ray", {"agent", "ray"}),
        ("a", "torchrun", {"agent", "job"}),
        ("b", "torchrun", {"agent", "job"}),
    ],
)
def test_the_logs_of_a_node(pod: str, launcher: str, logs: set[str]) -> None:
    """The job writes on the head, and with torchrun on every node, where no Ray runs."""
    environ = {"HEAD_POD_ID": "a", "RUNPOD_POD_ID": pod, "EXPECTED_WORKERS": "1"}
    plan = plan_of({**environ, "AGENT_LAUNCHER": launcher}, machine({}))
    assert {*plan.logs()} - {"reward server"} == logs
