"""The run folder `<log dir>/<run id>/<node>/`, and its files.

`latest` in the log dir points to the newest run.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import threading
import time
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import MsgspecError, ValidationError, field, to_builtins
from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.base.errors import PreflightError
from agent.base.text import error_text, iso_time
from agent.base.typed import convert, decode
from agent.base.value import Value
from agent.decisions.receipt import ReceiptStatus
from agent.decisions.shared import HERE
from agent.job import checkpoints
from agent.record import files, node_record
from agent.record.events import EVENTS_FILE
from agent.record.files import NoRecord, read_json, read_small, reading, safe_name, write_atomically
from agent.record.log import disk_alarm, say
from agent.record.log_dir import LogDir, RefusedPathError, log_dir, owner_of_runs
from agent.record.node_record import NodeRecord, own_record
from agent.record.run_record import RUN_FILE, RunRecord, outcomes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from agent.decisions.shared import Shortage
    from agent.record.run_record import AttemptOutcome

_FOLDER_MOVE = 0.1  # For a blocked writer before the run folder moves: the next reply tries again.
OUTCOME_FILE = "outcome.json"


class OutageRecord(Value):
    """A time in which a service was down; UTC, ISO 8601."""

    service: str
    node: str
    since: str = field(name="from")
    until: str | None = field(name="to", default=None)


class ShortageRecord(Value):
    """A time in which fewer members of a group's service served than needed; UTC, ISO 8601."""

    group: str
    service: str
    since: str = field(name="from")
    until: str | None = field(name="to", default=None)
    seconds: float = 0.0
    seconds_without_any: float = 0.0
    why: str = ""

    @classmethod
    def of(cls, shortage: Shortage, now: float, utc: Callable[[float], str]) -> ShortageRecord:
        """Return a shortage as a record; `utc` formats a time of its clock."""
        return cls(
            shortage.group,
            shortage.service,
            since=utc(shortage.since),
            until=None if shortage.until is None else utc(shortage.until),
            seconds=round(shortage.seconds(now), 1),
            seconds_without_any=round(shortage.seconds_without_any(now), 1),
            why=shortage.why,
        )


class RunFacts(NamedTuple):
    """What outcome.json has of the run as a whole; a worker does not know it."""

    attempts: Sequence[AttemptOutcome] = ()
    outages: Sequence[OutageRecord] = ()
    shortages: Sequence[ShortageRecord] = ()  # of groups
    cost: float | None = None  # dollars of all nodes, where the price is known
    price_source: str | None = None
    receipt: ReceiptStatus | None = None  # what the time was spent on


NO_FACTS = RunFacts()


def outcome_text(outcome: Outcome, facts: RunFacts = NO_FACTS, bundle: str = "") -> str:
    """Return the content of outcome.json; `bundle` is the name of the failure bundle."""
    data = {
        **to_builtins(outcome),
        "attempts": to_builtins([*facts.attempts]),
        "outages": to_builtins(facts.outages),
    }
    if facts.shortages:
        data["shortages"] = to_builtins(facts.shortages)
    if bundle:
        data["bundle"] = bundle
    if facts.cost is not None:
        data["cost"] = facts.cost
    if facts.price_source is not None:
        data["price_source"] = facts.price_source
    if facts.receipt is not None:
        data["receipt"] = to_builtins(facts.receipt)
    return json.dumps(data, indent=2) + "\n"


def facts_of(record: RunRecord, head: str) -> RunFacts:
    """Return what a run's record has for outcome.json; `head` is the name of its head's node."""
    measured = record.measured
    has_price = measured.price_source is not None
    return RunFacts(
        attempts=outcomes_of(record.durable),
        outages=_outages(record, head),
        shortages=_shortages(record),
        cost=round(measured.paid, 2) if has_price else None,
        price_source=measured.price_source,
        receipt=_receipt(record),
    )


def _outages(record: RunRecord, head: str) -> list[OutageRecord]:
    now = time.time()
    return [
        OutageRecord(
            service=outage.service,
            node=head if outage.node == HERE else outage.node,
            since=iso_time(now + outage.since),
            until=iso_time(now + outage.until) if outage.until is not None else None,
        )
        for outage in record.durable_at(0.0).outages
    ]


def _shortages(record: RunRecord) -> list[ShortageRecord]:
    now = time.time()
    known = record.durable_at(0.0).shortages
    return [ShortageRecord.of(one, 0.0, lambda at: iso_time(now + at)) for one in known]


def _receipt(record: RunRecord) -> ReceiptStatus | None:
    saved = record.measured.receipt
    if saved is None:
        return None
    verdict = record.durable.verdict
    has_succeeded = verdict is not None and verdict.exit_code == 0
    receipt = saved.meter.receipt(saved.clock.age(), has_succeeded=has_succeeded)
    return receipt.to_status(saved.price)


def read_outcome(folder: Path) -> Outcome | NoRecord:
    """Read outcome.json; NoRecord if there is none, or it cannot be read."""

    def to_outcome(data: object) -> Outcome | NoRecord:
        try:
            return convert(data, Outcome)
        except ValidationError as error:
            return NoRecord(f"it is no outcome: {error}")

    return read_json(folder / OUTCOME_FILE, to_outcome)


def agent_runs(node: Path) -> bool | None:
    """Return whether the agent of a node's folder runs; None where its pid is not valid here."""
    record = NodeRecord.read(node / node_record.NODE_FILE)
    if not isinstance(record, NodeRecord) or not node_record.read_pid_space().sees(record.place):
        return None
    return node_record.is_agent_running(record)


def why_no_outcome(node: Path) -> str:
    """Return why a node's folder has no outcome.json."""
    runs = agent_runs(node)
    if runs is None:
        return f"no {OUTCOME_FILE}: the agent still runs, or was killed"
    if runs:
        return "no end yet: the agent runs"
    return f"no {OUTCOME_FILE}: the agent was killed, or could not write it"


def stacks_file(attempt: int) -> str:
    """Return the name of the file with all stacks of an attempt that stalled."""
    return f"stacks-{attempt}.log"


class _WithReceipt(Value):
    """What is read of outcome.json for its receipt."""

    receipt: ReceiptStatus | None = None


def read_receipt(folder: Path) -> ReceiptStatus | None:
    """Read the receipt of a run from outcome.json; None if there is none."""
    try:
        return decode(read_small(folder / OUTCOME_FILE), _WithReceipt).receipt
    except (OSError, MsgspecError, ValueError, RecursionError):
        return None


def write_outcome(folder: Path, text: str) -> OSError | None:
    """Write outcome.json as a whole; report a failure to the disk alarm."""
    error = write_atomically(folder / OUTCOME_FILE, text)
    disk_alarm.report(OUTCOME_FILE, "" if error is None else error_text(error))
    return error


_NODE_MARKS = {OUTCOME_FILE, node_record.NODE_FILE, EVENTS_FILE}
"""A node's folder has at least one of these files."""
_DEEPEST_RUN = 4
_CHECKPOINTS = "checkpoints"  # the folder of recipes' checkpoints in AGENT_LOG_DIR


def node_folders(run: Path) -> list[Path]:
    """Return the folders of the nodes in a run's folder, the head's first."""
    record = RunRecord.read(run / RUN_FILE)
    head = safe_name(record.durable.head) if isinstance(record, RunRecord) else ""
    nodes = (path for path in _nodes_below(run) if path.parent == run)
    return sorted(nodes, key=lambda node: (node.name != head, node.name))


def newest_run(folder: Path) -> Path | None:
    """Return the run in or below a folder that was written last, whoever made it."""
    return _newest(_nodes_below(folder.resolve()))


class ChosenFolder(NamedTuple):
    """The run chosen in AGENT_LOG_DIR, and what was left out."""

    run: Path | None
    nodes: tuple[Path, ...] = ()  # the folders of its nodes, the head's first
    left_out: tuple[str, ...] = ()  # runs of other users


def choose_newest_run(root: Path) -> ChosenFolder:
    """Choose the newest run in AGENT_LOG_DIR; where others may write, none that others made.

    What the owner of AGENT_LOG_DIR made is used, too.
    """
    # Whose runs are used?
    root = root.resolve()
    own = owner_of_runs(root)
    owners: set[int] | None = None
    if own is not None:
        owners = {own, root.stat().st_uid}

    # Which is the newest?
    left_out: list[str] = []
    known = {*_nodes_below(root, owners, left_out)}
    run = _newest(known)
    nodes = [] if run is None else node_folders(run)
    nodes = [node for node in nodes if node in known]
    return ChosenFolder(run, tuple(nodes), tuple(sorted(left_out)))


def _newest(nodes: Iterable[Path]) -> Path | None:
    """Return the run of the node's folder that was written last."""
    written: list[tuple[float, Path]] = []
    for node in nodes:
        for name in _NODE_MARKS:
            with suppress(OSError):
                written.append(((node / name).stat().st_mtime, node.parent))
    return max(written, default=(0.0, None))[1]


def _nodes_below(
    folder: Path, owners: Collection[int] | None = None, left_out: list[str] | None = None
) -> Iterator[Path]:
    """Yield the folders of nodes in or below a folder.

    With `owners` none that others made; the names of their runs are added to `left_out`.
    """
    for path, folders, names in os.walk(folder):
        place = Path(path)
        if owners is not None:
            others = [name for name in folders if not _belongs_to(owners, place / name)]
            folders[:] = [name for name in folders if name not in others]
            if left_out is not None:
                runs = filter(_holds_run, map(place.joinpath, others))
                left_out += [str(run.relative_to(folder)) for run in runs]
        if _NODE_MARKS & {*names}:
            yield place
        if _NODE_MARKS & {*names} or len(place.relative_to(folder).parts) >= _DEEPEST_RUN:
            folders.clear()
        elif _CHECKPOINTS in folders:  # they may hold very many others
            folders.remove(_CHECKPOINTS)


def _belongs_to(owners: Collection[int], folder: Path) -> bool:
    """Return whether one of these users made a folder."""
    with suppress(OSError):  # removed meanwhile
        return folder.lstat().st_uid in owners
    return False


def _holds_run(folder: Path) -> bool:
    """Return whether a folder is a run's, as far as this user can read it."""
    if folder.is_symlink():  # `latest`
        return False
    with suppress(OSError):
        names = {path.name for path in folder.glob("*/*")}
        return (folder / RUN_FILE).exists() or bool(_NODE_MARKS & names)
    return False


_PLACES = ("*", "*/*", "*/*/*")  # of steps in a folder, as in `ckpt/_actor/global_step40`


def read_checkpoints(folder: str) -> checkpoints.FolderContents:
    """Return the checkpoints in a folder; none if it does not exist."""
    place = Path(folder)

    # Whose are they?
    mark: checkpoints.CheckpointOwner | None = None
    fault = ""
    try:
        text = read_small(place / checkpoints.CHECKPOINT_FILE)
        mark = decode(text, checkpoints.CheckpointOwner)
    except FileNotFoundError:
        fault = ""
    except OSError as error:
        fault = error_text(error)
    except (ValueError, TypeError) as error:
        fault = str(error)

    # Which is the newest, and which one does the framework's own file name?
    tracked = ""
    for tracker in checkpoints.tracker_files():
        with suppress(OSError, ValueError):
            tracked = read_small(place / tracker).strip()
    newest = ""
    whole = ""
    with suppress(OSError):
        paths = chain.from_iterable(map(place.glob, _PLACES))
        found = (str(path.relative_to(place)) for path in paths)
        named = (path for path in found if checkpoints.step_of(path) is not None)
        folders = [path for path in named if (place / path).is_dir()]
        newest = checkpoints.latest(folders)
        whole = _newest_whole(place, folders)
    return checkpoints.FolderContents(mark, fault, newest, whole, tracked)


def _newest_whole(place: Path, folders: list[str]) -> str:
    """Return the newest checkpoint with its framework's last file; a killed save lacks it."""
    remaining = set(folders)
    while remaining:
        newest = checkpoints.latest(remaining)
        for prefix, name in checkpoints.last_files():
            if newest.startswith(prefix) and _is_written(place / newest / name):
                return newest
        remaining.remove(newest)
    return ""


def _is_written(path: Path) -> bool:
    """Return whether a file is there, and whole if it is JSON."""
    if path.suffix != ".json":
        return path.is_file()
    with suppress(OSError, ValueError, RecursionError):
        json.loads(read_small(path))
        return True
    return False


class CheckpointFiles(Value):
    """A checkpoint and its files."""

    path: str
    files: tuple[tuple[str, int, int], ...]  # path, size and time of the last change
    is_marked_whole: bool  # True once it has the file that its framework writes last


def read_newest_files(folder: str, framework: str) -> CheckpointFiles | None:
    """Return the newest checkpoint that a framework would resume from, with its files."""
    contents = read_checkpoints(folder)
    path = checkpoints.resumes_from(contents, framework) if framework else contents.newest
    if not path:
        return None

    place = Path(folder) / path
    files_there = []
    for file in sorted(place.rglob("*")):
        with suppress(OSError):  # it was removed meanwhile
            status = file.stat()
            files_there.append((str(file), status.st_size, status.st_mtime_ns))

    last_file = checkpoints.last_file(framework)
    is_whole = bool(last_file) and _is_written(place / last_file)
    return CheckpointFiles(path, tuple(files_there), is_marked_whole=is_whole)


def write_mark(folder: str, mark: checkpoints.CheckpointOwner) -> str:
    """Write the owner of a checkpoint folder into it; return an error, or ''."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error_text(error)
    text = json.dumps(to_builtins(mark), indent=2) + "\n"
    failure = write_atomically(Path(folder) / checkpoints.CHECKPOINT_FILE, text, mode=0o666)
    return "" if failure is None else error_text(failure)


_LOCK = ".agent.lock"
_FORMER_OUTCOME = "outcome.former-1.json"
NO_HEAD = "no-head"  # instead of the run id while a worker does not know it


class RunFolder:
    """This node's folder in a run; a worker's folder is renamed once the run id is known.

    A restarted node uses its folder again if it starts with the run id. Otherwise, or if another
    agent may hold it, the node takes a numbered folder.
    """

    def __init__(self, root: Path, run_id: str, node: str, *, link: bool = True) -> None:
        """Make or reuse the folder; the `run_id` '' stands for a run that is not known yet."""
        link = link and bool(run_id)
        run_id = run_id or NO_HEAD
        self._root = root.absolute()
        self._name = node
        self._moving = threading.RLock()
        self._refused = ""  # the run whose folder could not be used; logged once
        self.own = own_record(node, run_id)  # the initial record; a NodeRecorder updates it later
        self.former: NodeRecord | None = None  # of the previous agent of this node in this run
        self._lock: files.FileLock
        self.path = self._make(safe_name(run_id))
        if link:
            self.become_latest()

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    @contextmanager
    def held(self, name: str) -> Iterator[Path]:
        """Yield the path of a file while the folder is kept from moving."""
        with self._moving:
            yield self.path / name

    def close(self) -> None:
        """Release the folder for the next agent of this node."""
        self._lock.release()

    # --- taking a folder -------------------------------------------------------------------------

    def _make(self, run_id: str) -> Path:
        try:
            log_dir.guard(self._root)
            paths = map((self._root / run_id).joinpath, files.numbered_names(safe_name(self._name)))
            path = next(filter(self._claim, paths))
        except RefusedPathError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root}: the folder of this run is not used",
                why=error_text(error),
                remedy="Remove what others made there, or choose another folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None
        except OSError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root} cannot be written",
                why=error_text(error),
                remedy="Choose a writable folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None
        if log_dir.fault:
            remedy = "Choose a disk with file modes in AGENT_LOG_DIR, or set AGENT_LOG_MODE=umask"
            say(f"AGENT_LOG_MODE: others can read {path}: {log_dir.fault}. {remedy}", "warning")
        return path

    def _claim(self, path: Path) -> bool:
        """Take a folder, unless another agent holds it."""
        is_new = _make_folder(path)
        if not stat.S_ISDIR(log_dir.stat(path).st_mode):
            return False

        # May it be used?
        lock = files.FileLock(path / _LOCK)
        holder = lock.take()
        read = NodeRecord.read_patiently(path / node_record.NODE_FILE)
        former = read if isinstance(read, NodeRecord) else None
        if not node_record.may_reuse(former, holder, self._name, self.own.place, is_new=is_new):
            lock.release()
            return False
        self._lock = lock
        self.former = former

        # Put the previous agent's outcome aside, and remove what it left incomplete.
        with suppress(OSError):
            log_dir.rename(path / OUTCOME_FILE, path / _FORMER_OUTCOME)
        names = log_dir.names(path)
        # Its logs go on: what follows is of this start.
        self.own = replace(self.own, log_begins=_sizes_of_logs(path, names))
        for name in names:
            if name.startswith(".") and name.endswith(files.PART_SUFFIX):
                with suppress(OSError):
                    log_dir.remove(path / name)
        self.own.write(path / node_record.NODE_FILE)  # a full disk is logged later
        return True

    def become_latest(self) -> None:
        """Make `latest` point to this run."""
        part = self._root / f".latest-{secrets.token_hex(4)}"
        with suppress(OSError):  # some disks have no links
            part.symlink_to(self.path.parent.name, target_is_directory=True)
            part.replace(self._root / "latest")
        with suppress(OSError):
            part.unlink(missing_ok=True)

    # --- moving to the run's folder --------------------------------------------------------------

    def move_to_run(self, run_id: str) -> None:
        """Move to the run's folder, with open files; if the disk refuses, the run goes on here."""
        target = self._root / safe_name(run_id)
        old = self.path
        if old.parent == target or run_id == self._refused:
            return

        # If a writer is blocked, the head's next reply tries again.
        if not self._moving.acquire(timeout=_FOLDER_MOVE):
            return
        try:
            log_dir.make_folder(target)
            names = map(target.joinpath, files.numbered_names(safe_name(self._name)))
            self.path = next(name for name in names if _renamed(old, name))
        except OSError as error:
            self._refused = run_id
            say(f"the log stays in {old}: {error_text(error)}", "warning")
            return
        finally:
            self._moving.release()

        for folder in (old, old.parent):
            with suppress(OSError):  # gone, or in use by another node
                log_dir.remove_folder(folder)
        self.become_latest()


def _make_folder(path: Path) -> bool:
    """Make a node's folder; return False if it is there."""
    for _ in range(100):
        with suppress(FileNotFoundError):  # another node removed the empty parent
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            log_dir.make_folder(path.parent)
            try:
                log_dir.make_folder(path, exist_ok=False)
            except FileExistsError:
                return False
            return True
    raise FileNotFoundError(errno.ENOENT, f"{path.parent} cannot be made")


def _sizes_of_logs(folder: Path, names: Iterable[str]) -> dict[str, int]:
    sizes = {}
    for name in names:
        if name.endswith(".log"):
            with suppress(OSError):
                sizes[name] = log_dir.stat(folder / name).st_size
    return sizes


def _renamed(old: Path, new: Path) -> bool:
    """Rename a folder; return False if the new name exists."""
    try:
        if not log_dir.exists(new):
            log_dir.rename(old, new)
            return True
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # it was just made
            raise
    return False


KEY_FILE = "control.key"
_KEY_LENGTH = 32
_KEY_FORM = f"[0-9a-f]{{{_KEY_LENGTH}}}"


def new_key() -> str:
    """Return a new random key for this node's users."""
    return secrets.token_hex(_KEY_LENGTH // 2)


_FRONT_KEY_FILE = "front.key"


def front_key(folder: Path) -> str:
    """Return the key of the fronts of a run without a token, which a run folder keeps.

    If its disk takes none, it is a new one: fronts that a later agent finds get no more orders.
    """
    path = folder / _FRONT_KEY_FILE
    with suppress(OSError, ValueError):
        known = read_small(path)
        if re.fullmatch(_KEY_FORM, known):
            return known
    key = new_key()
    write_atomically(path, key, mode=0o600)
    return key


def write_key(folder: Path, key: str) -> bool:
    """Write the key where only this node's users find it; return whether that worked."""
    return write_atomically(folder / KEY_FILE, key, mode=0o600) is None


def newest_key(root: Path, run_id: str = "") -> str | None:
    """Return the key that was written last in a run of a log folder, if it is readable.

    Without an id that is the latest run, which may be another than the one that answers.
    It is sent to whoever answers as the head: no link may make a private file of it, and a folder
    that others may write into may have a `latest` or runs of other users.
    """
    place = LogDir()
    keys = list[tuple[float, str]]()
    owner = owner_of_runs(root)
    place.obey(str(root.absolute()), owner, "private")

    # Which run? In the place of `latest` another user may have made a link.
    name = run_id
    if not name:
        with suppress(OSError):
            name = str((root / "latest").readlink())
    run = root / safe_name(name) if name else None
    owners = None if owner is None else {owner}
    if run is not None and owners is not None and not _belongs_to(owners, run):
        run = None
    if run is None and not run_id:
        run = _newest(_nodes_below(root.resolve(), owners))
    if run is None:
        return None

    with suppress(OSError):
        for node in place.names(run):
            with suppress(OSError, ValueError), reading(run / node / KEY_FILE, place) as file:
                key = file.read(_KEY_LENGTH + 1).decode().strip()
                if re.fullmatch(_KEY_FORM, key):
                    keys.append((os.fstat(file.fileno()).st_mtime, key))
    return max(keys)[1] if keys else None
