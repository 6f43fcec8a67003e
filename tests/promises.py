"""The pod lab's scenario for each promise of README, docs and contract.

`./scripts/test` runs some of them in its ten minutes; `--all` runs every scenario.
`python tests/promises.py` prints their names; with `--quick`, the one of the quick run.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Promise(NamedTuple):
    """One promise, and the scenario that proves it."""

    text: str
    scenario: str


QUICK = "test_boot.py::test_rehearsal_learns_on_three_pods"
OFTEN = (
    # boot and platforms
    Promise(
        "one environment on every pod; the job's own exit code on every node; a second run",
        "test_boot.py::test_one_environment_two_runs",
    ),
    Promise("without a setting the rehearsal runs on all nodes, and learns", QUICK),
    # commands, the agent's port, secrets
    Promise(
        "status, logs, doctor --all, explain, page, metrics, events; token; ports; bundle",
        "test_one_run.py",
    ),
    # ends
    Promise(
        "SIGTERM to the head: all nodes end with 143 within AGENT_STOP_GRACE, nothing is left",
        "test_ends.py::test_sigterm_to_the_head_stops_all_within_the_grace",
    ),
    Promise(
        "a check that fails on the head ends all nodes with 78 and one sentence",
        "test_ends.py::test_a_failed_check_on_the_head_ends_its_workers",
    ),
    # losses
    Promise(
        "an agent that is killed is started again: one job, the same Ray, no line lost",
        "test_agent_killed.py::test_a_killed_agent_is_restarted_and_follows_the_job[head]",
    ),
    Promise(
        "a lost worker is named within 3 s; AGENT_JOB_RETRIES makes another attempt",
        "test_losses.py::test_a_killed_worker_that_returns_costs_an_attempt",
    ),
    Promise(
        "a hang is examined on all nodes; one sentence names node, process and function",
        "test_hangs.py::test_a_hang_is_named[engine]",
    ),
    # reward server, services, prepare steps
    Promise(
        "a reward server that hangs or fails is started again, and outages are recorded",
        "test_reward.py::test_a_reward_server_that_hangs_or_fails_is_restarted",
    ),
    Promise(
        "an engine is killed every few seconds: one attempt, no stale sample",
        "test_groups.py::test_an_engine_is_killed_every_few_seconds",
    ),
    Promise(
        "a prepare step that fails ends the run with 69 and last output",
        "test_prepare.py::test_a_failed_step_ends_the_run",
    ),
    # jobs
    Promise(
        "AGENT_LAUNCHER=torchrun: ranks over all nodes, without Ray",
        "test_torchrun.py::test_ranks_over_three_pods_and_no_ray",
    ),
    Promise(
        "torchrun: the first failed rank's code is every node's",
        "test_torchrun.py::test_the_first_failed_ranks_code_ends_all_nodes",
    ),
)
"""Those that `./scripts/test` proves: the shortest scenarios of what breaks most."""
MORE = (
    # boot and platforms
    Promise(
        "a worker that does not join is named, and the run ends with 69 at the deadline (dstack)",
        "test_boot.py::test_dstack_names_the_missing_rank",
    ),
    Promise(
        "Slurm: the job's code arrives, and jobs on the same hosts leave each other alone",
        "test_slurm.py::test_the_jobs_code_arrives_and_another_jobs_ray_stays",
    ),
    Promise(
        "KubeRay: the agent submits to the operator's Ray, and leaves it running",
        "test_kuberay.py::test_as_a_rayjobs_submitter",
    ),
    # commands, the agent's port, secrets
    Promise(
        "`pod-agent stop` ends the run from the head's own node",
        "test_ends.py::test_stop_only_from_the_heads_node",
    ),
    # ends
    Promise(
        "SIGTERM to a worker: 143 there; the head waits AGENT_NODE_GRACE, then 75",
        "test_ends.py::test_sigterm_to_a_worker",
    ),
    Promise(
        "SIGUSR1 reaches the job; AGENT_ON_DONE=hold: the pod stays, without Ray and job",
        "test_ends.py::test_hold_stops_all_but_the_agent",
    ),
    Promise(
        "AGENT_JOB=none: the cluster stays until it is stopped, then 0",
        "test_ends.py::test_without_a_job_the_cluster_stays",
    ),
    Promise(
        "a stdout that nobody reads delays neither the job nor the end",
        "test_unread_output.py::test_stdout_without_a_reader",
    ),
    Promise(
        "a command that the installed framework refuses while the run boots: 78 before the job",
        "test_framework_check.py::test_a_typo_ends_the_run_before_the_job_is_submitted",
    ),
    # losses
    Promise(
        "a head that comes back elsewhere goes on with its run, and workers rejoin it",
        "test_losses.py::test_a_head_with_a_new_address_continues_its_run[shared]",
    ),
    # reward server, services, prepare steps
    Promise(
        "a service with gpus has GPUs that Ray does not see; the job gets the address of its node",
        "test_gpu_services.py::test_a_service_has_a_gpu_that_ray_does_not_see",
    ),
    Promise(
        "a group survives a killed agent, a cut-off node, a lost node, engines that hang or fail",
        "test_groups.py::test_what_a_group_survives",
    ),
    Promise(
        "a judge beside the job grades, is restarted, and only its reward server has its key",
        "test_judge.py::test_a_judge_on_a_node_of_the_run",
    ),
    Promise(
        "AGENT_SERVICES: the job starts when a service on every node is ready",
        "test_services.py::test_a_retriever_on_every_node",
    ),
    Promise(
        "AGENT_PREPARE and AGENT_PREPARE_EACH run beside the boot, and before the job",
        "test_prepare.py::test_steps_run_beside_the_boot_and_before_the_job",
    ),
    Promise(
        "a fresh pod starts with the compile caches of the volume",
        "test_caches.py::test_a_fresh_pod_is_seeded",
    ),
    # jobs
    Promise(
        "a job that ends with 0 and made no step after a resume ends with a warning; one W&B run",
        "test_steps.py::test_a_resumed_job_that_makes_no_step_ends_with_a_warning",
    ),
    Promise(
        "the job's steps are read from its output or its own file, and outlive the agent",
        "test_steps.py::test_a_jobs_own_file_and_an_agent_that_is_killed",
    ),
    Promise(
        "a recipe is sized for the nodes that joined, scored, and resumed by the next run",
        "test_recipes.py::test_verl_is_sized_scored_and_resumed",
    ),
    Promise(
        "AGENT_RUNTIME_ENV and AGENT_WORKING_DIR: the job runs in an uploaded folder",
        "test_placing.py::test_verls_runtime_env_is_uploaded_without_ignored_files",
    ),
)
"""Those that `./scripts/test --all` proves too, as every scenario runs there."""


def main(argv: list[str]) -> None:
    """Print each scenario once, as an argument for pytest."""
    chosen = [QUICK] if "--quick" in argv else [promise.scenario for promise in OFTEN]
    print(*dict.fromkeys(f"tests/lab/{scenario}" for scenario in chosen), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
