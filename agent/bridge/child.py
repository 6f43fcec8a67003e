"""The bridge's own process: lines of JSON in, lines of JSON out, Ray in between."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agent.bridge.ray_calls import (
    GcsJobs,
    GcsNodes,
    Jobs,
    import_ray,
    is_final,
    last_finished,
)
from agent.bridge.uploads import Upload
from agent.runtime.beats import beats
from agent.runtime.keepalive import notice_a_dead_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_HEARTBEAT = 5.0
_NODES_STEP = 0.1
_NODES_STEP_LATER = 1.0
_JOB_STEP = 0.2
_OUTPUT_STEP = 0.5
_GCS_STEP = 2.0
_UPLOAD_STEP = 2.0
"""An upload that takes less is told when it is over."""
_DASHBOARD_IS_MUTE = 10.0
"""A dashboard that answers speaks of a job more often than this."""
_DEAD_WITHIN = 30.0
"""Ray's client sets no limits: without this, a link that is cut would hold it for ever."""
_OUTPUT_LIMIT = 5.0
"""Longest that a job's end is held back for the last of its output."""


class Bridge:
    """Watches Ray's nodes and one job, and tells of every change."""

    def __init__(self, gcs: str, dashboard: str) -> None:
        self._gcs = gcs
        self._dashboard = dashboard
        # Whatever else prints in this process prints to the log, not into our lines.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._stop = threading.Event()
        self._write = threading.Lock()
        self._jobs: Jobs | None = None
        # By the ids of attempts; only ever added to.
        self._submitted: set[str] = set()
        self._cancelled: set[str] = set()
        self._ended: set[str] = set()
        self._heard: dict[str, float] = {}
        """When the dashboard spoke of a job last."""

    def serve(self) -> None:
        """Read commands until the agent closes the pipe."""
        self._start(self._watch_nodes)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] in {"submit", "follow"}:
                self._start(self._run_job, command)
            elif command["do"] == "stop":
                self._start(self._stop_job, command)
            elif command["do"] == "tasks":
                self._start(self._tell_tasks)
        self._stop.set()

    def _start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=self._safely, args=(work, *arguments), daemon=True)
        thread.start()
        return thread

    def _safely(self, work: Callable[..., None], *arguments: object) -> None:
        """Run a thread's work; its failure is told and ends the bridge, which is started anew."""
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - told, then fatal
            self._tell(event="gcs-silent", evidence=f"the bridge failed: {_first_line(error)}")
            os._exit(1)

    def _tell(self, **event: object) -> None:
        with self._write:
            self._out.write(json.dumps(event) + "\n")
            self._out.flush()

    def _watch_nodes(self) -> None:
        with suppress(ImportError):  # the first call that needs it says so
            import_ray()  # while Ray itself still boots
        for _ in beats(self._stop, 0.05):
            if _is_open(self._gcs):
                break
        known = None
        source: GcsNodes | None = None
        step = _NODES_STEP
        while not self._stop.wait(step):
            try:
                source = source or GcsNodes(self._gcs)
                nodes = source.list()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="gcs-silent", evidence=_first_line(error))
                source = None
                continue
            if nodes and known in (None, []):
                self._start(self._warm_up)
            if nodes != known:
                known = nodes
                self._tell(event="nodes", nodes=nodes)
            step = _NODES_STEP_LATER if self._submitted else _NODES_STEP

    def _warm_up(self) -> None:
        """Meet the dashboard while workers are still awaited: its first answer takes longest."""
        for _ in beats(self._stop, 0.2):
            if self._jobs is not None:
                return
            try:
                jobs = Jobs(self._dashboard)
                jobs.know("none")
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="gcs-silent", evidence=_first_line(error))
                continue
            self._jobs = self._jobs or jobs

    def _run_job(self, command: Mapping[str, Any]) -> None:
        job_id = str(command["id"])
        follows = command["do"] == "follow"
        if follows:  # where the dashboard hangs, GCS tells of it all the same
            self._watch_in_gcs(job_id)
        if not self._is_taken(command):
            return
        self._submitted.add(job_id)
        self._tell(event="submitted", id=job_id)
        if job_id in self._cancelled:  # asked while the submission was under way
            self._start(self._stop_submitted, job_id)
        copying = None
        if command.get("mirror"):
            copying = self._start(self._copy_output, command)
        if not follows:
            self._watch_in_gcs(job_id)
        self._follow(job_id, copying)

    def _watch_in_gcs(self, job_id: str) -> None:
        self._heard[job_id] = time.monotonic()
        self._start(self._follow_in_gcs, job_id)

    def _is_taken(self, command: Mapping[str, Any]) -> bool:
        """Have Ray take a job, or ask whether it has one that is to be followed; tell if not."""
        job_id, follows = str(command["id"]), command["do"] == "follow"
        for _ in beats(self._stop, 0.1):
            try:
                self._jobs = self._jobs or Jobs(self._dashboard)
                if not follows and job_id not in self._cancelled:
                    with self._told_of_its_upload(command) as upload:
                        self._jobs.submit_once(command, upload)
                elif not self._jobs.know(job_id):
                    self._tell_unknown(job_id, follows=follows)
                    return False
                break
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                if follows:  # whether or not the dashboard says so, it may run
                    self._tell(event="job-silent", evidence=_first_line(error))
                    continue
                final = is_final(error)
                self._tell_unsubmitted(job_id, _first_line(error), final=final)
                if final:
                    return False
        return not self._stop.is_set()

    def _tell_unknown(self, job_id: str, *, follows: bool) -> None:
        """Tell that Ray has no such job; where it was to be stopped, nothing is left to stop."""
        if job_id in self._cancelled:
            self._tell(event="stop-taken", id=job_id)
        if follows:
            self._tell(event="never-submitted", id=job_id)
        else:
            self._tell_unsubmitted(job_id, "stopped before Ray took it", cancelled=True)

    @contextmanager
    def _told_of_its_upload(self, command: Mapping[str, Any]) -> Iterator[Upload]:
        """Tell now and then how far the upload of a job's folder has come, if it takes a while."""
        upload = Upload(command["upload"], partial(self._tell, event="upload", id=command["id"]))
        is_over = threading.Event()

        def tell() -> None:
            while not is_over.wait(_UPLOAD_STEP):
                upload.tell()

        self._start(tell)
        try:
            yield upload
        finally:
            is_over.set()

    def _copy_output(self, command: Mapping[str, Any]) -> None:
        """Keep a copy of the driver's log here; without a place for it the job goes on."""
        try:
            with Path(command["mirror"]).open("w", encoding="utf-8", newline="") as file:
                self._copy_to(Copy(file), str(command["id"]))
        except OSError as error:
            self._tell(event="job-silent", evidence=f"its output: {_first_line(error)}")

    def _copy_to(self, copy: Copy, job_id: str) -> None:
        """Take the stream up again where it was, as often as it drops before the job's end."""
        assert self._jobs is not None  # noqa: S101 - it was used to submit
        for _ in beats(self._stop, _OUTPUT_STEP):
            copy.begin()
            try:
                self._jobs.follow_output(job_id, copy.take)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="job-silent", evidence=f"its output: {_first_line(error)}")
                continue
            if job_id in self._ended:
                return

    def _follow(self, job_id: str, copying: threading.Thread | None) -> None:
        assert self._jobs is not None  # noqa: S101 - it was used to submit
        told: dict[str, object] = {}
        told_at = 0.0
        for _ in beats(self._stop, _JOB_STEP):
            try:
                report = self._jobs.report(job_id)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="job-silent", evidence=_first_line(error))
                continue
            self._heard[job_id] = time.monotonic()
            if report["ended"]:
                self._ended.add(job_id)
            if report["ended"] and copying is not None:
                copying.join(_OUTPUT_LIMIT)  # the verdict ends the run, and the copy with it
            if report != told or time.monotonic() >= told_at + _HEARTBEAT:
                told, told_at = report, time.monotonic()
                self._tell(event="job", id=job_id, **report)
            if report["ended"]:
                return

    def _follow_in_gcs(self, job_id: str) -> None:
        """Follow a job of which the dashboard says nothing any more: it lives without that."""
        source: GcsJobs | None = None
        for _ in beats(self._stop, _GCS_STEP):
            if job_id in self._ended:
                return
            if time.monotonic() < self._heard[job_id] + _DASHBOARD_IS_MUTE:
                continue
            try:
                source = source or GcsJobs(self._gcs)
                report = source.report(job_id)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="job-silent", evidence=_first_line(error))
                source = None
                continue
            if report is not None:
                self._tell(event="job", id=job_id, **report)
                if report["ended"]:
                    self._ended.add(job_id)

    def _tell_tasks(self) -> None:
        """Tell when a task finished last; a dashboard that does not answer knows of none."""
        try:
            self._tell(event="tasks", finished=last_finished(self._dashboard))
        except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
            print(f"no word of finished tasks: {_first_line(error)}", file=sys.stderr)
            self._tell(event="tasks", finished=None)

    def _tell_unsubmitted(
        self, job_id: str, why: str, *, final: bool = False, cancelled: bool = False
    ) -> None:
        self._tell(event="submit-failed", id=job_id, evidence=why, final=final, cancelled=cancelled)

    def _stop_job(self, command: Mapping[str, Any]) -> None:
        """Have Ray stop a job; one that it has not taken yet is stopped by whoever submits."""
        job_id = str(command["id"])
        self._cancelled.add(job_id)
        if job_id in self._submitted:
            self._stop_submitted(job_id)

    def _stop_submitted(self, job_id: str) -> None:
        for _ in beats(self._stop, 0.2):
            try:
                (self._jobs or Jobs(self._dashboard)).stop(job_id)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises is evidence
                self._tell(event="job-silent", evidence=_first_line(error))
                continue
            self._tell(event="stop-taken", id=job_id)
            return


class Copy:
    """Writes a stream that may begin anew, what was written before left out."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._written = 0
        self._seen = 0

    def begin(self) -> None:
        """Take note that the stream begins from its beginning."""
        self._seen = 0

    def take(self, text: str) -> None:
        """Write what is new of the stream's next piece."""
        new = text[max(0, self._written - self._seen) :]
        self._seen += len(text)
        self._written += len(new)
        self._file.write(new)
        self._file.flush()


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 0.5).close()
    except OSError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def keep_alive(event: str, arguments: tuple[Any, ...]) -> None:
    """Have the kernel look after each connection that Ray's libraries make here."""
    if event == "socket.connect" and arguments[0].family in {socket.AF_INET, socket.AF_INET6}:
        with suppress(OSError):  # no TCP
            notice_a_dead_peer(arguments[0], _DEAD_WITHIN)


def main(argv: list[str]) -> int:
    """Run the bridge: GCS address and dashboard URL are its arguments."""
    sys.addaudithook(keep_alive)
    Bridge(*argv).serve()
    return 0
