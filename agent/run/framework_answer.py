"""Ask the installed framework about the job's command, in a process beside the boot.

The process runs `bundled/ask_framework.py` in the framework's Python, with the job's environment
and folder, but without GPUs, the cluster's token and W&B's key. It is killed at the run's end, and
where another question takes its place. Nothing waits for its answer, except `plan --check`
(`refused_by_framework`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from msgspec import DecodeError
from msgspec.json import encode
from msgspec.structs import replace

from agent.base.typed import decode
from agent.checks.finding import Finding, Level
from agent.checks.job_needs import FRAMEWORK
from agent.job.framework_question import FrameworkAnswer, question_of, refusal_of
from agent.job.job import fill
from agent.job.services import Placeholders, reward_url
from agent.plan import environment
from agent.processes.waiting import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.shared import Want
    from agent.job.framework_question import FrameworkQuestion
    from agent.plan.plan import Plan
    from agent.run.executor import OnProgress
    from agent.run.node_run import NodeRun

_FRAMEWORK_ANSWERS = 90.0  # For the framework's check of the command; nothing waits for it.
_PROGRAM = Path(__file__).parents[1] / "bundled" / "ask_framework.py"
_QUESTION = "POD_AGENT_QUESTION"  # the variable in which the program reads the question
_LOG = "framework-check.log"
_LOOPBACK = "127.0.0.1"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # it must not download a model
_LONGEST = 1 << 16  # bytes of output that are kept
_OF_NODE_LAUNCHER = {"rank": "0"}


class FrameworkAsker:
    """Asks the framework of the plan's job, for the executor of the head's node."""

    def __init__(
        self, run: NodeRun, env: Mapping[str, str], place: Callable[[], Placeholders]
    ) -> None:
        self._run = run
        self._env = env
        self._place = place

    async def run(self, name: str, _want: Want, progress: OnProgress) -> str:
        """Ask; return '' if it accepts, else why not. Whatever goes wrong is an answer, too."""
        plan = self._run.plan
        question = question_of(plan.job, plan.facts)
        if question is None:
            return ""
        answer = await self._run.best_effort(name, self._answer, question)
        if isinstance(answer, Failure):
            answer = FrameworkAnswer("unknown", answer.reason)
        clean = self._run.redactor.clean
        answer = replace(answer, what=clean(answer.what), key=clean(answer.key))
        if answer.verdict == "refused":
            refusal = refusal_of(question, answer)
            progress(refusal=refusal)
            return refusal.reason
        return answer.what

    async def _answer(self, question: FrameworkQuestion) -> FrameworkAnswer:
        output = bytearray()

        def collect(data: bytes) -> None:
            output.extend(data)
            del output[:-_LONGEST]

        run = self._run
        env = _environment(run.plan, self._env, question, self._place())
        argv = [question.python, str(_PROGRAM)]
        running = run.running("framework check", argv, env, _LOG, grace=0.0, on_output=collect)
        code: int | None = None
        async with running as child:
            with anyio.move_on_after(_FRAMEWORK_ANSWERS):
                code = await child.wait()
        if code is None:
            late = f"no answer within {_FRAMEWORK_ANSWERS:g} s"
            return FrameworkAnswer("unknown", f"{late} ({_LOG})")
        return _read(bytes(output)) or FrameworkAnswer("unknown", child.end_sentence(code))


def refused_by_framework(plan: Plan) -> Finding | None:
    """Ask the framework now, and return what it refuses."""
    question = question_of(plan.job, plan.facts) if plan.topology.is_head else None
    if question is None:
        return None
    place = Placeholders(_LOOPBACK, _LOOPBACK, "0", plan.settings.log_dir)
    env = _environment(plan, plan.environment(_LOOPBACK, _LOOPBACK), question, place)
    argv = [question.python, str(_PROGRAM)]
    try:
        asked = subprocess.run(
            argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_FRAMEWORK_ANSWERS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a run goes on without an answer, too
    answer = _read(asked.stdout)
    if answer is None or answer.verdict != "refused":
        return None
    refusal = refusal_of(question, answer)
    return Finding(FRAMEWORK, Level.FAIL, refusal.reason, refusal.remedy)


def _environment(
    plan: Plan, env: Mapping[str, str], question: FrameworkQuestion, place: Placeholders
) -> dict[str, str]:
    """Return the job's environment without secrets that a check does not need, and the question.

    Its command is filled as if all expected nodes were like this one.
    """
    gpus = [plan.gpus] * plan.trainer_nodes
    url = reward_url(plan.all_services, place)
    checkpoints = "" if plan.job is None else plan.job.checkpoints
    argv = fill(question.argv, gpus, place, url, 1, checkpoints, _OF_NODE_LAUNCHER)
    asked = {
        "module": question.module,
        "argv": argv,
        "world": sum(gpus) or len(gpus),
        "folder": str(Path(question.folder).expanduser()) if question.folder else "",
    }
    own = environment.without_cluster_auth(env, plan.settings)
    return {**own, **dict(question.env), **_OFFLINE, _QUESTION: encode(asked).decode()}


def _read(output: bytes) -> FrameworkAnswer | None:
    """Return the answer in a process's output: its last line of JSON."""
    for line in reversed(output.splitlines()):
        if not line.startswith(b'{"verdict"'):
            continue
        try:
            return decode(line, FrameworkAnswer)
        except DecodeError:  # the process was killed while it wrote, or wrote something else
            return None
    return None
