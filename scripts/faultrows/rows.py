"""The table of faults: what fails, what follows, and the scenarios that prove it."""

from __future__ import annotations

from typing import NamedTuple

DEATHS = "tests/lab/test_deaths.py::"
KILLED = "tests/lab/test_agent_killed.py::"
ENDS = "tests/lab/test_ends.py::"
REWARD = "tests/lab/test_reward.py::"
SERVICES = "tests/lab/test_services.py::"
SIGNALS = "tests/lab/test_signals_pass.py::"
READERS = "tests/lab/test_blocked_readers.py::"
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
HUNG = "tests/lab/test_hung_dashboard.py::"


class Row(NamedTuple):
    """One kind of fault."""

    name: str
    """By which scripts/faults is told to try it alone."""
    event: str
    outcome: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "worker-back",
        "a worker's pod is killed and started again",
        "named at the head within 3 s; it rejoins; the attempt that was lost is made again",
        (
            DEATHS + "test_a_killed_worker_that_returns_costs_an_attempt",
            DEATHS + "test_a_killed_worker_is_named_within_three_seconds",
        ),
    ),
    Row(
        "worker-gone",
        "a worker is lost and never comes back",
        "after AGENT_NODE_GRACE the job is stopped: another attempt, or 75 with its name",
        (
            ENDS + "test_sigterm_to_a_worker",
            DEATHS + "test_a_killed_worker_is_named_within_three_seconds",
        ),
    ),
    Row(
        "worker-stall",
        "a worker is lost under a job and is back within AGENT_NODE_GRACE",
        "the job goes on; where it shows no sign of work for AGENT_STALL, the attempt is lost",
        (STALL + "test_a_job_that_hangs_after_a_loss_is_retried",),
    ),
    Row(
        "worker-idle",
        "a worker is lost where no job runs (AGENT_JOB=none)",
        "the cluster stays, and takes it back",
        (ENDS + "test_a_worker_rejoins_a_cluster_without_a_job",),
    ),
    Row(
        "worker-spare",
        "a worker more than the attempt needs joins late, or in place of a lost one",
        "said that it stays unused until the next attempt, which takes it",
        (SPARE + "test_a_spare_joins_the_next_attempt",),
    ),
    Row(
        "head-back",
        "the head's pod is killed and comes back, elsewhere, with its disk or without",
        "workers wait AGENT_HEAD_GRACE and rejoin; the run goes on with its next attempt",
        (DEATHS + "test_a_head_with_a_new_address_continues_its_run",),
    ),
    Row(
        "head-other",
        "the head begins another run",
        "a worker of the old one leaves with 75",
        (DEATHS + "test_a_head_that_starts_another_run",),
    ),
    Row(
        "head-gone",
        "the head never comes back",
        "workers leave with 75 after AGENT_HEAD_GRACE",
        (DEATHS + "test_a_head_that_never_returns",),
    ),
    Row(
        "ray-boot",
        "Ray's GCS dies or hangs while it boots",
        "said within 3 s, and started again in place; what hangs after 30 s",
        (
            ENDS + "test_a_ray_killed_while_booting_is_restarted",
            ENDS + "test_a_ray_that_hangs_while_booting_is_restarted",
        ),
    ),
    Row(
        "ray-job",
        "the head's Ray dies under a job",
        "the attempt is lost and made again on a new Ray, while retries last; then 75",
        (DEATHS + "test_the_heads_ray_is_killed_twice",),
    ),
    Row(
        "ray-idle",
        "Ray dies where no job runs, on the head or a worker",
        "started again in place; a worker joins again by itself",
        (DEATHS + "test_a_killed_ray_without_a_job_is_restarted",),
    ),
    Row(
        "dashboard",
        "Ray's dashboard hangs under a job",
        "the job is left alone, and its end is heard from GCS",
        (DEATHS + "test_a_hung_dashboard_does_not_end_the_job",),
    ),
    Row(
        "dashboard-asked",
        "Ray's dashboard hangs before a job is submitted, where Ray only serves, or at a stop",
        "told within 3 s; after 30 s Ray is started again; at a stop the driver gets its SIGTERM",
        (
            HUNG + "test_a_dashboard_that_hangs_before_the_job",
            HUNG + "test_a_dashboard_that_hangs_without_a_job",
            HUNG + "test_a_job_is_stopped_without_the_dashboard",
        ),
    ),
    Row(
        "agent",
        "only the agent is killed (SIGKILL), on the head or a worker, booting or following",
        "another goes on with the living Ray, services and job; no line of output is lost",
        (
            KILLED + "test_a_killed_agent_is_started_again_and_follows_on",
            KILLED + "test_killed_while_everything_boots",
            KILLED + "test_logs_follow_survives_a_killed_agent",
            KILLED + "test_killed_between_two_attempts",
            KILLED + "test_killed_together_with_its_ray",
            SERVICES + "test_the_next_head_agent_keeps_a_workers_services",
        ),
    ),
    Row(
        "agent-amid",
        "the head's agent is killed after a worker was lost, as it stops the job, or as it leaves",
        "the next knows of it by run.json: another attempt, 75 with the worker's name, the verdict",
        (
            KILLED + "test_killed_while_it_ends",
            KILLED + "test_the_next_agent_reads_of_a_loss",
            KILLED + "test_killed_while_it_stops_a_job_after_a_loss",
            KILLED + "test_a_stop_right_after_the_agent_was_killed",
        ),
    ),
    Row(
        "agent-again",
        "the agent is killed four times within ten minutes, or its parent is",
        "70; as on SIGTERM",
        (
            KILLED + "test_an_agent_that_is_killed_again_and_again_ends_the_run",
            KILLED + "test_a_killed_parent_stops_the_agent",
        ),
    ),
    Row(
        "reward",
        "the reward server dies, hangs or answers 500",
        "started again with pauses that grow; the job goes on; outages stand in outcome.json",
        (
            REWARD + "test_a_killed_reward_server_is_restarted",
            REWARD + "test_a_reward_server_that_hangs_or_fails_is_restarted",
            SERVICES + "test_a_retriever_on_every_node",
        ),
    ),
    Row(
        "reward-never",
        "a reward server dies before it is ready, or answers nonsense to the end",
        "69 with its last words",
        (
            REWARD + "test_a_reward_server_that_exits_early",
            REWARD + "test_a_wrong_reply_is_retried_until_the_deadline",
            SERVICES + "test_a_workers_failing_service_is_named_at_the_head",
        ),
    ),
    Row(
        "link",
        "a worker's link is cut for ten seconds and healed",
        "nothing is restarted, the job goes on",
        (LINKS + "test_a_link_that_is_cut_for_ten_seconds",),
    ),
    Row(
        "link-one-way",
        "a worker's link loses all packets one way, either way, for ten seconds",
        "nothing is restarted, the job goes on",
        (LINKS + "test_a_link_that_drops_one_direction_for_ten_seconds",),
    ),
    Row(
        "link-gone",
        "a worker's link is cut for good, both ways or one",
        "75 after AGENT_NODE_GRACE with its name; the worker after AGENT_HEAD_GRACE",
        (LINKS + "test_a_link_that_is_cut_for_good",),
    ),
    Row(
        "link-bad",
        "a line loses 30 % of all packets, each way, and delays the rest by 200 ms",
        "boot and job succeed; where Ray does not bear it (`ray start` gives up after 30 s without "
        "GCS), another attempt does",
        (LINKS + "test_a_slow_and_lossy_link",),
    ),
    Row(
        "dns",
        "DNS is mute, tells nothing, a wrong address or an old one, and changes its mind",
        "waited for and asked anew; while it is mute the head is called where it was",
        (
            "tests/lab/test_boot.py::test_the_heads_name_resolves_ten_seconds_late",
            DNS + "test_a_dns_server_that_answers_late",
            DNS + "test_dns_gives_a_wrong_address_first",
            DNS + "test_the_heads_name_moves_while_dns_fails",
        ),
    ),
    Row(
        "clock",
        "a pod's clock jumps by an hour, both ways, while it boots and while the job runs",
        "nothing happens, and no deadline moves",
        (CLOCK + "test_a_clock_that_jumps", CLOCK + "test_deadlines_when_the_clock_jumps"),
    ),
    Row(
        "fence",
        "a worker's link stays cut",
        "it ends its own Ray and what it runs at 0.8 of AGENT_NODE_GRACE, before the next attempt "
        "begins, and joins again when the head answers",
        (
            FENCE + "test_a_worker_that_is_cut_off_fences_itself",
            FENCE + "test_a_fenced_worker_rejoins",
            FENCE + "test_a_fenced_workers_prepare_step_runs_again",
        ),
    ),
    Row(
        "superseded",
        "a second head begins in the same run",
        "the first stops its job and leaves with 75, superseded",
        (HEADS + "test_a_second_head_supersedes_the_first",),
    ),
    Row(
        "slurm",
        "under Slurm a task dies, the job is cancelled, requeued or out of time",
        "all leave in order; a requeued job goes on in the same folders",
        (
            SLURM + "test_a_killed_task_ends_the_others",
            SLURM + "test_scancel",
            SLURM + "test_requeue",
            SLURM + "test_time_limit",
        ),
    ),
    Row(
        "slurm-agent",
        "under Slurm only the agent is killed within its step, on the head or a worker",
        "its parent starts another within the step: the same Ray, one attempt, the job's code",
        (SLURM_LOSSES + "test_an_agent_killed_within_its_step",),
    ),
    Row(
        "slurm-node",
        "under Slurm a node is lost, or all that runs there hangs",
        "Slurm requeues the job when it misses the node, the batch script at 75: the same job id "
        "goes on as the next attempt",
        (
            SLURM_LOSSES + "test_a_lost_node_requeues_the_job",
            SLURM_LOSSES + "test_a_hung_node_requeues_the_job",
        ),
    ),
    Row(
        "dstack",
        "dstack stops all nodes of a run and submits it anew, elsewhere, under the same id",
        "goes on from run.json where that lies on a volume, else begins; both are said",
        (PLATFORMS + "test_dstack_resubmits_an_interrupted_run",),
    ),
    Row(
        "readers",
        "nobody reads the agent's stdout or stderr",
        "deadlines, SIGTERM and the exit are held all the same",
        (
            READERS + "test_a_stdout_that_nobody_reads",
            READERS + "test_a_stderr_that_nobody_reads",
            READERS + "test_closed_stdout_and_stderr",
        ),
    ),
    Row(
        "signals",
        "SIGTERM, SIGINT twice, `pod-agent stop`, or SIGUSR1",
        "143 or 130 everywhere, within the grace, and nothing is left; the job hears SIGUSR1",
        (
            ENDS + "test_sigterm_to_the_head_stops_all_within_the_grace",
            ENDS + "test_sigterm_while_booting",
            ENDS + "test_a_second_sigint_kills",
            ENDS + "test_stop_from_the_heads_own_node_alone",
            SIGNALS + "test_sigusr1_reaches_a_program_below_a_shell",
        ),
    ),
    Row(
        "signals-table",
        "SIGTERM, SIGINT, SIGHUP or SIGKILL in any phase, on the head or a worker",
        "143 or 130, of what is held its verdict; an agent that is killed goes on; nothing is left",
        (TABLE + "test_a_signal",),
    ),
    Row(
        "disk-full",
        "the disk of the run folder is full, while it boots or under the job",
        "one warning with folder, cause and remedy; output, end and code are the job's own",
        (DISKS + "test_a_full_log_disk_does_not_end_the_job",),
    ),
    Row(
        "disk-stalls",
        "the disk of the run folder takes no write any more, under the job, as an attempt begins, "
        "or from the start",
        "told after 10 s; neither the job, nor a stop, nor the agent's end waits for it; from the "
        "start: 78",
        (
            DISKS + "test_a_log_disk_that_stalls",
            DISKS + "test_a_log_disk_that_stalls_from_the_start",
            DISKS + "test_sigterm_while_a_disk_stalls_an_attempt",
        ),
    ),
    Row(
        "disk-ray",
        "/tmp or /dev/shm is full",
        "69, and the end names the disk of /tmp; a warning for /dev/shm, and Ray goes without",
        (DISKS + "test_a_full_tmp", DISKS + "test_a_full_shm"),
    ),
    Row(
        "memory",
        "memory runs out: Ray's OOM killer takes a worker or the job, the kernel's the job or Ray",
        "said as such, with the job's code or 75; never another attempt",
        (MEMORY + "test_rays_oom_killer", MEMORY + "test_the_kernels_oom_killer"),
    ),
    Row(
        "memory-agent",
        "the kernel's OOM killer takes the agent",
        "another continues its run, and says why",
        (MEMORY + "test_the_kernels_oom_killer_kills_the_agent",),
    ),
    Row(
        "chaos",
        "a minute of random mishaps (`scripts/chaos` for more)",
        "ends as a model predicts, in time, with nothing left",
        ("tests/lab/test_chaos.py::test_a_short_seed_ends_as_predicted",),
    ),
)
