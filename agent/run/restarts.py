"""Restarted containers: no finished job runs again, and no failure repeats for ever.

Some platforms start a container again whatever it exited with. There each agent records its end in
the folder of all runs (.ends/NODE.json), and the next one reads it:

1. After the job's own verdict the run is not repeated: the recorded outcome is the outcome again
   (`finished_before`), unless a setting, the command or AGENT_RERUN asks for a new run.
2. After any other end the run goes on. A restart is quick if it follows the end by no more than the
   platform's pause, and has the same cause as the end before, without progress beyond the boot.
   After QUICK_RESTARTS of them, the next such end counts as the verdict: a pod that a verdict holds
   or stops is held or stopped with it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Outcome
from agent.base.text import error_text, iso_time, seconds_between
from agent.plan.plan import log_root
from agent.processes import parent
from agent.record import files, run_record
from agent.record.files import safe_name
from agent.record.log import say
from agent.record.log_dir import log_dir
from agent.settings.model import KNOWN_NAMES
from agent.settings.redact import MASK, looks_secret

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from agent.plan.plan import Plan
    from agent.settings.model import Settings

    StopRequest = Callable[[], Awaitable[object]]
    Hold = Callable[
        [Outcome, "Container", StopRequest | None, Sequence[tuple[str, int]]],
        Coroutine[Any, Any, None],
    ]

_RESTART_PAUSE = 600.0  # A platform restarts an ended container within this: Kubernetes in 5 min.
QUICK_RESTARTS = 3  # after so many restarts with one cause, the next such end is a verdict
_ENDS_FOLDER = ".ends"
_NOT_OF_THE_JOB = {
    *("AGENT_RERUN", "AGENT_ON_DONE", "AGENT_PRICE_PER_HOUR", "AGENT_RUNPOD_API"),
    *("AGENT_NOTIFY", "AGENT_NOTIFY_FILE"),
    *("RUNPOD_API_KEY", "RUNPOD_API_KEY_FILE", "AGENT_LOG", "AGENT_LOG_MODE"),
}
"""Settings whose change is no reason to run a finished job again."""


def finished_before(plan: Plan, job_fingerprint: str, restarts: Restarts) -> Outcome | None:
    """Return the outcome of a job that a restarted container does not run again."""
    # Is this a restarted container? A command that is typed again is a new run.
    run_id = plan.topology.platform.run_id
    is_first_of_run = plan.facts.is_first_process and run_id is not None
    if not restarts.is_on and not is_first_of_run:
        return None

    # Were the settings or the command changed?
    last = restarts.before
    if last is not None and last.digest != restarts.digest:
        return None

    # How did the last run end? A head reads it in run.json, which is of all containers.
    if plan.topology.is_head:
        root = log_root(plan.settings)
        node = plan.topology.node_name
        record = run_record.finished_run(root, run_id, job_fingerprint, node)
        ended_run = "" if record is None else record.durable.run_id
        outcome = None if record is None else record.durable.verdict
    else:
        ended_run = "" if last is None else last.run_id
        outcome = None if last is None else last.outcome
    if outcome is None or not outcome.is_jobs_verdict:
        return None

    # A platform that restarts failures only, and gives the run its id, tries a failed job again.
    if outcome.exit_code and not restarts.is_on:
        return None
    say(f"run {ended_run} has ended: a restarted container does not repeat it, AGENT_RERUN=1 does")
    return outcome


class Restarts:
    """The ends of this container's agents, recorded where its platform restarts what exits.

    `holds` if a verdict holds or stops the pod. An agent that ran for more than `longest` seconds
    got further than its boot.
    """

    def __init__(  # noqa: PLR0913 - the container, and how its platform and its agent end it
        self, root: Path, node: str, digest: str, *, is_on: bool, holds: bool, longest: float
    ) -> None:
        self.is_on = is_on
        self.digest = digest
        self.before: PastEnd | None = None
        """The end of the agent before this one."""
        self._root = root
        self._node = node
        self._holds = holds
        self._longest = longest
        self._began = iso_time(time.time())
        self._last: PastEnd | None = None
        if is_on:
            recorded = PastEnd.read_patiently(past_end_file(root, node))
            self.before = recorded if isinstance(recorded, PastEnd) else None

    def record(self, run_id: str, outcome: Outcome) -> None:
        """Record the end of this agent for the next container."""
        if not self.is_on:
            return
        self._last = self._end(outcome, run_id)
        error = self._last.save(self._root, self._node)
        if error is not None:
            say(f"the end of this agent is not recorded: {error_text(error)}", "warning")

    def final(self, outcome: Outcome) -> Outcome:
        """Return a head's end, as a verdict if another restart would only repeat it.

        The workers receive it so, and hold or stop their pods with the head's.
        """
        if not self.is_on or outcome.holds_pod or outcome.is_superseded:
            return outcome
        if not self.would_repeat(self._end(outcome)):
            return outcome
        return replace(outcome, attempts_are_used_up=True)

    def would_repeat(self, end: PastEnd | None = None) -> bool:
        """Return whether another restart would only repeat the last end; log it."""
        last = end or self._last
        count = 0 if last is None else last.quick_restarts
        if not self._holds or count < QUICK_RESTARTS:
            return False
        say(f"{count} restarts led to the same end, which now counts as the verdict", "warning")
        return True

    def _end(self, outcome: Outcome, run_id: str = "") -> PastEnd:
        end = PastEnd(self.digest, run_id, self._began, iso_time(time.time()), outcome)
        return end.after(self.before, self._longest)


class PastEnd(files.Record):
    """How the last agent in this container ended; times are UTC, ISO 8601."""

    digest: str  # of its settings and command
    run_id: str
    began: str
    ended: str
    outcome: Outcome
    quick_restarts: int = 0  # the restarts in a row that led to this end again

    @property
    def cause(self) -> tuple[object, ...]:
        """Return what two ends have in common; a reason may hold times and addresses."""
        return self.digest, self.outcome.kind, self.outcome.exit_code, self.outcome.culprit

    def after(self, before: PastEnd | None, longest: float) -> PastEnd:
        """Return it with the number of quick restarts, given the end before.

        A restart is quick if it follows the end by the platform's own pause. An agent that ran for
        more than `longest` seconds got further than its boot: it ends the series.
        """
        if before is None or before.cause != self.cause:
            return self
        ran = max(seconds_between(end.began, end.ended) for end in (before, self))
        pause = seconds_between(before.ended, self.began)
        if pause > _RESTART_PAUSE or ran > longest:
            return replace(self, quick_restarts=0)
        return replace(self, quick_restarts=before.quick_restarts + 1)

    def save(self, root: Path, node: str) -> OSError | None:
        """Write it; return the error on failure."""
        path = past_end_file(root, node)
        try:
            log_dir.guard(root)
            log_dir.make_folder(path.parent)
        except OSError as error:
            return error
        return self.write(path)


def past_end_file(root: Path, node: str) -> Path:
    """Return the file of the last end of a node's container."""
    return root / _ENDS_FOLDER / f"{safe_name(node)}.json"


async def hold_by_setting(
    outcome: Outcome,
    container: Container,
    stopped: StopRequest | None,
    others: Sequence[tuple[str, int]],
) -> None:
    """Do what AGENT_ON_DONE says, until `stopped` returns or until a signal."""
    from agent.run.holding import Held, hold_until_signal  # noqa: PLC0415 - it loads aiohttp

    held = Held(
        container.settings,
        container.environ,
        container.on_done,
        is_head=container.is_head,
        stays=container.stays,
    )
    if stopped is None:
        await hold_until_signal(held, outcome)
    else:
        await held.hold(outcome, stopped, others)


class Container(NamedTuple):
    """What agents of this container have in common, and what its end depends on."""

    settings: Settings
    environ: Mapping[str, str]
    on_done: str
    restarts: Restarts
    hold: Hold  # holds or stops it after the end
    killed_agents: tuple[int, ...] = ()  # the pids of those that this agent replaces, last first
    is_head: bool = False  # of the run: it alone deletes an Instant Cluster
    stays: float = 0.0  # seconds before it is stopped


def container_of(plan: Plan, environ: Mapping[str, str], command: list[str] | None) -> Container:
    """Return the container of a plan; this reads how its last agent ended."""
    platform = plan.topology.platform
    restarts_whatever_the_code = platform.restarts_containers or platform.restarts_groups
    restarts = Restarts(
        root=log_root(plan.settings),
        node=plan.topology.node_name,
        digest=settings_digest(environ, command),
        is_on=plan.facts.is_first_process and restarts_whatever_the_code,
        holds=plan.on_done != "exit",
        longest=times.ATTEMPT_SHORT + sum(wait.seconds for wait in plan.waits),
    )
    return Container(
        plan.settings,
        environ,
        plan.on_done,
        restarts,
        hold_by_setting,
        parent.former_agents,
        plan.topology.is_head,
    )


def settings_digest(environ: Mapping[str, str], command: Sequence[str] | None) -> str:
    """Return a hash of all settings of the job, without secrets."""
    given = {
        name: MASK if looks_secret(name) else environ[name]
        for name in KNOWN_NAMES
        if name in environ and name not in _NOT_OF_THE_JOB
    }
    return run_record.short_hash([None if command is None else [*command], given])
