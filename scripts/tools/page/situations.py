"""Made-up runs in each situation that the page distinguishes, with any number of nodes.

The job's lines are verl's, read by the shipped reader; figures and states are set here.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.text import iso_time
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.receipt import Receipt
from agent.diagnosis.gpu_history import GpuHistory
from agent.job.services import Latency
from agent.node.figures import DiskFigures, Figures, Forecast, GpuFigures
from agent.port.status_model import (
    AdviceStatus,
    CheckpointStatus,
    GpuHistoryStatus,
    GroupServiceStatus,
    GroupStatus,
    HeadStatus,
    ItemStatus,
    JobStatus,
    MachineStatus,
    MemberStatus,
    NodeStatus,
    PartStatus,
    ProgressStatus,
    ServiceStatus,
    StallStatus,
    WaitStatus,
    WarningStatus,
    WhatRunsStatus,
)
from agent.record.job_lines import JobLines
from agent.record.outcome_file import OutageRecord, ShortageRecord
from agent.record.run_record import AttemptOutcome
from tools.page.runs import EVIL, MACHINE, service

if TYPE_CHECKING:
    from agent.job.series import SeriesPart

SITUATIONS = ("ok", "boot", "hang", "collapse", "lost", "failed", "ended")
"""Those of every size."""
FURTHER = ("cluster", "early", "stepless", "single", "groups")
"""Those of three nodes only: without a job, ended before its job, commands of the user without
steps, and with steps and one metric, and with groups of which one has nothing that serves."""
_WITHOUT_JOB = {"boot", "cluster", "early"}
_OWN_COMMAND = {"stepless", "single"}
TOTAL = 400
STEP = 212  # the last step of most situations
EACH = 61.0  # seconds of a step
BEGAN = 280.0  # seconds from the run's start to the first step
START = 1_795_299_480.0  # seconds since 1970 at the run's start
PRICE = 13.8  # dollars an hour of one node
COLLAPSE_AT = 200
SAVED_EVERY = 20
BROKE_AT = 95  # the step at which the first attempt lost a node


class MadeRun(NamedTuple):
    """A run as the head's port serves it."""

    status: HeadStatus  # for every reader
    private: HeadStatus  # for those with the token
    series: SeriesPart
    logs: dict[str, str]  # the text of each log of the head


def made_run(situation: str, nodes: int) -> MadeRun:
    """Return a run in a situation, with this many nodes, its head included."""
    now = _now(situation)
    lines = _lines(situation, now)
    status = _status(situation, nodes, now, lines)
    job_tail = () if situation in _WITHOUT_JOB else (*lines.tail()[-5:], EVIL)
    private = replace(
        status,
        warnings=_warnings(situation, nodes, lines),
        job_tail=job_tail,
        what_runs=_what_runs(situation),
        metrics=lines.newest(),
        prepare_lines={"head": {}},
        stall=_stall(situation, nodes, suspects=True),
    )
    logs = {"job": "\n".join(lines.tail()) + "\n", "agent": _agent_log(nodes)}
    series = replace(lines.series(), checkpoints=_checkpoints(situation))
    return MadeRun(status, private, series, logs)


def _checkpoints(situation: str) -> tuple[tuple[int, str], ...]:
    """Return step and time of each checkpoint."""
    if situation in {*_WITHOUT_JOB, *_OWN_COMMAND}:
        return ()
    steps = range(SAVED_EVERY, _last_step(situation) + 1, SAVED_EVERY)
    return tuple((step, iso_time(START + BEGAN + step * EACH + 21)) for step in steps)


def _now(situation: str) -> float:
    """Return the seconds since the run's start."""
    if situation == "boot":
        return 95.0
    if situation == "early":
        return 640.0
    last = BEGAN + _last_step(situation) * EACH
    return last + {"hang": 860.0, "failed": 40.0, "ended": 30.0}.get(situation, 12.0)


def _last_step(situation: str) -> int:
    return TOTAL if situation == "ended" else STEP


# --- the job --------------------------------------------------------------------------------------


def _lines(situation: str, now: float) -> JobLines:
    """Return what is known of the job by the lines that it has printed."""
    at = 0.0
    lines = JobLines(str, lambda: at)
    if situation in _WITHOUT_JOB:
        return lines
    lines.begin_attempt(1)
    if situation == "stepless":
        lines.write(b"training has begun\n", lambda _pause: False)
        return lines
    lines.write(b"Total training steps: %d\n" % TOTAL, lambda _pause: False)
    noise = random.Random(7)  # noqa: S311 - for curves that look real
    for step in range(1, _last_step(situation) + 1):
        at = BEGAN + step * EACH
        if step == BROKE_AT and situation != "single":
            lines.begin_attempt(2)
            lines.write(b"Total training steps: %d\n" % TOTAL, lambda _pause: False)
        line = f"(TaskRunner pid=981) {_metrics(situation, step, noise)}\n"
        if situation == "single":
            loss = 2.5 * math.exp(-step / 90) + noise.random() / 20
            line = f"step {step}/{TOTAL} loss={loss:.4f}\n"
        lines.write(line.encode(), lambda _pause: False)
    at = now
    return lines


def _metrics(situation: str, step: int, noise: random.Random) -> str:
    """Return verl's line of a step."""
    worse = max(0, step - COLLAPSE_AT) if situation == "collapse" else 0
    reward = max(0.0, 0.12 + 0.6 * (1 - math.exp(-step / 60)) - worse * 0.07)
    values = {
        "actor/kl_loss": 0.0008 * step**0.6 * (1 + worse * worse * 0.6) + noise.random() * 0.002,
        "actor/entropy": max(0.02, 0.5 * math.exp(-step / 140) - worse * 0.02)
        + noise.random() / 90,
        "actor/grad_norm": 0.4 + noise.random() * 0.2 + worse * 0.5,
        "critic/rewards/mean": reward + noise.uniform(-0.02, 0.02) * (reward > 0.05),
        "critic/score/mean": reward,
        "response_length/mean": 420 + step * 2.1 + worse * 24 + noise.uniform(-25, 25),
        "response_length/clip_ratio": 0.03,
        "timing_s/step": EACH,
        "timing_s/gen": 38.2,
        "timing_s/update_actor": 17.1,
        "timing_s/old_log_prob": 4.4,
        "perf/throughput": 1890 + noise.uniform(-120, 120) - worse * 11,
        "perf/mfu/actor": 0.34,
    }
    if step % 40 == 0:
        values["val-core/openai/gsm8k/acc/mean@1"] = max(0.0, reward - 0.03)
    return f"step:{step} - " + " - ".join(f"{name}:{value:.5g}" for name, value in values.items())


def _stall(situation: str, nodes: int, *, suspects: bool = False) -> StallStatus | None:
    if situation != "hang":
        return None
    waits = "23 of 24 ranks wait in `all_reduce` (fsdp.py:20)"
    words = f"{waits}; rank 3 on pod1 is in `compute_score` (reward.py:44) since 01:58"
    return StallStatus(
        what="no step for 14 min 20 s since step 212",
        then="log",
        suspects=words if suspects else "",
        nodes=("pod1",) if nodes > 1 else (),
        log="agent",
    )


def _warnings(situation: str, nodes: int, lines: JobLines) -> tuple[WarningStatus, ...]:
    ifname = "eth0 on pod2, podnet1 on the others"
    warnings = [WarningStatus("NCCL_SOCKET_IFNAME", ifname, "Set the same on all nodes")]
    stall = _stall(situation, nodes, suspects=True)
    if stall is not None:
        what = f"{stall.what}: {stall.suspects}"
        warnings.append(WarningStatus("stall", what, "Look at the named process"))
    return (*warnings, *map(WarningStatus.of_advice, lines.advice()))


def worker_log(node: str) -> str:
    """Return a worker's log in a hang."""
    lines = (
        f"22:18:53 {node} ✓ Ray is up on this node: following the head",
        f"02:12:31 {node}   the job here: rank 3 on {node} is in `compute_score` (reward.py:44)",
    )
    return "\n".join(lines) + "\n"


def _agent_log(nodes: int) -> str:
    return "\n".join(f"22:44:{n % 60:02} pod{n} joined Ray" for n in range(nodes)) + "\n"


# --- the status -----------------------------------------------------------------------------------


def _status(situation: str, nodes: int, now: float, lines: JobLines) -> HeadStatus:
    is_over = situation in {"failed", "ended", "early"}
    is_booting = situation == "boot"
    phase = HeadPhase.LEAVING if is_over else HeadPhase.RUNNING
    if is_booting:
        phase = HeadPhase.BOOTING
    price = round(PRICE * nodes, 2)
    receipt = Receipt(boot=min(now, BEGAN), wait=18.0, training=max(0.0, now - BEGAN))
    is_recipe = situation not in {*_WITHOUT_JOB, *_OWN_COMMAND}
    is_late = situation in {"boot", "early"}
    away = OutageRecord("reward server", "pod0", iso_time(START + 3400), iso_time(START + 3408))
    saved = CheckpointStatus((_last_step(situation) // SAVED_EVERY) * SAVED_EVERY, None)
    checkpoints = _checkpoints(situation)
    return HeadStatus(
        run_id="20261121-2244-7f3a",
        run_name="first sums",
        epoch=1,
        platform="runpod",
        name="pod0",
        phase=phase,
        at=iso_time(START + now),
        seconds=now,
        seconds_in_phase=_seconds_in_phase(situation, now),
        phases=(("booting", 0.0), *([] if is_late else [("running", BEGAN)])),
        waits=(_wait(nodes),) if is_booting else (),
        ray=PartStatus("ready", ""),
        nodes=tuple(_node(situation, nodes, number) for number in range(1, nodes)),
        services=_services(situation),
        prepare=(ItemStatus("gsm8k", "ready", ""),),
        groups=_groups() if situation == "groups" else (),
        shortages=_shortages(now) if situation == "groups" else (),
        outages=(away,) if is_recipe else (),
        job=_job(situation),
        verdict=_verdict(situation, nodes),
        attempts=_attempts(situation, now),
        figures=_figures(situation, 0, is_slow=False),
        slow="",
        gpu_history=_gpu_history(situation, now),
        progress=ProgressStatus.of_job(
            lines, lambda at: iso_time(START + at), is_running=not is_over
        ),
        curves=replace(lines.curves(), checkpoints=checkpoints),
        nodes_expected=nodes,
        nodes_joined=nodes - (_late(nodes) if is_late else 0),
        more_refused=0,
        attempts_allowed=3 if is_recipe or is_booting else 1,
        loss_seconds_left=19.0 if situation == "lost" and nodes > 1 else None,
        stall=_stall(situation, nodes),
        advice=tuple(map(AdviceStatus.of, lines.advice())),
        checkpoint=saved if is_recipe else None,
        caches=None,
        price=price,
        price_source="AGENT_PRICE_PER_HOUR",
        max_cost=None,
        cost=round(price * now / 3600, 2),
        receipt=receipt.to_status(price),
    )


def _job(situation: str) -> JobStatus | None:
    if situation == "cluster":
        return None
    if situation in {"boot", "early"}:
        return JobStatus("verl-grpo", "not submitted", 1)
    if situation in _OWN_COMMAND:
        return JobStatus("python3 train.py", "running", 1)
    ended = {"failed": "failed", "ended": "succeeded"}
    return JobStatus("verl-grpo", ended.get(situation, "running"), 2)


def _seconds_in_phase(situation: str, now: float) -> float:
    if situation == "boot":
        return now
    return 10.0 if situation == "early" else now - BEGAN


def _gpu_history(situation: str, now: float) -> GpuHistoryStatus:
    """Return what the GPUs did: idle before the first step, in a hang full at little power."""
    history = GpuHistory()
    noise = random.Random(3)  # noqa: S311 - for curves that look real
    is_idle = situation in _WITHOUT_JOB
    for at in range(30, int(now), 30):
        use = 0 if is_idle or at < BEGAN else 91 + noise.randint(-8, 6)
        if situation == "hang" and at > now - 860:
            use = 100
        used = 2_000 if use == 0 else 71_000
        gpus = (GpuFigures(0, use, used, 81_559), GpuFigures(1, use, used, 81_559))
        slower = (GpuFigures(0, use - 12 if use > 12 else use, used, 81_559),)
        history.add(at, (Figures(at, gpus), Figures(at, slower)))
    return GpuHistoryStatus(**history.to_status())


_COMMAND = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 \
data.train_files=/workspace/data/gsm8k/train.parquet data.train_batch_size=1024 \
data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.rollout.name=vllm \
actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=8 \
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.optim.lr=1e-6"""


def _what_runs(situation: str) -> WhatRunsStatus:
    """Return what the job is made of, with arguments as long as a recipe's."""
    versions = {"pod-agent": "0.1.0", "Ray": "2.50.0", "Python": "3.12.3"}
    if situation == "cluster":
        return WhatRunsStatus("", "", "", versions)
    if situation in _OWN_COMMAND:
        return WhatRunsStatus("", "", "python3 train.py --epochs 3", versions)
    return WhatRunsStatus(
        "Qwen/Qwen2.5-7B-Instruct",
        "/workspace/data/gsm8k/train.parquet",
        f"{_COMMAND} {EVIL}",
        {**versions, "torch": "2.8.0", "vllm": "0.11.0", "verl": "0.6.0"},
    )


def _wait(nodes: int) -> WaitStatus:
    evidence = f"{nodes - 1 - _late(nodes)} of {nodes - 1} joined"
    what = "workers"
    if nodes == 1:
        evidence = "connection refused by 127.0.0.1:5000"
        what = "the reward server"
    return WaitStatus(what, evidence, 505.0, following=False)


def _late(nodes: int) -> int:
    """Return how many nodes have not joined while the run boots."""
    return max(1, nodes // 10)


def _verdict(situation: str, nodes: int) -> Outcome | None:
    if situation == "failed":
        return Outcome(
            Kind.JOB_FAILED,
            1,
            f"CUDA out of memory on pod{min(7, nodes - 1)}, step 212",
            "running",
            "job",
            "AGENT_JOB_ARGS=actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
            is_jobs_verdict=True,
        )
    if situation == "early":
        workers = nodes - 1
        return Outcome(
            Kind.UNAVAILABLE,
            69,
            f"workers not ready in time: {workers - _late(nodes)} of {workers} joined",
            "booting",
            "workers",
            "Do as many pods run as EXPECTED_WORKERS says, and does each reach the head?",
        )
    if situation == "ended":
        return Outcome(Kind.DONE, 0, "the job succeeded", "running", "job", is_jobs_verdict=True)
    return None


def _attempts(situation: str, now: float) -> tuple[AttemptOutcome, ...]:
    if situation in _WITHOUT_JOB:
        return ()
    if situation in _OWN_COMMAND:
        return (AttemptOutcome(1, iso_time(START + 200), None, "", None),)
    broke = START + BEGAN + BROKE_AT * EACH
    lost = "lost a needed node (pod3)"
    first = AttemptOutcome(1, iso_time(START + 200), iso_time(broke - 120), lost, 75)
    second = AttemptOutcome(2, iso_time(broke - 60), None, "", None)
    verdict = _verdict(situation, 1)
    if verdict is not None:
        end = iso_time(START + now)
        second = replace(second, end=end, reason=verdict.reason, exit_code=verdict.exit_code)
    return (first, second)


def _services(situation: str) -> tuple[ServiceStatus, ...]:
    if situation in {"cluster", *_OWN_COMMAND}:
        return ()
    if situation == "boot":
        return (service("reward server", "pending", detail=f"refused {EVIL}"),)
    latency = Latency().with_answer(0.031)
    shown = service("reward server", "ready", restarts=1, outages=1, seconds=8.0, latency=latency)
    return (shown,)


STARVED = (
    "no engine serves since 22:14 UTC: all 4 on pod1 and pod2: exit code 1 (a GPU ran out of "
    "memory); the trainer waits for samples"
)


def _groups() -> tuple[GroupStatus, ...]:
    """Return a group of which nothing serves, and one of which all members do."""
    why = "exit code 1 (a GPU ran out of memory)"
    engines = tuple(
        MemberStatus(f"engine.{n % 2}", f"pod{1 + n // 2}", "dead", why, 3, "212", 9_000, 14)
        for n in range(4)
    )
    engine = GroupServiceStatus(
        "engine",
        0,
        2,
        states={"dead": 4},
        names=("engine.0", "engine.1"),
        members=engines,
        short=STARVED,
        short_since=9_000.0,
        nothing_since=9_000.0,
        version="213",
        held=64,
        requests_per_second=0.0,
        errors=56,
    )
    judge = GroupServiceStatus(
        "judge",
        8,
        6,
        states={"serving": 8},
        names=("judge",),
        members=tuple(MemberStatus("judge", f"pod{n}", "serving", "", 0) for n in range(8)),
    )
    return (
        GroupStatus("rollout", 2, 2, ray=False, lost="wait", services=(engine,)),
        GroupStatus("judges", 8, 8, ray=False, lost="wait", services=(judge,)),
    )


def _shortages(now: float) -> tuple[ShortageRecord, ...]:
    began = iso_time(START + now - 300)
    return (ShortageRecord("rollout", "engine", began, None, 300.0, 280.0, "0 of 4 serve"),)


def _slow_node(nodes: int) -> int | None:
    """Return the slow node of a large run."""
    return nodes * 2 // 3 if nodes > 16 else None


def _lost_nodes(nodes: int) -> tuple[int, ...]:
    if nodes == 1:
        return ()
    return (41, nodes - 1) if nodes > 41 else (nodes - 1,)


def _node(situation: str, nodes: int, number: int) -> NodeStatus:
    is_late = situation == "boot" and number >= nodes - _late(nodes)
    is_gone = situation == "lost" and number in _lost_nodes(nodes)
    is_slow = situation in {"collapse", "lost", "failed"} and number == _slow_node(nodes)
    state = NodeState.BOOTING if is_late else NodeState.JOINED
    if situation == "early":
        state = NodeState.LEFT
    if is_gone:
        state = NodeState.SILENT if number == 41 or nodes < 10 else NodeState.LOST
    slow = "GPU clock 345 MHz, median of all nodes 1980 MHz, for 12 min (limited by temperature)"
    detail = EVIL if number == 1 else ""
    return NodeStatus(
        name=f"pod{number}",
        ip=f"10.0.{number // 250}.{number % 250 + 1}",
        rank=number,
        state=state,
        phase="finding the head" if is_late else "following the head",
        detail="pulling the model: 40 %" if is_late else detail,
        last_error="its Ray is gone" if state is NodeState.LOST else "",
        heard_seconds_ago=41.0 if is_gone else 1.5,
        joined=state is NodeState.JOINED,
        phases=(("finding the head", 1.0), ("following the head", 60.0 + number % 17)),
        steps=(),
        figures=None if is_late else _figures(situation, number, is_slow=is_slow),
        slow=slow if is_slow else "",
        slow_by="clock" if is_slow else "",
        caches="",
    )


def _figures(situation: str, number: int, *, is_slow: bool) -> MachineStatus:
    """Return a machine's figures: eight GPUs, host memory, and the disk of the checkpoints."""
    noise = random.Random(number)  # noqa: S311 - same
    use = 0 if situation in {*_WITHOUT_JOB, "failed", "ended"} else 91
    if situation == "hang":
        use = 100
    gpus = []
    for index in range(8):
        seen = max(0, min(100, use + noise.randint(-7, 7))) if 0 < use < 100 else use
        power = 131 if situation == "hang" else 90 + seen * 6
        clock = 1980
        heat = 61 + number % 5
        if is_slow:
            seen, clock, heat, power = 14, 345, 84, 210
        gpus.append(GpuFigures(index, seen, 71_000, 81_559, power, 700, heat, clock))
    disks = (DiskFigures("/workspace", 1_200 << 30, 2_000 << 30),)
    ahead = (Forecast("disk /workspace", 19 * 3600, 42 * 10**9, 3600),) if number == 0 else ()
    return MachineStatus.of(Figures(300.0, tuple(gpus), disks, ahead, **MACHINE))
