"""What a node tells of the job here when it is asked: whether it works, and its stacks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.record.log import say
from agent.runtime.best_effort import Failure

if TYPE_CHECKING:
    from agent.boot.node_run import NodeRun
    from agent.runtime.job_processes import Business

BUSY, STACKS = "how busy", "process stacks"
"""What a worker is asked for as it is for a log; no service has such a name."""
LOOKS = (BUSY, STACKS)
IDLE = "idle"
_WRITES = "its share of the job writes"
_MOST_LINES = 60
"""So many lines of one node's stacks are told in the log."""
_FOR_TOOLS = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")


class Looks:
    """Looks at this node's processes of the job."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._business: Business | None = None
        self._heard: float | None = None
        """When this node's share of the job had written something last, as of the last look."""

    async def tell(self, what: str, submission_id: str | None = None) -> str:
        """Return one of both, or why there is none: a look that fails is no sign of an idle job."""
        look = self.busy if what == BUSY else self.stacks
        text = await self._run.best_effort(f"a look at the job here ({what})", look, submission_id)
        return f"it cannot be looked at: {text.reason}" if isinstance(text, Failure) else text

    async def busy(self, submission_id: str | None = None) -> str:
        """Say what works for the job here, or that nothing does."""
        from agent.node.gpu_use import TOOLS  # noqa: PLC0415 - few jobs are ever quiet
        from agent.runtime.job_processes import Business  # noqa: PLC0415 - same

        run = self._run
        heard, self._heard = self._heard, run.seen.share_heard
        if self._heard != heard:
            return _WRITES
        if self._business is None:
            facts = run.plan.facts
            tools = TOOLS.get(facts.gpu_maker, ()) if facts.gpus else ()
            self._business = Business(tools, self._env(), run.folder.file)
        return await self._business.look(submission_id) or IDLE

    async def stacks(self, submission_id: str | None = None) -> str:
        """Return where the driver, if it is here, and the busiest actor or rank are."""
        from agent.runtime import job_processes as job  # noqa: PLC0415 - as above

        plan = self._run.plan
        found = await anyio.to_thread.run_sync(job.of_the_job, submission_id)
        py_spy = job.find_py_spy(plan.facts.job_python, plan.environ.get("PATH"))
        log = partial(self._run.folder.file, "py-spy.log")
        text = await job.stacks_of(job.worth_a_look(found), py_spy, self._env(), log)
        return self._run.redactor.clean(text)

    def say_stacks(self, text: str) -> None:
        """Tell this node's own log of them."""
        tell_stacks(self._run.plan.topology.node_name, text, "at the head")

    def _env(self) -> dict[str, str]:
        """Return what a tool needs of this node's environment: no secret is its business."""
        environ = self._run.plan.environ
        return {name: environ[name] for name in _FOR_TOOLS if name in environ}


def tell_stacks(node: str, text: str, where: str) -> None:
    """Tell the log of a node's stacks; `where` says who has the lines that are left out."""
    from agent.decisions.stall import telling  # noqa: PLC0415 - few jobs are ever quiet

    lines = telling(text)
    more = [f"({len(lines) - _MOST_LINES} more lines {where})"] if len(lines) > _MOST_LINES else []
    for line in [*lines[:_MOST_LINES], *more]:
        say(f"stacks of {node}: {line}")
