"""The table of faults: each fault, its result, and the scenarios that prove it."""

from __future__ import annotations

from typing import NamedTuple

LOSSES = "tests/lab/test_losses.py::"
BILLS = "tests/lab/test_bills.py::"
KILLED = "tests/lab/test_agent_killed.py::"
ENDS = "tests/lab/test_ends.py::"
REWARD = "tests/lab/test_reward.py::"
SERVICES = "tests/lab/test_services.py::"
SIGNALS = "tests/lab/test_user_signals.py::"
READERS = "tests/lab/test_unread_output.py::"
PLATFORMS = "tests/lab/test_platforms.py::"
SLURM = "tests/lab/test_slurm.py::"
SLURM_LOSSES = "tests/lab/test_slurm_losses.py::"
FENCE = "tests/lab/test_fence.py::"
HEADS = "tests/lab/test_two_heads.py::"
TABLE = "tests/lab/test_signal_table.py::"
DISKS = "tests/lab/test_disks.py::"
MEMORY = "tests/lab/test_memory.py::"
LINKS = "tests/lab/test_links.py::"
DNS = "tests/lab/test_dns_faults.py::"
CLOCK = "tests/lab/test_clock.py::"
SPARE = "tests/lab/test_spare.py::"
STALL = "tests/lab/test_stall.py::"
NEXT_ATTEMPT = "tests/lab/test_next_attempt.py::"
HUNG = "tests/lab/test_hung_dashboard.py::"


class Row(NamedTuple):
    """One kind of fault."""

    name: str
    """The argument of scripts/faults that runs only this row."""
    event: str
    outcome: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "worker-back",
        "a worker's pod is killed and started again",
        "the head names it within 3 s; it rejoins; the lost attempt is made again",
        (
            LOSSES + "test_a_killed_worker_that_returns_costs_an_attempt",
            LOSSES + "test_a_killed_worker_is_named_within_three_seconds",
        ),
    ),
    Row(
        "worker-gone",
        "a worker is lost and does not return",
        "after AGENT_NODE_GRACE the job is stopped: another attempt, or 75 with its name",
        (
            ENDS + "test_sigterm_to_a_worker",
            LOSSES + "test_a_killed_worker_is_named_within_three_seconds",
        ),
    ),
    Row(
        "worker-taken",
        "a platform takes a worker away (SIGTERM) from a job that saves on AGENT_NOTICE_SIGNAL",
        "the job saves within the notice and is stopped; the worker leaves with 143; another "
        "attempt begins when a node is back, and AGENT_JOB_RETRIES does not count it",
        (BILLS + "test_a_node_that_is_taken_away",),
    ),
    Row(
        "worker-stall",
        "a worker is lost while a job runs and returns within AGENT_NODE_GRACE",
        "the job continues; if it makes no progress for AGENT_STALL, the attempt is lost",
        (STALL + "test_a_job_that_hangs_after_a_loss_is_retried",),
    ),
    Row(
        "steps-stop",
        "the job's steps stop",
        "all nodes are examined, and a sentence names node, process and function; if a second "
        "examination agrees, the attempt is lost and the next one resumes (AGENT_ON_STALL=retry)",
        (
            STALL + "test_a_job_whose_steps_stop_is_retried",
            NEXT_ATTEMPT + "test_nothing_of_an_attempt_runs_beside_the_next",
        ),
    ),
    Row(
        "worker-idle",
        "a worker is lost while no job runs (AGENT_JOB=none)",
        "the cluster keeps running, and the worker rejoins",
        (ENDS + "test_a_worker_rejoins_a_cluster_without_a_job",),
    ),
    Row(
        "worker-spare",
        "a worker that the attempt does not need joins late, or replaces a lost one",
        "a log line: it is unused until the next attempt, which uses it",
        (SPARE + "test_a_spare_joins_the_next_attempt",),
    ),
    Row(
        "head-back",
        "the head's pod is killed and restarted elsewhere, with its disk or without",
        "workers wait AGENT_HEAD_GRACE and rejoin; the run continues with its next attempt",
        (LOSSES + "test_a_head_with_a_new_address_continues_its_run",),
    ),
    Row(
        "head-other",
        "the head starts another run",
        "a worker of the former run leaves with 75",
        (LOSSES + "test_a_head_that_starts_another_run",),
    ),
    Row(
        "head-gone",
        "the head does not return",
        "workers leave with 75 after AGENT_HEAD_GRACE",
        (LOSSES + "test_a_head_that_never_returns",),
    ),
    Row(
        "ray-boot",
        "Ray's GCS is killed or hangs while it boots",
        "logged within 3 s; Ray is restarted in place at once, or after 30 s if it hangs",
        (
            ENDS + "test_a_ray_killed_while_booting_is_restarted",
            ENDS + "test_a_ray_that_hangs_while_booting_is_restarted",
        ),
    ),
    Row(
        "ray-job",
        "the head's Ray is killed while a job runs",
        "the attempt is lost and made again on a new Ray while retries remain; then 75",
        (LOSSES + "test_the_heads_ray_is_killed_twice",),
    ),
    Row(
        "ray-idle",
        "Ray is killed while no job runs, on the head or a worker",
        "Ray is restarted in place; a worker rejoins",
        (LOSSES + "test_a_killed_ray_without_a_job_is_restarted",),
    ),
    Row(
        "dashboard",
        "Ray's dashboard hangs while a job runs",
        "the job continues, and its end is read from GCS",
        (LOSSES + "test_a_hung_dashboard_does_not_end_the_job",),
    ),
    Row(
        "dashboard-asked",
        "Ray's dashboard hangs before a job is submitted, while no job runs, or at a stop",
        "logged within 3 s; Ray is restarted after 30 s; at a stop the driver still gets SIGTERM",
        (
            HUNG + "test_a_dashboard_that_hangs_before_the_job",
            HUNG + "test_a_dashboard_that_hangs_without_a_job",
            HUNG + "test_a_job_is_stopped_without_the_dashboard",
        ),
    ),
    Row(
        "agent",
        "only the agent is killed (SIGKILL), on the head or a worker, booting or following",
        "a new one continues with the same Ray, services and job; no line of output is lost. With "
        "`AGENT_LAUNCHER` its ranks end with it: a lost attempt",
        (
            KILLED + "test_a_killed_agent_is_restarted_and_follows_the_job",
            KILLED + "test_killed_while_everything_boots",
            KILLED + "test_logs_follow_survives_a_killed_agent",
            KILLED + "test_killed_between_two_attempts",
            KILLED + "test_killed_together_with_its_ray",
            SERVICES + "test_the_next_head_agent_keeps_a_workers_services",
        ),
    ),
    Row(
        "agent-amid",
        "the head's agent is killed after the loss of a worker, as it stops the job, or as it ends",
        "the next one continues from run.json: another attempt, 75 with the worker's name, or the "
        "verdict",
        (
            KILLED + "test_killed_while_it_ends",
            KILLED + "test_the_next_agent_reads_the_loss",
            KILLED + "test_killed_while_it_stops_a_job_after_a_loss",
            KILLED + "test_a_stop_right_after_the_agent_was_killed",
        ),
    ),
    Row(
        "agent-again",
        "the agent is killed four times within ten minutes, or its parent is killed",
        "70; as on SIGTERM",
        (
            KILLED + "test_an_agent_that_is_killed_again_and_again_ends_the_run",
            KILLED + "test_a_killed_parent_stops_the_agent",
        ),
    ),
    Row(
        "reward",
        "the reward server exits, hangs or answers 500",
        "it is restarted with growing pauses; the job continues; outcome.json lists the outages",
        (
            REWARD + "test_a_killed_reward_server_is_restarted",
            REWARD + "test_a_reward_server_that_hangs_or_fails_is_restarted",
            SERVICES + "test_a_retriever_on_every_node",
        ),
    ),
    Row(
        "reward-never",
        "a reward server exits before it is ready, or its answers stay wrong",
        "69 with the last lines of its log",
        (
            REWARD + "test_a_reward_server_that_exits_early",
            REWARD + "test_a_wrong_reply_is_retried_until_the_deadline",
            SERVICES + "test_a_workers_failing_service_is_named_at_the_head",
        ),
    ),
    Row(
        "link",
        "a worker's link is cut for ten seconds",
        "nothing is restarted, the job continues",
        (LINKS + "test_a_link_that_is_cut_for_ten_seconds",),
    ),
    Row(
        "link-one-way",
        "a worker's link loses all packets in one direction for ten seconds",
        "nothing is restarted, the job continues",
        (LINKS + "test_a_link_that_drops_one_direction_for_ten_seconds",),
    ),
    Row(
        "link-gone",
        "a worker's link is cut permanently, in one direction or both",
        "head: 75 with its name after AGENT_NODE_GRACE; worker: 75 after AGENT_HEAD_GRACE",
        (LINKS + "test_a_link_that_is_cut_for_good",),
    ),
    Row(
        "link-bad",
        "a link loses 30 % of all packets each way, and delays the others by 200 ms",
        "boot and job succeed; if Ray fails (`ray start` gives up after 30 s without GCS), the "
        "next attempt succeeds",
        (LINKS + "test_a_slow_and_lossy_link",),
    ),
    Row(
        "dns",
        "DNS gives no answer, an empty, a wrong or an old one, and later a right one",
        "the worker waits and resolves again; without an answer it uses the former address",
        (
            "tests/lab/test_boot.py::test_the_heads_name_resolves_ten_seconds_late",
            DNS + "test_a_dns_server_that_answers_late",
            DNS + "test_dns_gives_a_wrong_address_first",
            DNS + "test_the_heads_name_moves_while_dns_fails",
        ),
    ),
    Row(
        "clock",
        "a pod's clock jumps by an hour, forward or back, while it boots and while the job runs",
        "no effect; no deadline moves",
        (CLOCK + "test_a_clock_that_jumps", CLOCK + "test_deadlines_when_the_clock_jumps"),
    ),
    Row(
        "fence",
        "a worker stays cut off",
        "it stops its Ray and its part of the job at 0.8 of AGENT_NODE_GRACE, before the next "
        "attempt begins, and rejoins when the head answers",
        (
            FENCE + "test_a_worker_that_is_cut_off_fences_itself",
            FENCE + "test_a_fenced_worker_rejoins",
            FENCE + "test_a_fenced_workers_prepare_step_runs_again",
        ),
    ),
    Row(
        "superseded",
        "a second head starts in the same run",
        "the first stops its job and leaves with 75, superseded",
        (HEADS + "test_a_second_head_supersedes_the_first",),
    ),
    Row(
        "impostor",
        "a process without the token answers at the head's name",
        "a worker sends it no token, and applies nothing that it answers; it joins the real head",
        ("tests/lab/test_impostor.py::test_an_impostor_at_the_head_s_name",),
    ),
    Row(
        "stalled",
        "strangers have hundreds of requests whose bodies do not come, to head and reward server",
        "no report and no reward is delayed; without a body in time each request ends",
        ("tests/lab/test_impostor.py::test_stalled_requests_delay_neither_reports_nor_rewards",),
    ),
    Row(
        "slurm",
        "Slurm: a task is killed, the job is canceled, requeued or at its time limit",
        "all tasks stop in order; a requeued job continues in the same folders",
        (
            SLURM + "test_a_killed_task_ends_the_others",
            SLURM + "test_scancel",
            SLURM + "test_requeue",
            SLURM + "test_time_limit",
        ),
    ),
    Row(
        "slurm-agent",
        "Slurm: only the agent is killed within its step, on the head or a worker",
        "its parent restarts it within the step: the same Ray, one attempt, the job's code",
        (SLURM_LOSSES + "test_an_agent_killed_within_its_step",),
    ),
    Row(
        "slurm-node",
        "Slurm: a node is lost, or all its processes hang",
        "Slurm requeues the job when the node stops responding, or the batch script does at 75: "
        "the same job id continues with the next attempt",
        (
            SLURM_LOSSES + "test_a_lost_node_requeues_the_job",
            SLURM_LOSSES + "test_a_hung_node_requeues_the_job",
        ),
    ),
    Row(
        "dstack",
        "dstack stops all nodes of a run and submits it again, elsewhere, under the same id",
        "continues from run.json if that is on a volume, else starts anew; the log says which",
        (PLATFORMS + "test_dstack_resubmits_an_interrupted_run",),
    ),
    Row(
        "readers",
        "no process reads the agent's stdout or stderr",
        "deadlines, SIGTERM and the exit work as usual",
        (
            READERS + "test_stdout_without_a_reader",
            READERS + "test_stderr_without_a_reader",
            READERS + "test_closed_stdout_and_stderr",
        ),
    ),
    Row(
        "signals",
        "SIGTERM, SIGINT twice, `pod-agent stop`, or SIGUSR1",
        "143 or 130 on all nodes, within the grace, and nothing is left; the job receives SIGUSR1",
        (
            ENDS + "test_sigterm_to_the_head_stops_all_within_the_grace",
            ENDS + "test_sigterm_while_booting",
            ENDS + "test_a_second_sigint_kills",
            ENDS + "test_stop_only_from_the_heads_node",
            SIGNALS + "test_sigusr1_reaches_a_program_below_a_shell",
        ),
    ),
    Row(
        "signals-table",
        "SIGTERM, SIGINT, SIGHUP or SIGKILL in any phase, on the head or a worker",
        "143 or 130, or the verdict of a held pod; a killed agent is restarted; nothing is left",
        (TABLE + "test_a_signal",),
    ),
    Row(
        "disk-full",
        "the disk of the run folder is full, while it boots or while the job runs",
        "one warning with folder, cause and remedy; the job's output, end and code do not change, "
        "also if the agent is killed meanwhile: the next one finds its records in memory",
        (DISKS + "test_a_full_log_disk_does_not_end_the_job",),
    ),
    Row(
        "disk-stalls",
        "writes to the disk of the run folder hang, while the job runs, as an attempt begins, or "
        "from the start",
        "logged after 10 s; neither the job, nor a stop, nor the agent's end waits for it; "
        "from the start: 78",
        (
            DISKS + "test_a_log_disk_that_stalls",
            DISKS + "test_a_log_disk_that_stalls_from_the_start",
            DISKS + "test_sigterm_while_a_disk_stalls_an_attempt",
        ),
    ),
    Row(
        "disk-ray",
        "/tmp or /dev/shm is full",
        "/tmp: 69 with the disk's name; /dev/shm: a warning, and Ray runs without it",
        (DISKS + "test_a_full_tmp", DISKS + "test_a_full_shm"),
    ),
    Row(
        "memory",
        "memory runs out: Ray's OOM killer ends a worker or the job, the kernel's the job or Ray",
        "the end names it, with the job's code or 75; no further attempt",
        (MEMORY + "test_rays_oom_killer", MEMORY + "test_the_kernels_oom_killer"),
    ),
    Row(
        "memory-agent",
        "the kernel's OOM killer ends the agent",
        "a new one continues the run, and logs why",
        (MEMORY + "test_the_kernels_oom_killer_kills_the_agent",),
    ),
    Row(
        "hours",
        "a run has used its AGENT_MAX_HOURS, or its AGENT_MAX_COST",
        "announced; the job is stopped with its grace to save; 78, with the cost",
        (
            BILLS + "test_a_run_that_has_used_its_hours",
            BILLS + "test_a_run_that_has_used_its_money",
        ),
    ),
    Row(
        "finished",
        "RunPod or a LeaderWorkerSet starts the container of a finished run again",
        "the recorded code again, without another job; AGENT_RERUN=1 runs it",
        (BILLS + "test_a_restarted_container_of_a_finished_run",),
    ),
    Row(
        "chaos",
        "a minute of random faults (`scripts/chaos` for more)",
        "the run ends as the model predicts, in time, with nothing left",
        ("tests/lab/test_chaos.py::test_a_short_seed_ends_as_predicted",),
    ),
)
