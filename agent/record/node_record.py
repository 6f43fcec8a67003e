"""`node.json`: an agent, all that it started, and which of it still lives here."""

from __future__ import annotations

import json
import math
import os
import socket
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agent.base.value import dataclass
from agent.record.files import Claim, read_small, safe, why, write_atomically

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_T = TypeVar("_T")
FILE = "node.json"
FRESH = 90.0
"""A record that was touched within so many seconds is of an agent that may live elsewhere."""
NEWEST = 20
"""So many runs are looked through for what still lives of them."""
_VERSION = 1
_NO_STATES = {"Z", "X", "x"}
"""States of a process that has ended, and waits for its parent only."""


@dataclass(frozen=True)
class Started:
    """A process: a pid alone may be another's by now, a pid with its start time never is."""

    name: str
    pid: int
    start: int
    """Field 22 of /proc/<pid>/stat: ticks since the machine's boot."""


@dataclass(frozen=True)
class Place:
    """Where pids have their meaning: one boot of one machine, and one pid namespace of it."""

    boot_id: str
    pid_namespace: str
    hostname: str = ""

    def sees(self, other: Place) -> bool:
        """Say whether the pids of another place are pids here; not where either is unknown."""
        known = bool(self.boot_id and self.pid_namespace)
        same = (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)
        return known and same


@dataclass(frozen=True)
class NodeRecord:
    """One agent in one run."""

    node: str
    run_id: str
    place: Place
    agent: Started
    started: tuple[Started, ...] = ()
    session: str = ""
    """The folder of Ray's session."""
    passed_on: int = 0
    """How many bytes of the job's output were passed on to stdout."""
    done: tuple[str, ...] = ()
    """The prepare steps that are over."""
    ended: bool = False
    """True once the agent left in good order."""
    epoch: int = 0
    """The epoch of the head's Ray that the one here belongs to, on a worker."""
    head_ip: str = ""
    """Where that head was."""
    attempt: int = 0
    """The attempt that the head made when Ray was started here, on a worker."""
    unreached: float = 0.0
    """Since when the head is out of reach, on the machine's monotonic clock; 0 while it is not."""
    oom_kills: int = 0
    """How many processes the kernel has ended here for want of memory, as far as known."""
    copied: int = 0
    """How many bytes of the job's output job.log has; it may be behind stdout, or ahead."""

    def to_dict(self) -> dict[str, object]:
        """Return what goes into node.json."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: object) -> NodeRecord | str:
        """Read what `to_dict` wrote, or say why it is no record."""
        if not isinstance(data, dict):
            return "it is no JSON object"
        version = data.get("version")
        if version != _VERSION or isinstance(version, bool):
            return f"its version is {version!r}, not {_VERSION}"
        try:
            place, started = data["place"], data["started"]
            names = ("boot_id", "pid_namespace", "hostname")
            return cls(
                node=_of(data, "node", str),
                run_id=_of(data, "run_id", str),
                place=Place(*(_of(place, name, str) for name in names)),
                agent=_started(data["agent"]),
                started=tuple(_started(one) for one in started),
                session=_of(data, "session", str),
                epoch=_of({"epoch": 0, **data}, "epoch", int),
                head_ip=_of({"head_ip": "", **data}, "head_ip", str),
                attempt=_of({"attempt": 0, **data}, "attempt", int),
                unreached=float(data.get("unreached", 0.0)),
                passed_on=_of(data, "passed_on", int),
                copied=_of({"copied": data["passed_on"], **data}, "copied", int),
                done=tuple(str(name) for name in data.get("done", ())),
                oom_kills=_of({"oom_kills": 0, **data}, "oom_kills", int),
                ended=_of(data, "ended", bool),
            )
        except (KeyError, TypeError, ValueError) as error:
            return f"it is no record of a node: {error}"

    def taken_over(self, former: NodeRecord) -> NodeRecord:
        """Return it as the record of an agent that goes on with what a killed one had."""
        return replace(
            self,
            run_id=former.run_id,
            started=former.started,
            session=former.session,
            epoch=former.epoch,
            head_ip=former.head_ip,
            attempt=former.attempt,
            unreached=former.unreached,
            passed_on=former.passed_on,
            copied=former.copied,
            done=former.done,
        )

    def write(self, path: Path, *, durable: bool = True) -> OSError | None:
        """Put it in its place whole; return why it could not be."""
        text = json.dumps(self.to_dict()) + "\n"
        return write_atomically(path, text, durable=durable)

    @classmethod
    def read(cls, path: Path) -> NodeRecord | str:
        """Read a record, or say why there is none."""
        try:
            data = json.loads(read_small(path))
        except OSError as error:
            return why(error)
        except (ValueError, RecursionError) as error:
            return f"it is broken: {error}"
        return cls.from_dict(data)


def _of(data: Mapping[str, object], field: str, kind: type[_T]) -> _T:
    value = data[field]
    if type(value) is not kind:
        raise ValueError(f"{field} is {value!r:.40}")
    return value


def _started(data: Mapping[str, object]) -> Started:
    return Started(_of(data, "name", str), _of(data, "pid", int), _of(data, "start", int))


# --- what /proc says ---------------------------------------------------------------------------


class Stat(NamedTuple):
    """What matters here of /proc/<pid>/stat."""

    state: str
    parent: int
    start: int


class Seen(NamedTuple):
    """What /proc says: where we are, and the processes that were asked for and exist."""

    place: Place
    processes: Mapping[int, Stat]


def parse_stat(text: str) -> Stat | None:
    """Read /proc/<pid>/stat; a process's name in it may hold anything, brackets too."""
    fields = text.rpartition(")")[2].split()
    try:
        return Stat(fields[0], int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def read_stat(pid: int) -> Stat | None:
    """Return what /proc says of a process, None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return parse_stat(text)


def read_place() -> Place:
    """Return where we are; what the machine does not tell is empty."""
    boot_id = namespace = ""
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return Place(boot_id, namespace, socket.gethostname())


def see(pids: Iterable[int]) -> Seen:
    """Ask /proc about these processes."""
    found = {pid: read_stat(pid) for pid in pids}
    return Seen(read_place(), {pid: stat for pid, stat in found.items() if stat is not None})


def process_of(name: str, pid: int) -> Started | None:
    """Return a process that runs now, as a record has it."""
    stat = read_stat(pid)
    return None if stat is None else Started(name, pid, stat.start)


def own_record(node: str, run_id: str) -> NodeRecord:
    """Return the record of this very process, which has started nothing yet."""
    agent = process_of("agent", os.getpid()) or Started("agent", os.getpid(), -1)
    return NodeRecord(node, run_id, read_place(), agent)


# --- what still lives --------------------------------------------------------------------------


def living_of(record: NodeRecord, seen: Seen) -> tuple[Started, ...]:
    """Return which processes of a record still live, by what /proc said of them."""
    if not seen.place.sees(record.place):
        return ()
    return tuple(
        one
        for one in (record.agent, *record.started)
        if (stat := seen.processes.get(one.pid)) is not None
        and stat.start == one.start
        and stat.state not in _NO_STATES
    )


def living(record: NodeRecord) -> tuple[Started, ...]:
    """Return which processes of a record still live here, its agent first."""
    return living_of(record, see(one.pid for one in (record.agent, *record.started)))


class Found(NamedTuple):
    """What is found where a node's folder is to be."""

    claim: Claim
    is_new: bool
    """True where the folder was not there before."""
    record: NodeRecord | None
    agent_lives: bool = False
    """Whether the record's agent lives here, and is not ourselves."""
    age: float = math.inf
    """Seconds since the record was touched."""


def may_hold(  # noqa: PLR0911 - an ordered list of reasons, the first that applies wins
    found: Found, node: str, here: Place
) -> bool:
    """Decide whether this node's folder is ours to go on in.

    The lock tells best, but not on every disk, nor of other machines on every shared one. Then
    the record tells: where its pids mean something here it has been asked, and elsewhere an agent
    that lives touches it. A pod that was started again has its host name, as a rule, though
    neither its boot nor its namespace.
    """
    if found.claim is Claim.THEIRS:
        return False
    if found.is_new:
        return True
    record = found.record
    if record is None:
        return found.claim is Claim.OURS
    if record.node != node or found.agent_lives:
        return False
    if record.ended or here.sees(record.place):
        return True
    if found.claim is Claim.OURS and record.place.hostname == here.hostname:
        return True
    return found.age > FRESH


def agent_lives(record: NodeRecord) -> bool:
    """Say whether a record's agent lives here, and is not ourselves."""
    return record.agent.pid != os.getpid() and record.agent in living(record)


def age_of(path: Path, now: float) -> float:
    """Return how long ago a file was touched, by the clock of its disk."""
    try:
        return now - path.stat().st_mtime
    except OSError:
        return math.inf


def is_at_work(folder: Path, now: float) -> bool:
    """Say whether the agent of a node's folder seems to live, here or elsewhere."""
    record = NodeRecord.read(folder / FILE)
    if isinstance(record, str) or record.ended:
        return False
    if read_place().sees(record.place):
        return agent_lives(record)
    return age_of(folder / FILE, now) <= FRESH


def run_of(root: Path, node: str, agents: Collection[int]) -> str:
    """Return the run that agents of this node were in when they were killed; '' if none tells."""
    folder = folder_of(root, node, agents)
    return "" if folder is None else folder.parent.name


def folder_of(root: Path, node: str, agents: Collection[int]) -> Path | None:
    """Return the folder that agents of this node had when they were killed, where one tells."""
    here = read_place()
    for run in _newest(root, ""):
        for path in _records(run, safe(node)):
            record = NodeRecord.read(path)
            if isinstance(record, str) or record.ended or not here.sees(record.place):
                continue
            if record.node == node and record.agent.pid in agents:
                return path.parent
    return None


# --- what still lives of other runs ------------------------------------------------------------


class Foreign(NamedTuple):
    """Another run of which something still lives on this node."""

    run_id: str
    folder: Path
    living: tuple[Started, ...]
    agent_lives: bool
    """False where only what a dead agent left behind still runs."""

    def sentence(self) -> str:
        """Say what lives, and what to do about it."""
        names = ", ".join(f"{one.name} (pid {one.pid})" for one in self.living)
        return f"run {self.run_id} still lives here: `pod-agent stop` ({names})"


def foreign(root: Path, own_run_id: str, node: str) -> Foreign | None:
    """Find another run of this node of which processes still live, among the newest runs.

    We and those above us do not count: an agent may be started from another's job.
    """
    spared = set(_line_of(os.getpid()))
    for run in _newest(root, safe(own_run_id)):
        for path in _records(run, safe(node)):
            record = NodeRecord.read(path)
            if isinstance(record, str) or record.node != node:
                continue
            alive = living(record)
            others = tuple(one for one in alive if one.pid not in spared)
            if others:
                return Foreign(run.name, path.parent, others, record.agent in others)
    return None


def _newest(root: Path, own: str) -> list[Path]:
    dated = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name != own and entry.is_dir(follow_symlinks=False):
                    dated.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(dated, reverse=True)[:NEWEST]]


def _records(run: Path, node: str) -> list[Path]:
    """List the records of a node's folders in a run, numbered ones included."""
    with suppress(OSError):
        return [
            path / FILE
            for path in sorted(run.iterdir())
            if path.name == node or path.name.rpartition("-")[0] == node
        ]
    return []


def _line_of(pid: int) -> list[int]:
    """List a process and those above it."""
    line: list[int] = []
    while pid > 0 and pid not in line:
        line.append(pid)
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return line
