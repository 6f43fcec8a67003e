"""Ask the installed framework about the job's command, in a process beside the boot.

The process runs `bundled/ask_framework.py` in the framework's Python, with the job's environment
and folder, but without GPUs, the cluster's token and W&B's key. It is killed at the run's end.
`plan --check` asks in the same way, and waits (`refused_by_framework`).

Nothing waits for the answer about a command that was accepted at an earlier start. While Ray boots
the framework is asked all the same: what it imports is in the page cache when the job starts.
"""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.checks.finding import Finding, Level
from agent.checks.job_needs import FRAMEWORK
from agent.decisions.head.head_state import FrameworkAnswered
from agent.job.framework_question import (
    FrameworkAnswer,
    answer_of,
    asked_json,
    question_of,
    refusal_of,
)
from agent.job.job import fill
from agent.job.services import Placeholders, reward_url
from agent.plan import environment
from agent.processes.waiting import Failure
from agent.record.background import in_thread
from agent.run.accepted_commands import AcceptedCommands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.job.framework_question import FrameworkQuestion
    from agent.plan.plan import Plan
    from agent.run.node_run import NodeRun

_PROGRAM = Path(__file__).parents[1] / "bundled" / "ask_framework.py"
_QUESTION = "POD_AGENT_QUESTION"  # the variable in which the program reads the question
_NAME = "framework check"
_LOG = "framework-check.log"
LOOPBACK = "127.0.0.1"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # it must not download a model
_LONGEST = 1 << 16  # bytes of output that are kept
_OF_NODE_LAUNCHER = {"rank": "0"}


class FrameworkAsker:
    """Asks the framework of the plan's job, and sends its answer as an event."""

    def __init__(
        self,
        run: NodeRun,
        env: Mapping[str, str],
        place: Callable[[], Placeholders],
        send: Callable[[FrameworkAnswered], None],
    ) -> None:
        self._run = run
        self._env = env
        self._place = place
        self._send = send
        self._scope: anyio.CancelScope | None = None  # of the process that runs

    def cancel(self) -> None:
        """Kill the process: the run ends."""
        if self._scope is not None:
            self._scope.cancel()

    async def ask(self) -> None:
        """Ask; whatever goes wrong is an answer, too."""
        plan = self._run.plan
        question = question_of(plan.job, plan.facts)
        if question is None:
            return
        accepted = _accepted_commands(plan)
        self._scope = anyio.CancelScope()
        with self._scope:
            is_known = bool(await in_thread(partial(accepted.has, question)))
            if is_known:
                self._send(FrameworkAnswered())
            if is_known and plan.share_launcher is not None:
                return  # no boot to wait for: it would only take CPUs and disk from the job
            answer = await self._run.best_effort("the framework's check", self._answer, question)
            if isinstance(answer, Failure):
                answer = FrameworkAnswer("unknown", answer.reason)
            clean = self._run.redactor.clean
            answer = replace(answer, what=clean(answer.what), key=clean(answer.key))
            if answer.verdict == "accepted":
                await in_thread(partial(accepted.add, question))
            if answer.verdict == "refused":
                await in_thread(partial(accepted.drop, question))
                self._send(FrameworkAnswered(refusal_of(question, answer)))
            elif not is_known:
                self._send(FrameworkAnswered(unknown=answer.what))

    async def _answer(self, question: FrameworkQuestion) -> FrameworkAnswer:
        output = bytearray()

        def collect(data: bytes) -> None:
            output.extend(data)
            del output[:-_LONGEST]

        run = self._run
        env = _environment(run.plan, self._env, question, self._place())
        argv = [question.python, str(_PROGRAM)]
        child = await run.start(_NAME, argv, env, _LOG, on_output=collect)
        code: int | None = None
        try:
            with anyio.move_on_after(times.FRAMEWORK_ANSWERS):
                code = await child.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop(0.0)
            run.node.remove_process(child.pid)
        if code is None:
            late = f"no answer within {times.FRAMEWORK_ANSWERS:g} s"
            return FrameworkAnswer("unknown", f"{late} ({_LOG})")
        return _read(bytes(output)) or FrameworkAnswer("unknown", child.end_sentence(code))


def refused_by_framework(plan: Plan) -> Finding | None:
    """Ask the framework now, and return what it refuses, as a run does while it boots."""
    question = question_of(plan.job, plan.facts) if plan.topology.is_head else None
    if question is None or _accepted_commands(plan).has(question):
        return None
    place = Placeholders(LOOPBACK, LOOPBACK, "0", plan.settings.log_dir)
    env = _environment(plan, plan.environment(LOOPBACK, LOOPBACK), question, place)
    argv = [question.python, str(_PROGRAM)]
    try:
        asked = subprocess.run(
            argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=times.FRAMEWORK_ANSWERS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a run goes on without an answer, too
    answer = _read(asked.stdout)
    if answer is None or answer.verdict != "refused":
        return None
    refusal = refusal_of(question, answer)
    return Finding(FRAMEWORK, Level.FAIL, refusal.reason, refusal.remedy)


# --- the question --------------------------------------------------------------------------------


def _accepted_commands(plan: Plan) -> AcceptedCommands:
    checkpoints = "" if plan.job is None else plan.job.checkpoints
    return AcceptedCommands(plan.caches, _PROGRAM, _gpus_of_nodes(plan), checkpoints)


def _gpus_of_nodes(plan: Plan) -> list[int]:
    """Return each node's GPUs, as if all expected nodes were like this one."""
    return [plan.gpus] * (plan.topology.expected_workers + 1)


def _environment(
    plan: Plan, env: Mapping[str, str], question: FrameworkQuestion, place: Placeholders
) -> dict[str, str]:
    """Return the job's environment without secrets that a check does not need, and the question."""
    gpus = _gpus_of_nodes(plan)
    url = reward_url(plan.all_services, place)
    checkpoints = "" if plan.job is None else plan.job.checkpoints
    words = fill(question.argv, gpus, place, url, 1, checkpoints, _OF_NODE_LAUNCHER)
    asked = json.dumps(asked_json(question, words, sum(gpus) or len(gpus)))
    own = environment.without_cluster_auth(env, plan.settings)
    full = {**own, **dict(question.env), **_OFFLINE, _QUESTION: asked}
    if plan.caches is not None and plan.caches.packages:
        # What it imports is compiled for the job, too, in images that forbid Python to write.
        # That is meant for code that changes; here all is installed.
        full["PYTHONDONTWRITEBYTECODE"] = ""
    return full


def _read(output: bytes) -> FrameworkAnswer | None:
    """Return the answer in a process's output: its last line of JSON."""
    for line in reversed(output.decode(errors="replace").splitlines()):
        if not line.startswith('{"verdict"'):
            continue
        try:
            given = json.loads(line)
        except ValueError:
            return None
        return answer_of(given) if isinstance(given, dict) else None
    return None
