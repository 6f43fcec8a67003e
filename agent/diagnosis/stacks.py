"""Stacks of a job's processes, grouped by place, and a sentence that names suspects.

A hung job has many processes that wait for few. `group` puts processes in the same place together,
the most suspicious group first: `Activity` has their order, and of one kind the fewest come first.
`sentence` names node, process and function of each.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from agent.base.text import listed, without_controls
from agent.base.typed import decode
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# --- stacks and their readers ---------------------------------------------------------------------


class Frame(Value):
    """A Python frame."""

    function: str  # with its class from Python 3.11 on
    file: str
    line: int

    @property
    def place(self) -> str:
        """Return file and line, as in `reward.py:44`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class ThreadStack(Value):
    """The stack of a thread, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]


class ProcessStack(Value):
    """A process of the job, and where its threads are."""

    node: str
    pid: int
    role: str  # driver, rank 3, or Ray's process title
    rank: int | None = None
    world: int | None = None  # how many ranks its job has
    parent: int = 0  # pid of the parent process
    state: str = "S"  # the kernel's letter: R, S, D, T, Z
    cpu_seconds: float = 0.0
    threads: tuple[ThreadStack, ...] = ()
    source: str = ""  # what read the stacks: py-spy, faulthandler; else why there are none
    wait_channel: str = ""  # the kernel function that it waits in, if readable

    @property
    def telling_thread(self) -> ThreadStack:
        """Return the thread that shows what the process does."""
        return _telling_thread(self)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Return the frames of that thread."""
        return _telling_thread(self).frames


_MOST_THREADS = 64
_MOST_FRAMES = 64
_LONGEST_NAME = 120
_FAULTHANDLER_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[([^\]]*)\])?.*:$"
)
_FAULTHANDLER_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')
_MAIN = "MainThread"


class _SpyFrame(Value):
    name: str
    filename: str
    line: int = 0


class _SpyThread(Value):
    frames: tuple[_SpyFrame, ...]
    thread_name: str | None = None


def parse_py_spy(text: str) -> tuple[ThreadStack, ...]:
    """Read the output of `py-spy dump --json`; raise ValueError for anything else."""
    try:
        threads = decode(text, tuple[_SpyThread, ...])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    read = []
    for thread in threads[:_MOST_THREADS]:
        frames = [_frame(frame.name, frame.filename, frame.line) for frame in thread.frames]
        if frames:
            read.append(ThreadStack(_short(thread.thread_name or ""), _limited(frames)))
    return tuple(read)


def parse_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """Read what Python's faulthandler writes; other lines are skipped.

    It names threads from Python 3.14 on. The main thread is the one that runs a module.
    """
    names: list[str] = []
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        thread = _FAULTHANDLER_THREAD.match(line)
        frame = _FAULTHANDLER_FRAME.match(line)
        if thread is not None and len(stacks) < _MOST_THREADS:
            names.append(thread[1] or "")
            stacks.append([])
        elif frame is not None and stacks:
            number = int(frame[2]) if frame[2].isdigit() else 0
            stacks[-1].append(_frame(frame[3], frame[1], number))
    read = []
    for name, frames in zip(names, stacks, strict=True):
        is_main = bool(frames) and frames[-1].function == "<module>"
        if frames:
            read.append(ThreadStack(_short(_MAIN if is_main else name), _limited(frames)))
    return tuple(read)


def _frame(function: str, file: str, line: int) -> Frame:
    short = function.rpartition("<locals>.")[2]
    return Frame(_short(short), _short(file[-_LONGEST_NAME:]), line)


def _short(text: str) -> str:
    return without_controls(text)[:_LONGEST_NAME]


def _limited(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the innermost frames, and the outermost one."""
    if len(frames) <= _MOST_FRAMES:
        return tuple(frames)
    return (*frames[: _MOST_FRAMES - 1], frames[-1])


# --- where a process is ---------------------------------------------------------------------------


class Activity(IntEnum):
    """What a process does, the most suspicious first."""

    STOPPED = 0  # by a signal or a debugger
    BLOCKED = 1  # in the kernel: by a disk or a driver
    WORKS = 2  # in a function of the job
    WAITS_INSIDE = 3  # for its own child process, data loader or coroutine
    WAITS_OUTSIDE = 4  # for other processes: in a collective, or for a result of Ray
    UNKNOWN = 5  # no stack could be read
    IDLE = 6  # has nothing to do


class StackPlace(Value):
    """What a process does, and in which function."""

    activity: Activity
    function: str = ""
    where: str = ""  # file and line
    waits_for: str = ""
    key: str = ""  # equal for processes in the same place


_STDLIB = re.compile(r"/lib(?:64)?/(?:python|pypy)3[.\d]*t?/(?!(?:site|dist)-packages/)")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_PLUMBING = {
    *("ray", "grpc", "torch", "requests", "urllib3", "httpx", "httpcore", "aiohttp", "anyio"),
    *("uvloop", "uvicorn", "starlette", "fastapi", "zmq", "numpy", "wandb", "cloudpickle"),
    *("opentelemetry", "prometheus_client", "tqdm", "debugpy", "sentry_sdk", "tenacity", "sniffio"),
    *("torchrun", "h11", "openai", "backoff", "multiprocess", "_virtualenv.py", "six.py"),
}
"""Packages whose frames do not show what a job does; the frame that calls them does."""
_COLLECTIVE = re.compile(
    r"_?(all_reduce|all_gather|reduce_scatter|broadcast|barrier|monitored_barrier|all_to_all"
    r"|gather|scatter|reduce|send|recv|isend|irecv|batch_isend_irecv|init_process_group|new_group"
    r"|init_device_mesh|destroy_process_group|rendezvous|wait|store_based_barrier)"
    r"(_coalesced|_into_tensor|_tensor|_object|_object_list|_single|_multigpu|_base)*"
)
_IN_TORCH = "/torch/distributed/"
_FORK = "/multiprocessing/popen_fork.py"
_MULTIPROCESSING = "/multiprocessing/"
_GIVEN = {"<string>", "<stdin>"}  # code of `python -c`, and what pipes it
_RAY_WAITS = {"get", "wait", "Worker.get_objects", "get_objects", "shutdown", "init", "connect"}
_ENGINES = {"vllm": "_process_input_queue", "sglang": "recv_requests"}
"""The function in which the process of an idle engine waits for requests, by package."""
_QUEUES = ("/queue.py", "/multiprocessing/queues.py", "/multiprocessing/connection.py", "/zmq/")
_TAKES = {"get", "recv", "recv_bytes", "recv_multipart", "poll"}
_LOADER = "/torch/utils/data/"
_INSIDE = (
    (_LOADER, "its data loader"),
    (_MULTIPROCESSING, "another process"),
    ("/multiprocess/", "another process"),
    ("/subprocess.py", "another process"),
)


def place_of(process: ProcessStack) -> StackPlace:
    """Return what a process does, by the thread that shows it."""
    place = _place_in(_telling_thread(process).frames)
    if not place.function and not process.threads:
        place = StackPlace(Activity.UNKNOWN)

    # An actor whose coroutines wait has no frame of theirs; its title names the method.
    method = _running_method(process)
    if place.activity is Activity.IDLE and method:
        place = StackPlace(Activity.WAITS_INSIDE, method, "", "a coroutine")

    # What the kernel says of the process.
    if process.state in {"T", "t"}:
        place = msgspec.structs.replace(place, activity=Activity.STOPPED, waits_for="")
    elif process.state == "D":
        place = msgspec.structs.replace(place, activity=Activity.BLOCKED, waits_for="")
    why = process.source if place.activity is Activity.UNKNOWN else ""
    key = f"{place.activity.name} {place.function} {place.key} {why}"
    return msgspec.structs.replace(place, key=key)


_SERVING = ("/selectors.py", "/asyncio/base_events.py", "/uvloop/")


def busy_place(service: ProcessStack) -> StackPlace | None:
    """Return where a server handles a request; None if all its threads only wait for requests."""
    for thread in service.threads:
        at = place_index(thread.frames)
        called = thread.frames[:at]
        if at is not None and not any(part in frame.file for frame in called for part in _SERVING):
            return _place_in(thread.frames)
    return None


def _running_method(process: ProcessStack) -> str:
    title = process.role.removeprefix("ray::")
    is_method = process.role.startswith("ray::") and "." in title
    return title if is_method else ""


def _place_in(frames: Sequence[Frame]) -> StackPlace:
    """Return the place of a thread: its innermost frame that is no plumbing."""
    at = place_index(frames)
    if at is None or _only_starts(frames[: at + 1]):
        return StackPlace(Activity.IDLE)
    caller = frames[at]
    called = frames[:at]
    file = caller.file.rpartition("/")[2]

    # In a collective: the outermost function of torch.distributed names it. Two processes at
    # different lines are in different collectives.
    for frame in reversed(called):
        if _IN_TORCH in frame.file and _COLLECTIVE.fullmatch(_last_part(frame.function)):
            name = _last_part(frame.function)
            return StackPlace(Activity.WAITS_OUTSIDE, name, caller.place, "its group", caller.place)

    # For Ray, or for its own processes?
    function = caller.function
    if any(_package(frame.file) == "ray" and frame.function in _RAY_WAITS for frame in called):
        return StackPlace(Activity.WAITS_OUTSIDE, function, caller.place, "a result of Ray", file)

    # For work? An engine's loop is idle; any other consumer waits for whoever fills its queue.
    innermost = frames[: at + 1]
    if any(_ENGINES.get(_package(frame.file)) == _last_part(frame.function) for frame in innermost):
        return StackPlace(Activity.IDLE)
    if any(map(_is_queue, innermost)) and not any(_LOADER in frame.file for frame in called):
        return StackPlace(Activity.WAITS_OUTSIDE, function, caller.place, "a queue", file)
    for part, what in _INSIDE:
        if any(part in frame.file for frame in called):
            return StackPlace(Activity.WAITS_INSIDE, function, caller.place, what, file)
    return StackPlace(Activity.WORKS, function, caller.place, "", file)


def _is_queue(frame: Frame) -> bool:
    """Return whether a frame takes something from a queue, a pipe or a socket of zmq."""
    function = _last_part(frame.function)
    if _package(frame.file) == "vllm":  # its queue between processes
        return function in {"dequeue", "acquire_read"}
    return function in _TAKES and any(part in frame.file for part in _QUEUES)


def place_index(frames: Sequence[Frame]) -> int | None:
    """Return the index of the innermost frame that is no plumbing; None without one."""
    # The frames of a forked process go on with those of its parent.
    forked = next((n for n, frame in enumerate(frames) if _FORK in frame.file), len(frames))
    return next((n for n, frame in enumerate(frames[:forked]) if not _is_plumbing(frame)), None)


def _only_starts(frames: Sequence[Frame]) -> bool:
    """Return whether the last frame is a command that only starts a process of multiprocessing."""
    return frames[-1].file in _GIVEN and any(_MULTIPROCESSING in frame.file for frame in frames)


def _is_plumbing(frame: Frame) -> bool:
    return _is_plumbing_file(frame.file)


@lru_cache(maxsize=4096)
def _is_plumbing_file(file: str) -> bool:
    """Return whether frames of a file do not show what a job does: many have the same files."""
    if file.startswith("<") and file not in _GIVEN:
        return True
    if _STDLIB.search(file):
        return True
    package = _package(file)
    return package in _PLUMBING or package.startswith(("_pytest", "opentelemetry"))


def _package(file: str) -> str:
    named = _PACKAGE.search(file)
    return "" if named is None else named[1]


def _last_part(function: str) -> str:
    return function.rpartition(".")[2]


def _telling_thread(process: ProcessStack) -> ThreadStack:
    """Return the thread that runs the job: the main thread, or the one that runs an actor's method.

    An actor with several or with coroutines runs its methods in other threads, while its main
    thread is idle.
    """
    main = next((thread for thread in process.threads if thread.name == _MAIN), ThreadStack("", ()))
    if _place_in(main.frames).activity is not Activity.IDLE:
        return main
    working = [
        thread for thread in process.threads if _place_in(thread.frames).activity < Activity.IDLE
    ]
    for thread in working:
        if any(_package(frame.file) == "ray" for frame in thread.frames[1:]):
            return thread
    return (working or [main])[0]


def _other_places(process: ProcessStack) -> list[str]:
    """Return the functions of the job in which other threads of a process are."""
    telling = _telling_thread(process)
    places = []
    for thread in process.threads:
        place = _place_in(thread.frames)
        if thread is not telling and place.activity < Activity.UNKNOWN:
            places.append(f"`{place.function}` ({place.where})")
    return [*dict.fromkeys(places)]


# --- groups ---------------------------------------------------------------------------------------


class StackGroup(Value):
    """Processes in the same place."""

    place: StackPlace
    processes: tuple[ProcessStack, ...]


def group(stacks: Iterable[ProcessStack]) -> tuple[StackGroup, ...]:
    """Return processes by place, the most suspicious and smallest group first."""
    placed = [(process, place_of(process)) for process in stacks]

    # Are all in one function? Then the lines in it show who is elsewhere than most.
    busy = [place for _, place in placed if place.activity is not Activity.IDLE]
    lines = Counter(place.where for place in busy)
    is_one_function = len({place.key for place in busy}) == 1
    has_most = bool(lines) and 2 * lines.most_common(1)[0][1] > len(busy)
    by_key: dict[str, list[ProcessStack]] = defaultdict(list)
    places: dict[str, list[StackPlace]] = defaultdict(list)
    for process, place in placed:
        if is_one_function and has_most and place.activity is not Activity.IDLE:
            place = msgspec.structs.replace(place, key=f"{place.key} {place.where}")  # noqa: PLW2901 - with its line
        by_key[place.key].append(process)
        places[place.key].append(place)
    groups = []
    for key, processes in by_key.items():
        ordered = sorted(
            processes, key=lambda process: (process.rank or 0, process.node, process.pid)
        )
        place = Counter(places[key]).most_common(1)[0][0]
        groups.append(StackGroup(place, tuple(ordered)))

    def suspicion(group: StackGroup) -> tuple[int, int, str]:
        return group.place.activity, len(group.processes), group.place.key

    return tuple(sorted(groups, key=suspicion))


class Suspect(Value):
    """A process of a group that the others may wait for."""

    node: str
    process: str  # its role and pid
    frames_key: str  # its frames in functions of the job; '' if its stack could not be read
    cpu_seconds: float  # so far


class Examination(Value):
    """What one look at all nodes found."""

    at: float  # on the run's clock
    groups: tuple[StackGroup, ...]
    suspects: tuple[Suspect, ...]
    sentence: str
    evidence: tuple[str, ...] = ()  # further sentences: collectives, services, GPUs, kernel

    @property
    def cause_key(self) -> str:
        """Return the functions of the suspects with their files: equal for the same cause.

        It has no node, process, line or time, which another attempt at the job changes.
        """
        places = [place_of(process) for process in _suspicious(self.groups)]
        keys = {f"{place.function} {place.where.rpartition(':')[0]}".strip() for place in places}
        return ", ".join(sorted(keys))

    @property
    def suspected_nodes(self) -> tuple[str, ...]:
        """Return the nodes of the suspects; () where most nodes have one: none stands out."""
        examined = {process.node for group in self.groups for process in group.processes}
        suspected = dict.fromkeys(process.node for process in _all_suspicious(self.groups))
        return () if 2 * len(suspected) > len(examined) else (*suspected,)[:_MOST_SUSPECTS]


_MOST_SUSPECTS = 16
_MOST_KEPT = 16  # frames of a suspect, the innermost ones
_IDLE_CORES = 0.05  # an idle process of Ray uses less


def examination(
    at: float,
    stacks: Iterable[ProcessStack],
    since: str = "",
    evidence: Sequence[str] = (),
) -> Examination:
    """Return what the stacks of all nodes show; `since` is the time of day of the last progress."""
    groups = group(stacks)
    suspects = []
    for process in _suspicious(groups):
        frames = [frame for frame in process.frames if not _is_plumbing(frame)][:_MOST_KEPT]
        key = " ".join(f"{frame.function}:{frame.line}" for frame in frames)
        name = f"{process.role} (pid {process.pid})"
        suspects.append(Suspect(process.node, name, key, process.cpu_seconds))
    return Examination(at, groups, tuple(suspects), sentence(groups, since), tuple(evidence))


def _suspicious(groups: Sequence[StackGroup]) -> tuple[ProcessStack, ...]:
    """Return the suspicious processes, only the first ones of very many."""
    return tuple(_all_suspicious(groups)[:_MOST_SUSPECTS])


def _all_suspicious(groups: Sequence[StackGroup]) -> list[ProcessStack]:
    """Return the processes of the first groups that are equally suspicious."""
    found: list[ProcessStack] = []
    for group in groups:
        if group.place.activity is Activity.IDLE:
            break
        first = groups[0]
        is_equal = group.place.activity is first.place.activity
        if is_equal and len(group.processes) == len(first.processes):
            found += group.processes
    return found


def same_suspects(first: Examination, second: Examination) -> bool:
    """Return whether two examinations have the same suspects, which did nothing in between.

    Each is in the same frames, or used no CPU time.
    """
    before = {(suspect.node, suspect.process): suspect for suspect in first.suspects}
    after = {(suspect.node, suspect.process): suspect for suspect in second.suspects}
    if not before or before.keys() != after.keys():
        return False
    idle = _IDLE_CORES * max(0.0, second.at - first.at)
    for key, suspect in before.items():
        has_same_frames = suspect.frames_key != "" and suspect.frames_key == after[key].frames_key
        if not has_same_frames and after[key].cpu_seconds - suspect.cpu_seconds > idle:
            return False
    return True


# --- the sentence ---------------------------------------------------------------------------------

_MOST_WAITING = 2  # groups that wait, in the sentence
_MOST_NAMED = 3  # suspicious groups, and processes of one of them


def sentence(groups: Sequence[StackGroup], since: str = "") -> str:
    """Return where the job is, in one sentence: who waits, then whom they wait for."""
    busy = [group for group in groups if group.place.activity is not Activity.IDLE]
    if not busy:
        count = sum(len(group.processes) for group in groups)
        if not count:
            return "no process of the job was found"
        idle = f"all processes of the job ({count}) wait for work: no task is running"
        return f"{idle}; look at the driver and at unplaced actors"

    # Which groups are suspicious, and which only wait?
    suspicious = _suspicious(groups)
    suspects = [group for group in busy if group.processes[0] in suspicious]
    waiting = sorted(
        (group for group in busy if group not in suspects), key=lambda group: -len(group.processes)
    )
    named = [_group_text(group, busy) for group in waiting[:_MOST_WAITING]]
    named += [_group_text(group, busy) for group in suspects[:_MOST_NAMED]]
    more = len(busy) - len(named)
    text = "; ".join(named)
    if since:
        text += f" since {since}"
    if more > 0:
        text += f" (and {more} more group{'s' if more > 1 else ''})"
    missing = missing_ranks(groups)
    return f"{text}; {missing}" if missing else text


def missing_ranks(groups: Sequence[StackGroup]) -> str:
    """Return a clause that names ranks without a process, or ''."""
    processes = [process for group in groups for process in group.processes]
    ranks = {process.rank for process in processes if process.rank is not None}
    world = max((process.world or 0 for process in processes), default=0)
    missing = [rank for rank in range(min(world, 1 << 16)) if rank not in ranks]
    if not ranks or not missing:
        return ""
    numbers = [str(rank) for rank in missing[:_MOST_NAMED]]
    if len(missing) > _MOST_NAMED:
        numbers.append(f"{len(missing) - _MOST_NAMED} more")
    if len(missing) == 1:
        return f"rank {numbers[0]} of {world} has no process"
    return f"ranks {listed(numbers)} of {world} have no process"


def _group_text(group: StackGroup, groups: Sequence[StackGroup]) -> str:
    """Return who is in a group, and where."""
    count = len(group.processes)
    does = _activity_text(group, is_one=count == 1)

    # Too many to be named?
    if count > _MOST_NAMED:
        everyone = [process for other in groups for process in other.processes]
        ranks = sum(process.rank is not None for process in everyone)
        if all(process.rank is not None for process in group.processes):
            return f"{count} of {ranks} ranks {does}"
        return f"{count} of {len(everyone)} processes {does}"

    others = _other_places(group.processes[0]) if count == 1 else []
    also = f" (other threads: {listed(others[:_MOST_NAMED])})" if others else ""
    return f"{listed(_name(process, groups) for process in group.processes)} {does}{also}"


def _activity_text(group: StackGroup, *, is_one: bool) -> str:
    """Return what a group does, as a predicate."""
    place = group.place
    at = f" ({place.where})" if place.where else ""
    function = f"`{place.function}`{at}"
    waits = "waits" if is_one else "wait"
    are = "is" if is_one else "are"
    inside = f" in {function}" if place.function else ""
    if place.activity is Activity.STOPPED:
        return f"{are} stopped by a signal{inside}"
    if place.activity is Activity.BLOCKED:
        channel = group.processes[0].wait_channel
        kernel = f" ({channel})" if channel else ""
        return f"{are} blocked in the kernel{kernel}{inside}"
    if place.activity is Activity.UNKNOWN:
        return f"{'has' if is_one else 'have'} no readable stack ({group.processes[0].source})"
    if place.activity is Activity.WORKS:
        return f"{are} in {function}"
    if place.waits_for == "its group":
        return f"{waits} in {function}"
    return f"{waits} for {place.waits_for} in {function}"


def _name(process: ProcessStack, groups: Sequence[StackGroup]) -> str:
    """Return role and node of a process, with its pid where several have that role."""
    same = [
        other
        for group in groups
        for other in group.processes
        if (other.node, other.role) == (process.node, process.role)
    ]
    pid = f" (pid {process.pid})" if len(same) > 1 else ""
    role = process.role
    if process.rank is not None and role != f"rank {process.rank}":
        role = f"rank {process.rank} ({role})"
    return f"{role} on {process.node}{pid}"
