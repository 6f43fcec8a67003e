"""`node.json`: an agent, the processes that it started, and which of them still run."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.base.text import error_text, iso_time, seconds_between
from agent.base.value import Value
from agent.record.background import ItemWriter
from agent.record.files import LockHolder, Record, safe_name
from agent.record.log_dir import RefusedPathError, log_dir
from agent.record.memory import record_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from agent.record.background import DiskAlarm

_RECORD_COUNTERS = 0.5  # Between writes of counters that change all the time.
NODE_FILE = "node.json"
MAX_RUNS = 20  # runs searched for a killed agent's record, the newest ones
_NO_STATES = {"Z", "X", "x"}  # states in /proc of a process that has exited


class StartedProcess(Value):
    """A process, identified by its pid and start time, since pids are reused."""

    name: str
    pid: int
    start: int  # field 22 of /proc/<pid>/stat: ticks since the machine's boot
    generation: int = 0  # of a service, as the head counts it; else 0


class PidSpace(Value):
    """The scope of pids: one boot of one machine and one pid namespace."""

    boot_id: str
    pid_namespace: str
    hostname: str = ""

    def sees(self, other: PidSpace) -> bool:
        """Return whether pids of the other scope are valid here; False if one is unknown."""
        same = (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)
        return same and bool(self.boot_id and self.pid_namespace)


class NodeRecord(Record):
    """One agent in one run."""

    outlives_its_disk: ClassVar[bool] = True

    node: str
    run_id: str
    place: PidSpace
    agent: StartedProcess
    started: tuple[StartedProcess, ...] = ()
    session: str = ""  # the folder of Ray's session
    output_of: str = ""  # the id of the job whose output was passed on last
    passed_on: int = 0  # bytes of it written to stdout
    done: tuple[str, ...] = ()  # the finished prepare steps
    ended: bool = False  # True once the agent ended in good order
    epoch: int = 0  # of the Ray cluster that its Ray belongs to; on the head, of its own
    head_ip: str = ""  # the address of that cluster's head
    ray_generation: int = 0  # on a worker: of its Ray, 0 for none
    unreached: float = 0.0  # start of the time without the head, on the monotonic clock; 0 with it
    oom_kills: int = 0  # processes that the kernel's OOM killer ended here, as far as known
    ending: Outcome | None = None  # on a worker: the decided outcome; it may still stop things
    copied: int = 0  # bytes of that output written to job.log; may differ from stdout
    log_begins: dict[str, int] = {}  # noqa: RUF012 - by log: its size at the start, unless 0

    def continuing(self, former: NodeRecord) -> NodeRecord:
        """Return this agent's record with the work of the killed agent that it replaces."""
        own = {"node": self.node, "place": self.place, "agent": self.agent}
        return replace(former, **own, ended=False, oom_kills=self.oom_kills, ending=None)


class Moment(Value):
    """A past time, by this machine's monotonic clock and in UTC."""

    utc: str
    boot: str = ""
    seconds: float = 0.0

    @classmethod
    def before(cls, seconds: float) -> Moment:
        """Return the time so many seconds ago."""
        utc = iso_time(time.time() - seconds)
        boot = read_pid_space().boot_id
        return cls(utc, boot, round(time.monotonic() - seconds, 3))

    def age(self) -> float:
        """Return the seconds since; after a reboot, or elsewhere, by the wall clock."""
        now = time.monotonic()
        if self.boot and self.boot == read_pid_space().boot_id and self.seconds <= now:
            return now - self.seconds
        return seconds_between(self.utc, iso_time(time.time()))


# --- /proc ---------------------------------------------------------------------------------------


class ProcessStat(NamedTuple):
    """Fields of /proc/<pid>/stat."""

    name: str
    state: str
    start: int  # in ticks since boot


def read_stat(pid: int, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Return the state of a process, or None; the process name may contain brackets."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return ProcessStat(name, fields[0], int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def read_pid_space() -> PidSpace:
    """Return the pid scope of this process; unknown fields are empty."""
    boot_id = namespace = ""
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return PidSpace(boot_id, namespace, socket.gethostname())


def process_of(name: str, pid: int, generation: int = 0) -> StartedProcess | None:
    """Return a running process by its pid, or None."""
    stat = read_stat(pid)
    if stat is None:
        return None
    return StartedProcess(name, pid, stat.start, generation)


def own_record(node: str, run_id: str) -> NodeRecord:
    """Return the record of this agent before it has started any process."""
    agent = process_of("agent", os.getpid()) or StartedProcess("agent", os.getpid(), -1)
    return NodeRecord(node, run_id, read_pid_space(), agent)


# --- processes of a record -----------------------------------------------------------------------


def running_processes(record: NodeRecord) -> tuple[StartedProcess, ...]:
    """Return the processes of a record that still run here, the agent first."""
    if not read_pid_space().sees(record.place):
        return ()
    return tuple(filter(_is_running, (record.agent, *record.started)))


def _is_running(process: StartedProcess) -> bool:
    stat = read_stat(process.pid)
    if stat is None or stat.state in _NO_STATES:
        return False
    return stat.start == process.start


def may_reuse(
    record: NodeRecord | None, lock: LockHolder, node: str, here: PidSpace, *, is_new: bool
) -> bool:
    """Decide whether this agent may use a folder, just made or with another agent's record.

    The record decides beside the lock, which other machines may not see: its agent ended, or its
    pids are valid here, or it is of this pod, which keeps its host name when it is restarted, but
    not its boot id and pid namespace.
    """
    if lock is LockHolder.THEIRS:
        return False
    if is_new:
        return True
    if record is None:
        return lock is LockHolder.OURS
    if record.node != node or is_agent_running(record):
        return False
    is_same_pod = lock is LockHolder.OURS and record.place.hostname == here.hostname
    return record.ended or here.sees(record.place) or is_same_pod


def is_agent_running(record: NodeRecord) -> bool:
    """Return whether a record's agent runs here and is another process."""
    return record.agent.pid != os.getpid() and record.agent in running_processes(record)


def folder_of(root: Path, node: str, agents: Collection[int]) -> Path | None:
    """Return the run folder of killed agents of this node, by their pids, or None."""
    if not agents:
        return None
    here = read_pid_space()
    unsaved = record_memory.path_of(NODE_FILE)
    if unsaved is not None and log_dir.exists(unsaved.parent):
        return unsaved.parent
    for path in _find_records(root, node).newest:
        record = NodeRecord.read_patiently(path)
        if not isinstance(record, NodeRecord) or record.node != node or record.ended:
            continue
        if here.sees(record.place) and record.agent.pid in agents:
            return path.parent
    return None


def why_unreadable(root: Path, node: str) -> str:
    """Return why a record that may be of this node's killed agents cannot be read, or ''."""
    # Can the disk say where the records are?
    records = _find_records(root, node)
    faults = [*records.faults]
    unsaved = record_memory.path_of(NODE_FILE)
    if unsaved is not None:
        with _faults_to(faults, unsaved.parent):
            log_dir.stat(unsaved.parent)
    if faults:
        return faults[0]

    # Can each of them be read?
    for path in records.newest:
        record = NodeRecord.read(path)
        if not isinstance(record, NodeRecord) and not record.is_missing:
            return f"{path}: {record.why}"
    return ""


class _FoundRecords(NamedTuple):
    """The records of a node's agents; `faults` are errors of the disk, which may hide others."""

    newest: list[Path]  # the newest first
    faults: list[str]


def _find_records(root: Path, node: str) -> _FoundRecords:
    """Return the files of this node's agents in the newest runs."""
    faults: list[str] = []
    written = []
    for path in _records_of(root, safe_name(node), faults):
        with _faults_to(faults, path):
            written.append((log_dir.stat(path).st_mtime, path))
    newest = [path for _, path in sorted(written, reverse=True)[:MAX_RUNS]]
    return _FoundRecords(newest, faults)


def _records_of(root: Path, name: str, faults: list[str]) -> Iterator[Path]:
    """Yield the files of all agents with a name, or one that begins with it, in all runs."""
    runs: list[str] = []
    with _faults_to(faults, root):
        runs = log_dir.names(root)
    for run in runs:
        nodes: list[str] = []
        with _faults_to(faults, root / run):
            if not (root / run).is_symlink():  # `latest`
                nodes = log_dir.names(root / run)
        yield from (root / run / node / NODE_FILE for node in nodes if node.startswith(name))


@contextmanager
def _faults_to(faults: list[str], path: Path) -> Iterator[None]:
    """Add an error of the disk to `faults`; what is missing or refused stays so, and is none."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError | RefusedPathError):
            faults.append(f"{path}: {error_text(error)}")


# --- the writer ----------------------------------------------------------------------------------

_COUNTERS = {"passed_on", "copied", "unreached", "oom_kills"}  # written seldom


class NodeRecorder(ItemWriter[NodeRecord]):
    """Writes changes of a node's record in the background; callers never wait for the disk."""

    def __init__(
        self, record: NodeRecord, where: Callable[[], AbstractContextManager[Path]], disk: DiskAlarm
    ) -> None:
        super().__init__(NODE_FILE, self._write_record, disk, _RECORD_COUNTERS)
        self.record = record  # the record with all changes, written or not
        self._where = where
        self._written_epoch = 0
        self._path: Path | None = None  # of the last write
        self.put(record)

    def add_process(self, name: str, pid: int, generation: int = 0) -> None:
        """Add a process; one that has exited already is skipped."""
        process = process_of(name, pid, generation)
        if process is None:
            return
        others = [other for other in self.record.started if other.pid != pid]
        self.update(started=(*others, process))

    def remove_process(self, pid: int) -> None:
        """Remove a process that has exited."""
        others = tuple(other for other in self.record.started if other.pid != pid)
        self.update(started=others)

    def update(self, **changes: object) -> None:
        """Change fields of the record; threads may call it."""
        with self._changed:
            record = replace(self.record, **changes)
            if record == self.record:
                return
            self.record = record
            is_urgent = not changes.keys() <= _COUNTERS
            self.put(record, urgent=is_urgent)
            # A slow write may be under way: the next agent must know of this change at once.
            if is_urgent and self._path is not None:
                record.keep_in_memory(self._path)

    def record_epoch(self, epoch: int, limit: float) -> OSError | None:
        """Keep the epoch for the next agent of this node: run.json must not have it before.

        In memory it is at once, while a write of this record may be blocked. Where there is no
        memory the disk must take it within `limit` seconds; otherwise return an error.
        """
        with self._changed:
            self.update(epoch=epoch)
            if self._thread is None:
                return None
            if self._path is not None and self.record.keep_in_memory(self._path):
                return None
            if self._changed.wait_for(lambda: self._written_epoch >= epoch, limit):
                return None
        return OSError(errno.EAGAIN, f"it waits for the write of its epoch to {NODE_FILE}")

    def finish(self, limit: float = 1.0) -> None:
        """Write that this agent ended in good order, for at most `limit` seconds."""
        self.update(ended=True)
        super().finish(limit)

    def _write_record(self, _record: NodeRecord) -> OSError | None:
        with self._where() as path:
            # The newest: an older one must not replace in memory what `record_epoch` kept there.
            with self._changed:
                self._path = path
                record = self.record
                record.keep_in_memory(path)
            error = record.write_kept(path, durable=False)  # no process outlives the power
        if error is None:
            self._written_epoch = record.epoch
        return error
