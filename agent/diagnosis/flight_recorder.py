"""Read the dumps of torch's flight recorder, and find who did not enter which collective.

A rank's dump is a pickle of its last collectives by process group, each with a number that all
ranks of the group count alike. The reader accepts only containers, texts and numbers, and a limited
size: no code of a dump runs.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from agent.base.text import first_names, without_controls
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


LARGEST_DUMP = 32 << 20  # bytes; 2,000 collectives with 30 frames each take 4 MB
_MOST_OPCODES = 4_000_000
_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "MEMOIZE"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
}
"""Those that make containers and scalars; torch 2.11 and 2.14 use some of them."""
_KEYS = {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2"}
_GETS = {"BINGET", "LONG_BINGET"}
_PUTS = {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
_TAKE_ALL = {"TUPLE", "APPENDS", "SETITEMS"}  # all that is above the mark
_TAKE = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_PUT_NOTHING = {"PROTO", "FRAME", "STOP", "APPEND", "APPENDS", "SETITEM", "SETITEMS"}


class DumpError(ValueError):
    """A dump that is not one of the flight recorder, or more than plain data."""


class Collective(Value):
    """A collective of a process group that a rank has entered."""

    number: int  # counted by every rank of the group alike
    name: str  # such as `nccl:all_reduce`
    where: str = ""  # function and line that called it
    is_over: bool = False


class GroupProgress(Value):
    """How far a rank got in one process group."""

    rank: int
    group: str
    ranks: tuple[int, ...]  # of the group, if known
    last: int  # number of the last collective that it entered
    recent: tuple[Collective, ...] = ()  # the last ones


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - it returns nothing
        raise DumpError(f"the dump names {module}.{name}")


_MOST_RANKS = 1 << 16
_MOST_GROUPS = 64
_MOST_RECENT = 4
_NUMBER = re.compile(r"\d{1,9}")
_TORCH = "/torch/"


def read_dump(data: bytes, rank: int) -> tuple[GroupProgress, ...]:
    """Return how far a rank got in each of its groups; raise DumpError for anything else."""
    dump = _load(data)
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise DumpError("it has no list of entries")

    # Its collectives by group; those between two ranks only are not counted by all.
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("is_p2p") is True:
            continue
        if isinstance(entry.get("collective_seq_id"), int):
            by_group[_group_name(entry)].append(entry)
    config = dump.get("pg_config")
    progress = []
    for name, own in [*by_group.items()][:_MOST_GROUPS]:
        latest = sorted(own, key=lambda entry: int(entry["collective_seq_id"]))[-_MOST_RECENT:]
        recent = tuple(_collective(entry) for entry in latest)
        ranks = _ranks_of(config, name)
        progress.append(GroupProgress(rank, name, ranks, recent[-1].number, recent))
    return tuple(progress)


def _load(data: bytes) -> Any:  # noqa: ANN401 - lists, mappings, texts and numbers
    """Unpickle plain data."""
    if len(data) > LARGEST_DUMP:
        raise DumpError(f"it has {len(data)} bytes")
    try:
        _check_opcodes(data)
        return _PlainUnpickler(io.BytesIO(data)).load()  # it makes no objects of classes
    except DumpError:
        raise
    except Exception as error:  # whatever a broken pickle raises
        raise DumpError(f"it cannot be read: {type(error).__name__}") from error


def _check_opcodes(data: bytes) -> None:
    """Raise DumpError for other opcodes, and for an index that would make a memo of gigabytes.

    Keys are texts and short numbers: the hash of tuples that share each other takes for ever, and
    holds all threads.
    """
    keys = _KeyCheck()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in _OPCODES or count > _MOST_OPCODES:
            raise DumpError(f"it has the opcode {opcode.name}, or too many")
        if opcode.name == "LONG_BINPUT" and isinstance(argument, int) and argument > count:
            raise DumpError("it has an index outside of its memo")
        keys.add(opcode.name, argument)


class _KeyCheck:
    """Follows the unpickler's stack: of each object, whether it may be a key."""

    def __init__(self) -> None:
        self._stack: list[bool] = []
        self._marks: list[int] = []
        self._memo: dict[int, bool] = {}

    def add(self, name: str, argument: Any) -> None:  # noqa: ANN401 - by the opcode
        """Follow an opcode; raise DumpError for another key."""
        if name in _KEYS:
            self._stack.append(True)
            return
        if name in _GETS:
            self._stack.append(self._memo[argument])
            return
        if name == "MARK":
            self._marks.append(len(self._stack))
            return
        if name in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
            return

        # What does it take from the stack?
        start = self._marks.pop() if name in _TAKE_ALL else len(self._stack) - _TAKE.get(name, 0)
        taken = self._stack[start:]
        del self._stack[start:]
        if name in {"SETITEM", "SETITEMS"} and not all(taken[::2]):
            raise DumpError("it has a key that is no text")

        # And what does it put there?
        if name not in _PUT_NOTHING:
            self._stack.append(False)


def _group_name(entry: Mapping[str, Any]) -> str:
    """Return number and description of a group, as in `0 (default_pg)`."""
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and len(named) == 2:
        number = _text(named[0])
        description = _text(named[1])
        is_default = description in {"", "undefined", number}
        return number if is_default else f"{number} ({description})"
    return _text(entry.get("pg_id"))


def _ranks_of(config: object, name: str) -> tuple[int, ...]:
    """Return the ranks of a group; gloo's only group has no name there (torch 2.14)."""
    if not isinstance(config, dict):
        return ()
    number = name.partition(" ")[0]
    group = config.get(number)
    if group is None and len(config) == 1:
        group = next(iter(config.values()))
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if not isinstance(ranks, str):
        return ()
    numbers = [int(number) for number in _NUMBER.findall(ranks[: 8 * _MOST_RANKS])]
    return tuple(numbers[:_MOST_RANKS])


def _collective(entry: Mapping[str, Any]) -> Collective:
    is_over = entry.get("state") == "completed" or entry.get("retired") is True
    name = _text(entry.get("profiling_name"))
    return Collective(int(entry["collective_seq_id"]), name, _caller(entry.get("frames")), is_over)


def _caller(frames: object) -> str:
    """Return the innermost frame outside of torch, as in `sync (fsdp.py:20)`."""
    for frame in frames if isinstance(frames, list) else ():
        path = frame.get("filename") if isinstance(frame, dict) else None
        if isinstance(frame, dict) and not (isinstance(path, str) and _TORCH in path):
            file = _text(path).rpartition("/")[2]
            return f"`{_text(frame.get('name'))}` ({file}:{_text(frame.get('line'))})"
    return ""


def _text(value: object) -> str:
    if isinstance(value, str):
        return without_controls(value[-120:])
    return str(value) if isinstance(value, int) else ""


# --- who did not enter ----------------------------------------------------------------------------


def not_entered(progress: Iterable[GroupProgress]) -> tuple[str, ...]:
    """Return a sentence for each group whose ranks are not in the same collective."""
    by_group: dict[tuple[str, tuple[int, ...]], list[GroupProgress]] = defaultdict(list)
    for member in progress:
        by_group[member.group, member.ranks].append(member)
    sentences = [_group_sentence(members) for members in by_group.values()]
    return tuple(filter(None, sentences))


def _group_sentence(members: Sequence[GroupProgress]) -> str:
    """Return who did not enter the collective that others of a group wait in, or ''."""
    ahead = max(members, key=lambda member: member.last)
    of_group = f"of process group {ahead.group}" if ahead.group else ""

    # Is a rank behind? The others wait in the one after its last.
    behind = [member for member in members if member.last < ahead.last]
    if behind:
        slowest = min(member.last for member in behind)
        waited = _numbered(members, slowest + 1)
        late = [member.rank for member in behind if member.last == slowest]
        waiting = [member.rank for member in members if member.last > slowest]
        return (
            f"{_ranks(late)} did not enter {waited} {of_group}, where {_ranks(waiting)} "
            f"{'waits' if len(waiting) == 1 else 'wait'}"
        )

    # All got equally far: into different collectives, or into one that does not end?
    names: dict[str, list[int]] = defaultdict(list)
    for member in members:
        if member.recent and not member.recent[-1].is_over:
            names[member.recent[-1].name].append(member.rank)
    if len(names) > 1:
        each = "; ".join(f"{name}: {_ranks(ranks)}" for name, ranks in names.items())
        return f"collective {ahead.last} {of_group} differs between ranks: {each}"
    missing = set(ahead.ranks) - {member.rank for member in members}
    if names and not missing and len(ahead.ranks) > 1:
        return f"all ranks {of_group} are in {_numbered(members, ahead.last)}: the transport hangs"
    return ""


def _numbered(members: Sequence[GroupProgress], number: int) -> str:
    """Return a collective by name, number and caller."""
    for member in members:
        for collective in member.recent:
            if collective.number == number:
                caller = f" in {collective.where}" if collective.where else ""
                return f"{collective.name} (number {number}{caller})"
    return f"collective {number}"


def _ranks(ranks: Sequence[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(names) > 1 else ''} {first_names(names)}"


# --- its environment ------------------------------------------------------------------------------

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
"""The prefix of each rank's pipe: a byte in it requests a dump, by NCCL only."""
DUMP = "TORCH_FR_DUMP_TEMP_FILE"
FORMER_DUMP = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_SIZE = "TORCH_FR_BUFFER_SIZE"
_FORMER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_ENTRIES = "2000"


def recorder_environment(
    folder: str, given: Mapping[str, str], *, has_pipes: bool
) -> dict[str, str]:
    """Return the variables that turn the recorder on for training processes; given ones win.

    torch ends a process that cannot make its pipe: where the folder's disk has none, it gets none.
    """
    pairs: dict[tuple[str, ...], str] = {
        (_SIZE, _FORMER_SIZE): _ENTRIES,
        (DUMP, FORMER_DUMP): f"{folder}/flight-recorder-",
    }
    if has_pipes:
        pairs[(PIPE,)] = f"{folder}/flight-recorder-pipe-"
    chosen = dict[str, str]()
    for names, value in pairs.items():
        if not any(name in given for name in names):
            chosen |= dict.fromkeys(names, value)
    return chosen


def dump_files(environ: Mapping[str, str], rank: int) -> tuple[str, str] | None:
    """Return a rank's pipe and its dump, by the environment of its process; None without both."""
    pipe = environ.get(PIPE)
    dump = environ.get(DUMP) or environ.get(FORMER_DUMP)
    if not pipe or not dump:
        return None
    return f"{pipe}{rank}.pipe", f"{dump}{rank}"
