"""What a head shows of its run: to all, to those who proved that they may, and to its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Level
from agent.decisions.head.state import Phase, WorkerReported
from agent.decisions.items import HERE
from agent.record.files import why
from agent.record.job_lines import JobLines
from agent.record.log import disk
from agent.record.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.checks.finding import Finding
    from agent.control.aside import Aside
    from agent.decisions.head.state import HeadEvent, HeadState
    from agent.record.outcome_file import Outage


class Watched:
    """One run as it is shown; `look` returns the head's state as it is now."""

    def __init__(self, run: NodeRun, keeper: RunKeeper, look: Callable[[], HeadState]) -> None:
        self._run = run
        self._keeper = keeper
        self._look = look
        self._timeline = Timeline()
        self._alive: Mapping[str, str] = {}
        self.job = JobLines(run.redactor.clean)
        self.stalls: tuple[Finding, ...] = ()
        """What was said of attempts that showed no sign of work."""
        self.asides: Mapping[str, Aside] = {}
        """What workers tell beside their word, by agent."""

    def note(self, event: HeadEvent) -> None:
        """Note when an event, which was decided upon, happened, and who takes part since then."""
        alive = self._look().fleet.alive
        if alive is not self._alive:
            self._alive = alive
            self._keeper.served_by(alive.values())
        self._timeline.note(event, self._look(), self._run.now())
        if isinstance(event, WorkerReported):
            aside = self.asides.get(event.worker.key)
            if aside is not None:
                self._timeline.note_steps(event.worker.key, aside.steps, self._run.now())
                if aside.attempt == self._look().attempt.number:  # else of a share that is over
                    self.job.known.hear(event.worker.name, aside.attempt, aside.known)

    def is_over(self) -> bool:
        """Say whether the run has its verdict."""
        return self._look().phase is Phase.LEAVING

    def told_where_it_failed(self) -> str:
        """Return what the share of the job that failed first told of it; '' where it did not."""
        state = self._look()
        parts, attempt = state.parts, state.attempt.number
        return self.job.known.told_on(parts.of[parts.first].node, attempt) if parts.first else ""

    def status(self) -> dict[str, object]:
        """Return what everybody may see who may see the status."""
        from agent.boot.head_status import status_of  # noqa: PLC0415 - asked while Ray boots

        keeper, run = self._keeper, self._run
        told = (keeper.run_id, keeper.epoch, run.now(), self._timeline, self.outages())
        asides = {**self.asides, HERE: run.seen.aside({})}
        status = status_of(self._look(), run.plan, *told, asides)
        attempts = [attempt.in_outcome() for attempt in keeper.attempts]
        return {**status, "attempts": attempts, "curve": self.job.curve()}

    def more(self) -> dict[str, object]:
        """Return what only those see who proved that they may: text of logs and of findings."""
        clean = self._run.redactor.clean
        state = self._look()
        found = [*self._run.plan.findings, *state.differences, *state.probes.findings, *self.stalls]
        warnings = [
            {"check": one.check, "what": clean(one.what), "remedy": clean(one.remedy)}
            for one in found
            if one.level is not Level.OK
        ]
        warnings += self.job.known.warnings()
        progress = {HERE: dict(self._run.seen.aside({}).progress)}
        workers = state.fleet.workers
        for key, aside in self.asides.items():
            if aside.progress and key in workers:
                progress[workers[key].name] = dict(aside.progress)
        return {"warnings": warnings, "job_tail": self.job.tail(), "progress": progress}

    def findings(self) -> dict[str, object]:
        """Return what the checks of all nodes found."""
        from agent.boot.head_findings import findings_of  # noqa: PLC0415 - asked by a person

        return findings_of(self._look(), self._run.plan, self._run.redactor.clean)

    def leave_trace(self, outcome: Outcome) -> str:
        """Leave the run as a trace in its folder, for a browser; return why there is none."""
        from agent.record import trace  # noqa: PLC0415 - at the end
        from agent.record.former_lives import former_lives  # noqa: PLC0415 - same

        run, keeper = self._run, self._keeper
        told = trace.Told(
            *(keeper.run_id, run.plan.topology.node_name, run.utc(0.0), run.now()),
            *(outcome.reason, keeper.attempts, self.outages(), former_lives(run.folder.path)),
        )
        made = trace.trace_of(self._timeline, told, run.redactor.clean)
        error = trace.write_trace(run.folder.path.parent, made)
        if error is None:
            return ""
        disk.tell(trace.FILE, why(error))
        return why(error)

    def outages(self) -> tuple[Outage, ...]:
        """Return when services did not answer, as records have it."""
        from agent.boot.head_status import outages_of  # noqa: PLC0415 - as for the status

        return outages_of(self._look(), self._run.plan.topology.node_name, self._run.utc)
