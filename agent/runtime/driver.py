"""The job's driver: found among what runs below us, and told of signals that we are sent.

Ray runs a job's entrypoint in a session of its own, below an actor, the job's supervisor, and
gives it the job's id in its environment (the same from Ray 2.40 to 2.60).
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from os import getsid
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent.runtime import orphans

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_WORKERS_MARK = "RAY_JOB_ID"
"""What Ray's workers have in their environment, and what they start, but no driver."""
_WORKERS_TITLE = "ray::"
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox", "fish"}


def find_driver(submission_id: str) -> psutil.Process | None:
    """Return the leader of the session of a job's driver, if it runs below us."""
    with suppress(psutil.Error, OSError):
        leaders = [process for process in orphans.below() if _is_started_by_ray(process)]
        ids = {process: _job_of(process) for process in leaders}
        named = [process for process, job in ids.items() if job == submission_id]
        # A program that gives itself a long title overwrites its environment with it.
        nameless = [process for process, job in ids.items() if job is None]
        found = named or (nameless if len(nameless) == 1 else [])
        return found[0] if found else None
    return None


def any_runs() -> bool:
    """Say whether the driver of any job runs below us, whoever has submitted it."""
    with suppress(psutil.Error, OSError):
        leaders = [process for process in orphans.below() if _is_started_by_ray(process)]
        return any(_job_of(process) != "" for process in leaders)
    return False


def end_all() -> list[str]:
    """Kill what still runs below us of jobs and workers whose Ray is gone; return who that was."""
    with suppress(psutil.Error, OSError):
        own, everyone = psutil.Process(), orphans.below()
        inherited = own.environ()
        marked = [process for process in everyone if _is_of_a_job(process, inherited)]
        sessions = {_session_of(process) for process in marked} - {_session_of(own), None}
        left = [one for one in everyone if one in marked or _session_of(one) in sessions]
        return [name for process in left for name in orphans.kill(process)]
    return []


def _is_of_a_job(process: psutil.Process, inherited: Mapping[str, str]) -> bool:
    """Say whether Ray started a process, or one that Ray started; we may be in a job ourselves."""
    with suppress(psutil.Error, OSError):
        environ = process.environ()
        marks = [environ.get(mark) != inherited.get(mark) for mark in (_MARK, _WORKERS_MARK)]
        return any(marks) or process.name().startswith(_WORKERS_TITLE)
    return False


def _session_of(process: psutil.Process) -> int | None:
    try:
        return getsid(process.pid)
    except OSError:
        return None


def ask_to_end(submission_id: str) -> str:
    """Send SIGTERM to a job's driver and what it has started, as Ray does; return who it was."""
    driver = find_driver(submission_id)
    if driver is None:
        return ""
    with suppress(psutil.Error, OSError):
        named = f"pid {driver.pid}, {driver.name()}"
        for process in (driver, *driver.children(recursive=True)):
            with suppress(psutil.Error, OSError):  # it has ended meanwhile
                orphans.send_to(process, signal.SIGTERM)
        return named
    return ""


def pass_on(driver: psutil.Process | None, signum: int) -> str:
    """Send a signal to the job; return the sentence that says so, or why not."""
    if driver is None:
        return kept(signum, "no job of this run is running here")
    try:
        process = _addressee(driver, signum)
        shown, heard = f"pid {process.pid}, {process.name()}", _catches(process, signum)
        orphans.send_to(process, signum)
    except psutil.NoSuchProcess:
        return kept(signum, "the job has just ended")
    except (psutil.AccessDenied, PermissionError):
        return kept(signum, "no right to signal the job")
    except OSError as error:
        return kept(signum, f"{error.strerror}")
    name = signal.Signals(signum).name
    return f"{name} passed on to the job ({shown})" + ("" if heard else ", which does not catch it")


def kept(signum: int, why: str) -> str:
    """Say that a signal is not passed on."""
    return f"{signal.Signals(signum).name} is not passed on: {why}"


def _is_started_by_ray(process: psutil.Process) -> bool:
    """Say whether a process leads a session and is a child of one of Ray's workers."""
    with suppress(psutil.Error, OSError):
        if getsid(process.pid) != process.pid:
            return False
        above = process.parent()
        return above is not None and above.name().startswith(_WORKERS_TITLE)
    return False


def _job_of(process: psutil.Process) -> str | None:
    """Return the id of the job whose driver a process is, '' for no driver; None: not known."""
    with suppress(psutil.Error, ValueError, LookupError, TypeError):
        environ = process.environ()
        if _MARK in environ:
            return str(json.loads(environ[_MARK])["metadata"]["job_submission_id"])
        return "" if _WORKERS_MARK in environ else None
    return ""


def _addressee(leader: psutil.Process, signum: int) -> psutil.Process:
    """Return who is meant: the leader; where that is a shell that would only die, its child.

    Of several children, as in a pipeline, it is the only one that catches the signal.
    """
    process = leader
    while _is_shell(process) and not _catches(process, signum):
        children = process.children()
        if len(children) > 1:
            children = [child for child in children if _catches(child, signum)]
        if len(children) != 1:
            break
        process = children[0]
    return process


def _is_shell(process: psutil.Process) -> bool:
    """Say whether a process is a shell; a script's name is its own, its program is the shell."""
    try:
        program = process.exe()
    except psutil.AccessDenied:
        program = process.name()
    return Path(program).name in _SHELLS


def _catches(process: psutil.Process, signum: int) -> bool:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
