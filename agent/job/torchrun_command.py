"""Jobs that torchrun starts: command line, environment, and the first failure in its output."""

from __future__ import annotations

import re
from itertools import dropwhile
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from agent.base.ends import shell_code
from agent.base.errors import Problem
from agent.base.text import in_url
from agent.base.value import Value
from agent.job.share import ShareEnd
from agent.settings.jobs import TORCHRUN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.job.share import SharePlace
    from agent.settings.model import Settings

_TORCHRUN_POLL = 0.05  # torchrun's checks of its processes: short, to find the first failure.
RANK_VARIABLE = "TORCHELASTIC_RUN_ID"
"""An environment variable of every rank, with the id of the attempt."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_TORCHRUN_NAMES = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}


def split_python(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the Python at the start of a command, which torchrun starts instead, and the rest.

    That is python, python3.11 or /opt/conda/bin/python; -u is left out, since torchrun adds it.
    """
    if not command or not _PYTHON.fullmatch(PurePath(command[0]).name):
        return None, list(command)
    return command[0], list(dropwhile("-u".__eq__, command[1:]))


def torchrun_arguments(command: Sequence[str]) -> list[str]:
    """Return torchrun's arguments for a job's command.

    Without a leading Python that is a script (`train.py`), a module (`-m pkg.train`), or any other
    program with `--no_python`.
    """
    python, words = split_python(command)
    is_script = python is not None or words[:1] == ["-m"] or words[0].endswith(".py")
    if is_script:
        return words
    return ["--no_python", *words]


def command_fault(command: Sequence[str]) -> tuple[str, str] | None:
    """Return what torchrun cannot run in a command, and what to use instead."""
    words = split_python(command)[1]
    first = words[0] if words else ""
    module = ""
    if first == "-m" and len(words) > 1:
        module = words[1]

    if PurePath(first).name in _TORCHRUN_NAMES or module in _TORCHRUN_NAMES:
        wanted = "the script alone, which the agent starts by torchrun: -- train.py ARG…"
        return f"{module or first} itself", wanted
    if not first or (first == "-m" and not module):
        return "nothing for torchrun to run", "a script or a module: -- train.py, -- -m pkg.train"
    if first.startswith("-") and first != "-m":
        return f"{first!r}, a flag of Python's", "a script, or -m and a module, without other flags"
    return None


_SET_BY_AGENT = (
    *("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_RESTARTS"),
    *("RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF", "MONITOR_INTERVAL"),
    *("STANDALONE", "MODULE", "NO_PYTHON", "RUN_PATH"),
)
"""Flags that the agent sets; their PET_* variables are dropped."""


class Torchrun(Value):
    """The torchrun of a node without Ray: the inputs of its command line.

    It uses torch's static rendezvous, since the agents have already assigned the ranks. Rank 0 is
    on the head, whose output is the run's. One store, in the head's torchrun, serves torchrun and
    the job, so only one port must be reachable. The c10d rendezvous would assign ranks by arrival,
    and name the node of rank 0 by its host name, which pods cannot resolve.
    """

    python: str  # The Python that has torch
    port: int  # The port of the rendezvous: GCS's number, free without Ray
    processes: int  # The number of processes on this node
    stop_within: float  # Seconds that its processes get to stop before torchrun kills them

    launcher: ClassVar[str] = TORCHRUN
    name: ClassVar[str] = TORCHRUN
    mark: ClassVar[str] = RANK_VARIABLE
    stops_its_group: ClassVar[bool] = True
    session: ClassVar[None] = None  # Without Ray there are no sessions
    port_user: ClassVar[tuple[str, str]] = ("torchrun's rendezvous", "every interface (torch's)")

    def with_processes(self, processes: int) -> Torchrun:
        """Return it for so many ranks on this node."""
        return replace(self, processes=processes)

    def placeholders(self, _place: SharePlace) -> dict[str, str]:
        """Return none: torchrun gives ranks and port to the script."""
        return {}

    def command(self, argv: Sequence[str], place: SharePlace) -> list[str]:
        """Return this node's command line."""
        return [
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", place.nodes, "--node_rank", place.rank),
            *("--master_addr", in_url(place.head_ip), "--master_port", str(self.port)),
            *("--rdzv_id", place.attempt_id, "--nproc_per_node", str(self.processes)),
            *("--max_restarts", "0", "--monitor_interval", str(_TORCHRUN_POLL)),
            *torchrun_arguments(argv),
        ]

    def environment(self, full: Mapping[str, str], _place: SharePlace) -> dict[str, str]:
        """Return the environment of torchrun and its ranks."""
        dropped = {f"PET_{name}" for name in _SET_BY_AGENT}
        kept = {name: text for name, text in full.items() if name not in dropped}
        within = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.stop_within)))}
        return {**within, **kept}

    def is_closing(self, text: str, now: float) -> bool:
        """Return whether it stops its ranks after a failure."""
        return seconds_since_closing(text, now) is not None

    def end(self, _code: int, text: str, now: float) -> ShareEnd | None:
        """Return the rank that failed first, with its own code."""
        return first_failure(text, now)


def torchrun_problems(
    settings: Settings, command: Sequence[str] | None, *, wants_job: bool
) -> tuple[Problem, ...]:
    """Return problems of a command for torchrun; `wants_job` is true for `run` and `plan`."""
    if command is None and settings.job is None and wants_job:
        expected = "a command after --, or a recipe for torchrun: the rehearsal needs Ray"
        return (Problem("AGENT_LAUNCHER", f"{TORCHRUN!r} without a job", expected),)
    fault = None if not command else command_fault(command)
    return () if fault is None else (Problem("--", *fault),)


_STAMP = r"(?:[EWI]\d{4}|\[?\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)[.,](\d{3,6})"
_FAILED = re.compile(
    r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,6}) \(pid: \d+\) of binary"
)
_CLOSES = re.compile(r"Sending process \d+ closing signal")
_STOPPED_BY_SIGNAL = re.compile(r"death signal, shutting down")
_DAY = 86_400.0


def first_failure(text: str, now: float) -> ShareEnd | None:
    """Find the rank that failed first in torchrun's output; `now` is this node's time of day.

    torchrun stops its other ranks, which may take long, before it names the failed one. So the time
    of the failure is when it started to stop them.
    """
    lines = text.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        named = _FAILED.search(lines[at])
        if named is None:
            continue
        noticed = lines[at]
        if seconds_since_closing(text, now) is not None:
            noticed = next(filter(_CLOSES.search, lines[max(0, at - 1000) : at]), noticed)
        code = shell_code(int(named[1]))
        return ShareEnd(code, local_rank=int(named[2]), ago=_since(noticed, now))
    return None


def seconds_since_closing(text: str, now: float) -> float | None:
    """Return the seconds since torchrun stopped a rank because one failed; None if it has not."""
    if _STOPPED_BY_SIGNAL.search(text) is not None:
        return None
    closing = [line for line in text.splitlines() if _CLOSES.search(line)]
    return _since(closing[-1], now) if closing else None


def _since(line: str, now: float) -> float:
    """Return the seconds since a line's timestamp; 0 without one."""
    stamp = re.search(_STAMP, line)
    if stamp is None:
        return 0.0
    then = int(stamp[1]) * 3600 + int(stamp[2]) * 60 + float(f"{stamp[3]}.{stamp[4]}")
    passed = (now - then) % _DAY
    was_set_back = passed >= _DAY / 2
    return 0.0 if was_set_back else passed
