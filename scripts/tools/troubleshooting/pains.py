"""Known problems, row by row, and the answers to each, with their tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["avoided", "checked", "explained"]

CHECK = "tests/unit/checks/test_checks.py::test_findings"
KNOWN = "tests/unit/diagnosis/test_remedies.py::test_a_known_text_is_explained"
NOISE = "tests/unit/diagnosis/test_remedies.py::test_noise_is_never_a_cause"
DECISIONS = "tests/unit/decisions/test_head_decisions.py"
PROBES = "tests/unit/decisions/test_probes_of_nodes.py"
ENVIRONMENT = "tests/unit/plan/test_environment.py"
SURVEY = "tests/lab/test_platforms.py::test_an_instant_cluster_uses_ens1"


@dataclass(frozen=True)
class Answer:
    """One answer: avoided by construction, checked before the job, or explained by a log."""

    how: How
    test: str
    what: str = ""
    """The check's name, or the key of the known line."""


@dataclass(frozen=True)
class Pain:
    """One row."""

    number: int
    symptom: str
    answers: tuple[Answer, ...]
    is_open: str = ""
    """The part of it that has no answer yet."""


def avoided(test: str) -> Answer:
    """Return an answer by construction."""
    return Answer("avoided", test)


def checked(what: str, test: str) -> Answer:
    """Return an answer by a check."""
    return Answer("checked", test, what)


def explained(key: str) -> Answer:
    """Return an answer by a known line, whose examples are its test."""
    return Answer("explained", KNOWN, key)


PAINS: tuple[Pain, ...] = (
    Pain(
        1,
        "`No available agent to submit job`",
        (
            avoided(f"{DECISIONS}::test_under_way[Ray does not take the job yet]"),
            checked("processes", f"{CHECK}[few processes]"),
            explained("dashboard agent"),
        ),
    ),
    Pain(
        2,
        "the tail of the job's log stops while it runs",
        (
            avoided(
                "tests/unit/processes/test_output.py::test_a_stream_that_begins_anew_is_written_once"
            ),
        ),
    ),
    Pain(
        3,
        "`Total available GPUs 8.0 is less than total desired GPUs 16`",
        (
            avoided("tests/lab/test_boot.py::test_three_pods_one_environment_two_runs"),
            explained("too few GPUs"),
        ),
    ),
    Pain(
        4,
        "`Unable to connect to GCS at …`",
        (
            avoided("tests/lab/test_boot.py::test_a_worker_twenty_seconds_before_the_head"),
            explained("GCS not reached"),
        ),
    ),
    Pain(
        5,
        "`This node has an IP address of X, and Ray expects this IP address to be …`",
        (
            avoided("tests/unit/plan/test_plan.py::test_the_nodes_address"),
            explained("node address"),
        ),
    ),
    Pain(
        6,
        "the default route's interface, or 127.0.0.1, is taken",
        (avoided("tests/lab/test_boot.py::test_three_pods_one_environment_two_runs"),),
    ),
    Pain(
        7,
        "`--node-ip-address 0.0.0.0`, or loopback, across nodes",
        (
            avoided(
                "tests/unit/settings/test_settings.py::test_a_bad_value_is_refused_by_its_name"
            ),
            checked("node address", f"{CHECK}[loopback, two nodes]"),
        ),
    ),
    Pain(
        8,
        "NCCL `socketStartConnect: Connect to … failed`",
        (
            avoided(SURVEY),
            checked("interfaces", f"{CHECK}[an interface that is not here]"),
            checked("agreement", "tests/unit/checks/test_agreement.py::test_differences"),
            explained("NCCL connect"),
        ),
    ),
    Pain(
        9,
        "`Using the loopback address as fallback`, Gloo `connectFullMesh failed`",
        (avoided(SURVEY), explained("Gloo")),
    ),
    Pain(10, "the driver's variables are missing in actors", (avoided(SURVEY),)),
    Pain(
        11,
        "`Every node should have a unique IP address`",
        (avoided(SURVEY), explained("vLLM address")),
    ),
    Pain(
        12,
        "Ray takes the whole machine's cores",
        (
            avoided("tests/unit/node/test_cgroups.py::test_cpus"),
            checked("cores", f"{CHECK}[a share of the cores]"),
        ),
    ),
    Pain(
        13,
        "`pthread_create failed: Resource temporarily unavailable`",
        (checked("processes", f"{CHECK}[few processes]"), explained("threads")),
    ),
    Pain(
        14,
        "`Failed accept4: Too many open files`",
        (
            avoided(
                "tests/unit/run/test_process_limits.py::test_the_limit_of_open_files_is_raised"
            ),
            checked("open files", f"{CHECK}[few files]"),
            explained("open files"),
        ),
    ),
    Pain(
        15,
        "`Ray component worker_ports is trying to use a port number …`",
        (
            avoided(
                "tests/unit/base/test_ports.py::test_the_defaults_lie_below_the_kernels_own_range"
            ),
            checked("port range", f"{CHECK}[workers' ports inside]"),
            checked("ports", f"{CHECK}[port taken]"),
            explained("ports collide"),
        ),
    ),
    Pain(
        16,
        "`The object store is using /tmp instead of /dev/shm`",
        (
            avoided(f"{ENVIRONMENT}::test_the_object_store_fits_shared_memory"),
            checked("/dev/shm", f"{CHECK}[small shm]"),
            explained("object store on disk"),
        ),
    ),
    Pain(
        17,
        "`Error while creating shared memory segment /dev/shm/nccl-…`",
        (checked("/dev/shm", f"{CHECK}[small shm]"), explained("shared memory")),
    ),
    Pain(
        18,
        "the head restarts, workers never rejoin",
        (
            avoided("tests/lab/test_losses.py::test_a_head_with_a_new_address_continues_its_run"),
            explained("GCS lost"),
        ),
    ),
    Pain(
        19,
        "`mistakenly been marked as dead by the GCS`",
        (
            avoided("tests/lab/test_losses.py::test_a_killed_worker_that_returns_costs_an_attempt"),
            checked("links between nodes", f"{PROBES}::test_a_ring_and_the_head"),
            explained("marked dead"),
        ),
    ),
    Pain(
        20,
        "`Session name … does not match persisted value`",
        (
            avoided("tests/lab/test_boot.py::test_one_node_with_a_stale_ray_on_its_port"),
            explained("session"),
        ),
    ),
    Pain(
        21,
        "`Ray is trying to start at X:6379, but is already running`",
        (
            avoided("tests/lab/test_boot.py::test_one_node_with_a_stale_ray_on_its_port"),
            explained("running already"),
        ),
    ),
    Pain(
        22,
        "`Stopped only 0 out of N Ray processes`",
        (
            avoided("tests/unit/processes/test_descendants.py::test_orphans_are_ended_and_reaped"),
            explained("zombies"),
        ),
    ),
    Pain(
        23,
        "`Version mismatch: The cluster was started with:`",
        (
            checked(
                "versions of hello", "tests/unit/port/test_protocol.py::test_versions_must_agree"
            ),
            explained("version mismatch"),
        ),
    ),
    Pain(
        24,
        "`Max retries exceeded with url: /get_reward`",
        (
            avoided("tests/lab/test_reward.py::test_a_killed_reward_server_is_restarted"),
            checked("reward from each node", f"{PROBES}::test_a_node_that_gets_no_score_is_named"),
            explained("reward server"),
        ),
    ),
    Pain(
        25,
        "`Failed to merge the Job's runtime env`",
        (
            avoided(f"{ENVIRONMENT}::test_what_training_needs_is_chosen"),
            explained("runtime_env conflict"),
        ),
    ),
    Pain(
        26,
        "secrets in the runtime_env are readable",
        (
            avoided("tests/unit/node/test_runtime_env.py::test_a_secret_is_refused"),
            avoided("tests/lab/test_one_run.py::test_no_secret_in_any_log"),
        ),
    ),
    Pain(
        27,
        "`api_key not configured (no-tty)`",
        (
            avoided(f"{ENVIRONMENT}::test_what_training_needs_is_chosen"),
            checked("W&B key", f"{CHECK}[a short key]"),
            explained("W&B key"),
        ),
    ),
    Pain(
        28,
        "RunPod starts the container again, and the job with it",
        (avoided("tests/lab/test_ends.py::test_hold_stops_all_but_the_agent"),),
    ),
    Pain(
        29,
        "RunPod's Global Networking gives 100 Mbps",
        (
            checked(
                "links between nodes",
                "tests/lab/test_agreement.py::test_a_slow_link_is_measured_and_named",
            ),
        ),
    ),
    Pain(
        30,
        "proxy variables break gRPC and the dashboard",
        (
            avoided(f"{ENVIRONMENT}::test_a_proxy_stays_out_of_the_nodes_traffic"),
            checked("proxies", f"{CHECK}[a proxy]"),
            explained("proxy"),
        ),
    ),
    Pain(
        31,
        "a leftover RAY_ADDRESS: `Module: http does not have ClientBuilder`",
        (
            avoided(f"{ENVIRONMENT}::test_a_leftover_address_is_dropped"),
            explained("leftover address"),
        ),
    ),
    Pain(
        32,
        "`No available node types can fulfill resource request {'GPU': 1.0}`",
        (
            checked("GPUs", f"{CHECK}[gpus lost]"),
            checked("GPU health", f"{CHECK}[one is missing]"),
            checked(
                "Ray's GPUs",
                "tests/unit/checks/test_ray_gpus.py::test_ray_has_none_of_a_nodes_gpus",
            ),
            explained("no such resource"),
        ),
    ),
    Pain(
        33,
        "`Failed to initialize NVML: Unknown Error`",
        (checked("GPU health", f"{CHECK}[lost GPUs]"), explained("NVML")),
    ),
    Pain(
        34,
        "`Inconsistant values found. Please use either HIP_VISIBLE_DEVICES or …`",
        (
            avoided("tests/unit/node/test_visible_devices.py::test_one_choice"),
            checked("visible GPUs", f"{CHECK}[two choices of GPUs]"),
            explained("HIP and CUDA"),
        ),
    ),
    Pain(
        35,
        "`HTTPRequestEntityTooLarge`",
        (
            checked(
                "AGENT_WORKING_DIR",
                "tests/unit/node/test_runtime_env.py::test_a_folder_too_large_is_refused",
            ),
            explained("upload too large"),
        ),
    ),
    Pain(
        36,
        "`… is over 95% full … Object creation will fail if spilling is required`",
        (
            avoided("tests/unit/run/test_old_sessions.py::test_the_disk_is_freed"),
            checked("/tmp", f"{CHECK}[a disk that is nearly full]"),
            explained("disk nearly full"),
        ),
    ),
    Pain(
        37,
        "`AF_UNIX path length cannot exceed 107 bytes`",
        (
            checked(
                "AGENT_RAY_ARGS", "tests/unit/settings/test_ray_args.py::test_a_temp_dir_too_deep"
            ),
            explained("socket path"),
        ),
    ),
    Pain(38, "`have not registered within the timeout`", (explained("registration"),)),
    Pain(
        39,
        "`the runtime env agent timed out`, `Cannot assign requested address`",
        (
            checked("node address", f"{CHECK}[foreign address]"),
            explained("runtime env agent"),
            explained("local address"),
        ),
    ),
    Pain(
        40,
        "`Job supervisor actor failed to start within 900.0 seconds`",
        (
            avoided("tests/unit/run/test_job_command.py::test_what_does_not_fit_is_refused"),
            explained("job supervisor"),
        ),
    ),
    Pain(
        41,
        "a breakpoint waits for a debugger that nobody attached",
        (
            avoided(f"{ENVIRONMENT}::test_the_two_debuggers_exclude_each_other"),
            checked("debugger", f"{CHECK}[legacy debugger]"),
        ),
    ),
    Pain(
        42,
        "`Failed to establish connection to the metrics exporter agent`",
        (Answer("explained", NOISE, "metrics exporter"),),
    ),
    Pain(
        43,
        "`ray start --block` outlives its raylet, and stops slowly",
        (
            avoided("tests/lab/test_ends.py::test_sigterm_to_the_head_stops_all_within_the_grace"),
            avoided(f"{ENVIRONMENT}::test_what_training_needs_is_chosen"),
        ),
    ),
    Pain(
        44,
        "`Failed to connect to the observability pubsub at address …`",
        (
            avoided("tests/lab/test_boot.py::test_the_heads_name_resolves_ten_seconds_late"),
            Answer("explained", NOISE, "observability pubsub"),
        ),
    ),
)
