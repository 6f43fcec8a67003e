"""Where a job's output comes from, and what is passed on of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.record.files import safe
from agent.runtime.output import JobOutput, WithoutPreamble, driver_log

if TYPE_CHECKING:
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.runtime.output import Taker


def job_output(
    run: NodeRun, job_id: str, line: str, watcher: Taker
) -> tuple[JobOutput, Path | None]:
    """Begin to pass on a job's output; return it, and the file that the bridge must write for it.

    `line` is the job's command as Ray repeats it before the output; '' where that is not known.
    """
    session, mirror = run.plan.launch.session, None
    if session is None:  # the driver's output is on another machine
        source = mirror = run.folder.file(f"ray-job.{safe(job_id)}.log")
    else:
        source = driver_log(session, job_id)
        run.node.in_session(str(source.parents[1]))
    rest = WithoutPreamble(job_id, line) if line else WithoutPreamble.nothing()
    known = run.node.record
    output = JobOutput(
        *(source, rest, run.folder.file("job.log")),
        skip=known.passed_on,
        on_passed=run.node.passed_on,
        copied=known.copied,
        on_copied=run.node.copied,
        watcher=watcher,
    )
    output.start()
    return output, mirror
