"""The bridge's process: reads commands and writes events as lines of JSON, and calls Ray.

From its start it watches Ray's nodes in GCS, and sends each change of their list. A `submit` or a
`follow` is a thread: it submits the job or looks it up, copies the driver's output to a file if the
command names one, and sends the job's state from the dashboard until its end. A second thread sends
it from GCS while the dashboard does not answer. `stop`, `list`, `tasks`, `unplaced` and
`actors` are one answer each. The bridge ends when the agent closes its stdin.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agent.base import times
from agent.bridge.light_calls import connect
from agent.bridge.ray_calls import dead_actors, is_final, last_finished, unplaced
from agent.processes.resolving import set_keepalive
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.bridge.ray_calls import Jobs

_JOB_OUTPUT_COPIED = 5.0  # A job's end is delayed by no more for the rest of its output.
_NODES_POLL = 0.1  # The bridge reads GCS's list of nodes while the run boots.
_NODES_POLL_WITH_JOB = 1.0  # The same while a job runs: its nodes change rarely.
_JOB_POLL = 0.2  # The bridge reads the status of the job.
_JOB_OUTPUT_POLL = 0.5  # Until the bridge opens the job's output stream again.
_GCS_POLL = 2.0  # The bridge asks GCS for the job while the dashboard is silent.


class Bridge:
    """Watches Ray's nodes and one job, and sends an event for every change."""

    def __init__(self, gcs: str, dashboard: str) -> None:
        self._gcs = gcs
        self._dashboard = dashboard
        # Anything else printed in this process goes to the log, not between the events.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._stop = threading.Event()
        self._write = threading.Lock()
        _, self._connect_jobs = connect(gcs, dashboard)
        self._jobs: Jobs | None = None
        # Job ids; never removed.
        self._submitted: set[str] = set()
        self._canceled: set[str] = set()
        self._ended: set[str] = set()
        self._last_answer: dict[str, float] = {}  # when the dashboard last answered about a job

    def serve(self) -> None:
        """Read commands until the agent closes the pipe."""
        self._start(self._watch_nodes)
        work: dict[str, Callable[..., None]] = {
            "submit": self._run_job,
            "follow": self._run_job,
            "stop": self._stop_job,
            "list": self._list_jobs,
        }
        for line in sys.stdin:
            command = json.loads(line)
            self._start(work.get(command["do"], self._answer), command)
        self._stop.set()

    def _start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start a thread; a failure in it is sent and exits the bridge, which is restarted."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - sent, then fatal
                self._send(event="silent", evidence=f"the bridge failed: {_first_line(error)}")
                os._exit(1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _send(self, **event: object) -> None:
        with self._write:
            self._out.write(json.dumps(event) + "\n")
            self._out.flush()

    def _until_done(self, step: float, act: Callable[[], bool], about: str = "") -> None:
        """Repeat an action until it returns True; if Ray fails, send the error as evidence."""
        for _ in repeat(self._stop, step):
            try:
                if act():
                    return
            except Exception as error:  # noqa: BLE001, PERF203 - whatever Ray raises is evidence
                self._send(event="silent", evidence=f"{about}{_first_line(error)}")

    def _watch_nodes(self) -> None:
        # Imports while Ray still starts; where one is missing, the first call reports that.
        gcs, _ = connect(self._gcs, self._dashboard)
        with suppress(ImportError):
            gcs.load()

        # Does GCS listen?
        host, _, port = self._gcs.rpartition(":")
        for _ in repeat(self._stop, 0.05):
            with suppress(OSError):
                socket.create_connection((host.strip("[]"), int(port)), 0.5).close()
                break

        known: list[dict[str, object]] | None = None

        def send_changes() -> bool:
            nonlocal known
            nodes = gcs.nodes()
            if nodes and not known:
                self._start(self._until_done, 0.2, self._warm_up)
            if nodes != known:
                known = nodes
                self._send(event="nodes", nodes=nodes)
            if self._submitted - self._ended:
                self._stop.wait(_NODES_POLL_WITH_JOB)
            return False

        self._until_done(_NODES_POLL, send_changes)

    def _warm_up(self) -> bool:
        """Call the dashboard while the head waits for workers: its first answer is the slowest."""
        if self._jobs is None:
            jobs = self._connect_jobs()
            jobs.has_job("none")
            self._jobs = self._jobs or jobs
        return True

    def _list_jobs(self, command: Mapping[str, Any]) -> None:
        """Send the ids of a run's jobs, ended or not, as soon as the dashboard answers."""

        def send() -> bool:
            self._jobs = self._jobs or self._connect_jobs()
            self._send(event="jobs", ids=self._jobs.ids_of_run(str(command["id"])))
            return True

        self._until_done(0.2, send)

    def _run_job(self, command: Mapping[str, Any]) -> None:
        """Submit a job, or look it up, and follow it to its end."""
        job_id = str(command["id"])
        follows = command["do"] == "follow"

        # A job that may run already is followed in GCS at once: the dashboard may hang.
        if follows:
            self._start(self._follow_in_gcs, job_id)

        if not self._submit_or_find(command):
            return
        self._submitted.add(job_id)
        self._send(event="submitted", id=job_id)

        # Was a stop requested during the submission?
        if job_id in self._canceled:
            self._start(self._stop_job, command)

        copying = self._start(self._copy_output, command) if command.get("mirror") else None
        if not follows:
            self._start(self._follow_in_gcs, job_id)
        self._follow(job_id, copying)

    def _submit_or_find(self, command: Mapping[str, Any]) -> bool:
        """Submit a job, or look up one to follow; sends why if there is none."""
        follows = command["do"] == "follow"
        for _ in repeat(self._stop, 0.1):
            try:
                is_there = self._try_submission(command)
            except Exception as error:  # noqa: BLE001, PERF203 - whatever Ray raises is evidence
                why = _first_line(error)
                if follows:  # the job may run though the dashboard does not answer
                    self._send(event="silent", evidence=why)
                elif self._send_failure(command, why, final=is_final(error), canceled=False):
                    return False
            else:
                return is_there and not self._stop.is_set()
        return False

    def _try_submission(self, command: Mapping[str, Any]) -> bool:
        """Submit or look up a job once; False if there is none, and none will be submitted."""
        job_id = str(command["id"])
        follows = command["do"] == "follow"
        self._jobs = self._jobs or self._connect_jobs()
        if not follows and job_id not in self._canceled:
            self._jobs.submit_once(command)
            return True
        if self._jobs.has_job(job_id):
            return True

        # There is no such job. A stop of it is then complete.
        if job_id in self._canceled:
            self._send(event="stop-taken", id=job_id)
        if follows:
            self._send(event="never-submitted", id=job_id)
        else:
            self._send_failure(command, "stopped before Ray took it", final=False, canceled=True)
        return False

    def _send_failure(
        self, command: Mapping[str, Any], why: str, *, final: bool, canceled: bool
    ) -> bool:
        """Send why a submission failed; return whether it is final."""
        self._send(
            event="submit-failed",
            id=str(command["id"]),
            evidence=why,
            final=final,
            canceled=canceled,
        )
        return final

    def _copy_output(self, command: Mapping[str, Any]) -> None:
        """Copy the driver's log to a file until the job's end; if that fails the job goes on."""
        assert self._jobs is not None  # noqa: S101 - it was used to submit
        jobs = self._jobs
        job_id = str(command["id"])
        try:
            log_dir.obey(*command["log_dir"])
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            descriptor = log_dir.open(Path(command["mirror"]), flags)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                copy = ResumableCopy(file)

                def follow() -> bool:
                    copy.position = 0  # the stream may have dropped
                    jobs.follow_output(job_id, copy.write)
                    return job_id in self._ended

                self._until_done(_JOB_OUTPUT_POLL, follow, "its output: ")
        except OSError as error:
            self._send(event="silent", evidence=f"its output: {_first_line(error)}")

    def _follow(self, job_id: str, copying: threading.Thread | None) -> None:
        """Send each change of a job's state until its end, and now and then the same state."""
        assert self._jobs is not None  # noqa: S101 - it was used to submit
        jobs = self._jobs
        sent = dict[str, object]()
        sent_at = 0.0

        def send_changes() -> bool:
            nonlocal sent, sent_at
            report = jobs.report(job_id)
            self._last_answer[job_id] = time.monotonic()

            # The end of the run ends the copy: the rest of the output first.
            if report["ended"]:
                self._ended.add(job_id)
                if copying is not None:
                    copying.join(_JOB_OUTPUT_COPIED)

            if report != sent or time.monotonic() >= sent_at + times.BRIDGE_HEARTBEAT:
                sent = report
                sent_at = time.monotonic()
                self._send(event="job", id=job_id, report=report)
            return bool(report["ended"])

        self._until_done(_JOB_POLL, send_changes)

    def _follow_in_gcs(self, job_id: str) -> None:
        """Follow a job in GCS while the dashboard does not answer; the job runs without it."""
        gcs, _ = connect(self._gcs, self._dashboard)
        self._last_answer[job_id] = time.monotonic()

        def send_state() -> bool:
            is_silent = time.monotonic() >= self._last_answer[job_id] + times.DASHBOARD_SILENT
            if not is_silent or job_id in self._ended:
                return job_id in self._ended
            report = gcs.job(job_id)
            if report is not None:
                self._send(event="job", id=job_id, report=report)
                if report["ended"]:
                    self._ended.add(job_id)
            return job_id in self._ended

        self._until_done(_GCS_POLL, send_state)

    def _answer(self, command: Mapping[str, Any]) -> None:
        """Send the answer to a question about tasks or actors; nothing if Ray does not answer."""
        kind = command["do"]
        answer = dict[str, object]()
        try:
            if kind == "tasks":
                answer["finished"] = last_finished(self._dashboard)
            elif kind == "unplaced":
                answer.update(unplaced(self._dashboard))
            else:
                answer["actors"] = dead_actors(self._gcs, self._dashboard, command["ids"])
        except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
            print(f"no answer about {kind}: {_first_line(error)}", file=sys.stderr)
        self._send(event=kind, **answer)

    def _stop_job(self, command: Mapping[str, Any]) -> None:
        """Stop a job; one that is not submitted yet is stopped by the submitting thread."""
        job_id = str(command["id"])
        self._canceled.add(job_id)

        def stop() -> bool:
            (self._jobs or self._connect_jobs()).stop(job_id)
            self._send(event="stop-taken", id=job_id)
            return True

        if job_id in self._submitted:
            self._until_done(0.2, stop)


class ResumableCopy:
    """Writes a stream that may restart from its beginning; skips what is written already."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._written = 0
        self.position = 0  # of the next chunk in the stream; 0 once that starts again

    def write(self, text: str) -> None:
        """Write the new part of the stream's next chunk."""
        new = text[max(0, self._written - self.position) :]
        self.position += len(text)
        self._written += len(new)
        self._file.write(new)
        self._file.flush()


def repeat(stop: threading.Event, step: float) -> Iterator[None]:
    """Yield every `step` seconds until `stop` is set."""
    while not stop.is_set():
        yield
        stop.wait(step)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def enable_keepalive(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: set keepalive on each connection that Ray's libraries open."""
    if event == "socket.connect" and arguments[0].family in {socket.AF_INET, socket.AF_INET6}:
        with suppress(OSError):  # not TCP
            set_keepalive(arguments[0], times.RAY_CONNECTION_DEAD)


def main(argv: list[str]) -> int:
    """Run the bridge; the arguments are GCS address and dashboard URL."""
    sys.addaudithook(enable_keepalive)
    Bridge(*argv).serve()
    return 0
