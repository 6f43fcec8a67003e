"""trl-grpo by its name over two pods, with the loss of one pod and of both."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import tools.lab as podlab
from tools.frameworks import agents
from tools.frameworks.packages import FOLDER, environment
from tools.frameworks.training import (
    FEW,
    FROM_CHECKPOINT,
    QUIET,
    STEP,
    TRAIN_LIMIT,
    NotTrainedError,
    curve,
    make_ground,
)

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 50
LOST_AT, KILLED_AT = 5, 20
"""Checkpoints: the worker's pod is lost at the first, both pods at the second."""
LEARNT = 0.6
RESUMES = re.compile(r"resumes from \S*checkpoint-(\d+)")


def on_pods() -> str:
    """Train over two pods by the recipe's name; lose one, then both; return what was observed.

    The agent launches torchrun (gloo) and the bundled reward server; TRL trains, and nothing is
    downloaded. The worker's pod is killed and restarted: a second attempt resumes from the
    checkpoint. Then both are killed, and a second run resumes.
    """
    if (reason := podlab.missing()) is not None:
        raise NotTrainedError(reason)
    ground = make_ground("pods")
    with podlab.Lab(names=["poda", "podb"], shm="1g", share=[FOLDER, ground]) as lab:
        head, worker = (start(lab, pod, ground) for pod in lab.pods)
        await_checkpoint(head, ground, LOST_AT)
        worker.kill()
        again = start(lab, lab.pods[1], ground)
        await_checkpoint(head, ground, KILLED_AT)
        for container in (head, again):
            container.kill()
        before = head.stdout()
        second = [start(lab, pod, ground, "/tmp/second") for pod in lab.pods]
        codes = [container.wait(TRAIN_LIMIT) for container in second]
        after, said = second[0].stdout(), second[0].stderr()
        if codes != [0, 0]:
            raise NotTrainedError(f"codes {codes}: {second[0].tail()}")
    first, retried = halves(before)
    lost, killed, steps = gone_on(retried), gone_on(after), STEP.findall(after)
    printed = RESUMES.search(said)
    if printed is None or int(printed[1]) != killed:
        raise NotTrainedError(f"the agent did not report that it resumes from {killed}: {said}")
    if killed < KILLED_AT or int(steps[-1][0]) != STEPS or float(steps[-1][2]) < LEARNT:
        raise NotTrainedError(f"from checkpoint {killed}: steps {steps}")
    return (
        f"AGENT_JOB=trl-grpo on 2 pods: reward {curve(first)} until the worker was killed at step "
        f"{last_step(first)}; attempt 2 from checkpoint {lost}: reward {curve(retried)} until both "
        f"were killed at step {last_step(retried)}; a second run from checkpoint {killed} to step "
        f"{STEPS}: reward {curve(after)}"
    )


def taken_away() -> str:
    """Train over two pods, and send SIGTERM to the worker's, as a platform does; say what was lost.

    Nothing else saves: a checkpoint is there only because the head had rank 0 sent SIGUSR1.
    """
    if (reason := podlab.missing()) is not None:
        raise NotTrainedError(reason)
    ground = make_ground("notice")
    slower = "--gradient-accumulation-steps 4"  # a step takes more than a stop does
    args = f"{FEW.replace('--save-steps 5', '--save-steps 1000')} {slower}"
    with podlab.Lab(names=["poda", "podb"], shm="1g", share=[FOLDER, ground]) as lab:
        head, worker = (start(lab, pod, ground, args=args) for pod in lab.pods)
        head.wait_for(r"^step 4/", "stdout", timeout=TRAIN_LIMIT)
        worker.signal(signal.SIGTERM)
        left = worker.wait(TRAIN_LIMIT)
        head.wait_for(r"attempt 1 of 2 is lost", timeout=TRAIN_LIMIT)
        again = start(lab, lab.pods[1], ground, args=args)
        codes = [container.wait(TRAIN_LIMIT) for container in (head, again)]
        output, said = head.stdout(), head.stderr()
    if (left, codes) != (143, [0, 0]):
        raise NotTrainedError(f"codes {left}, {codes}: {head.tail()}")
    first, second = halves(output)
    saved, last = gone_on(second), int(last_step(first))
    if last - saved > 1 or "AGENT_JOB_RETRIES does not count: 1 of 10" not in said:
        raise NotTrainedError(f"step {last} was lost back to {saved}: {said}")
    return (
        f"AGENT_JOB=trl-grpo on 2 pods, which saved only on SIGUSR1: the worker was sent SIGTERM; "
        f"its last step was {last}, attempt 2 went on from checkpoint {saved} to step {STEPS}"
    )


def start(
    lab: podlab.Lab,
    pod: podlab.Pod,
    ground: Path,
    logs: str = "/tmp/first",
    args: str = FEW,
) -> podlab.Container:
    """Start the agent in a pod like a user: the recipe, a model, data, a folder, one retry.

    After the head was killed, the same log folder would continue the same run, which has no
    attempts left.
    """
    env = {
        "AGENT_LOG_DIR": logs,
        "AGENT_JOB": "trl-grpo",
        "AGENT_JOB_ARGS": f"{args} --max-steps {STEPS} --per-device-train-batch-size 32",
        "AGENT_MODEL": str(ground / "model"),
        "AGENT_TRAIN_DATA": str(ground / "train.jsonl"),
        "AGENT_CHECKPOINTS": str(ground / "checkpoints"),
        "AGENT_JOB_RETRIES": "1",
        "AGENT_NODE_GRACE": "3s",
        "AGENT_NUM_CPUS": "1",
        **QUIET,
    }
    return agents.start(lab, pod, agents.AGENT, environment("train"), env)


def await_checkpoint(head: podlab.Container, ground: Path, number: int) -> None:
    """Wait until a checkpoint is complete."""
    until = time.monotonic() + TRAIN_LIMIT
    saved = ground / f"checkpoints/checkpoint-{number}/trainer_state.json"
    while not saved.exists():
        if not head.running or time.monotonic() > until:
            raise NotTrainedError(f"no checkpoint {number}: {head.tail()}")
        time.sleep(0.2)


def halves(printed: str) -> tuple[str, str]:
    """Split a run's output where its second attempt began to train."""
    found = FROM_CHECKPOINT.search(printed)
    if found is None:
        raise NotTrainedError(f"no attempt resumed from a checkpoint: {printed}")
    return printed[: found.start()], printed[found.start() :]


def gone_on(printed: str) -> int:
    """Return the checkpoint that an attempt resumed; its first step must be the next one."""
    found, steps = FROM_CHECKPOINT.search(printed), STEP.findall(printed)
    if found is None or not steps or int(steps[0][0]) != int(found[1]) + 1:
        raise NotTrainedError(f"it did not resume from its checkpoint: {printed}")
    return int(found[1])


def last_step(printed: str) -> str:
    """Return the last step in the output."""
    return str(STEP.findall(printed)[-1][0])
