"""Request dumps of torch's flight recorder from the ranks on this node, and read them.

A watchdog of NCCL's reads a byte from a rank's pipe, and writes the dump some seconds later. It
truncates the file first, so the file is read once it no longer grows.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.base import times
from agent.base.text import error_text
from agent.diagnosis.flight_recorder import LARGEST_DUMP, DumpError, dump_files, read_dump
from agent.processes.process import known
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import result_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.diagnosis.flight_recorder import GroupProgress
    from agent.processes.driver import JobProcess

_RECORDER_POLL = 0.5  # A dump that has not grown for so long is whole.
_MOST_RANKS = 16


class RecorderFindings(NamedTuple):
    """What the flight recorders of a node's ranks show, and why some show nothing."""

    progress: tuple[GroupProgress, ...] = ()
    notes: tuple[str, ...] = ()


async def read_recorders(
    processes: Sequence[JobProcess], folder: Path, limit: float = times.RECORDER_DUMP
) -> RecorderFindings:
    """Request and read the dumps of all ranks here; keep copies in a folder.

    A disk that does not answer costs its rank the dump, with a note, and holds nothing else.
    """
    progress: list[GroupProgress] = []
    notes: list[str] = []

    async def read(process: JobProcess, rank: int) -> None:
        try:
            files = await result_in_thread(partial(_files_of, process, rank), times.STALLED_DISK)
            if files is None:
                return
            data = await _request(*files, limit)
            parse = partial(read_dump, data, rank)
            progress.extend(await result_in_thread(parse, times.NODE_EXAMINED))
        except (DumpError, OSError, RecursionError) as error:
            why = error_text(error) if isinstance(error, OSError) else str(error)
            notes.append(f"no flight recorder dump of rank {rank}: {why}")
            return
        copy = folder / f"flight-recorder-{rank}.dump"
        with suppress(OSError):  # an extra for a person
            await result_in_thread(partial(copy.write_bytes, data), times.STALLED_DISK)

    ranks = [process for process in processes if process.rank is not None and not process.is_child]
    async with anyio.create_task_group() as tasks:
        for process in ranks[:_MOST_RANKS]:
            tasks.start_soon(read, process, process.rank or 0)
    return RecorderFindings(tuple(progress), tuple(notes))


def has_pipes(folder: Path) -> bool:
    """Return whether a pipe can be made in a folder: some network disks have none."""
    path = folder / f".pipe-{os.getpid()}"
    try:
        os.mkfifo(path)
        path.unlink()
    except OSError:
        return False
    return True


def _files_of(process: JobProcess, rank: int) -> tuple[Path, Path] | None:
    """Return a rank's pipe and its dump; None without a pipe, which only NCCL's groups make."""
    files = dump_files(known(process.process.environ, dict[str, str]()), rank)
    if files is None:
        return None
    pipe = Path(files[0])
    try:
        is_pipe = stat.S_ISFIFO(pipe.stat().st_mode)
    except OSError:
        return None
    return (pipe, Path(files[1])) if is_pipe else None


async def _request(pipe: Path, dump: Path, limit: float) -> bytes:
    """Request a dump and return it once it no longer grows; raise DumpError at the limit."""
    look = partial(_size_and_time, dump)
    before = await result_in_thread(look, times.STALLED_DISK)
    await result_in_thread(partial(_write_byte, pipe), times.STALLED_DISK)
    last = before
    changed_at = anyio.current_time()

    async def is_whole() -> bytes | NotYet:
        nonlocal last, changed_at
        now = await result_in_thread(look, times.STALLED_DISK)
        if now != last:
            last = now
            changed_at = anyio.current_time()
        is_steady = anyio.current_time() - changed_at >= _RECORDER_POLL
        if now is None or now == before or not now[0] or not is_steady:
            return NotYet()
        if now[0] > LARGEST_DUMP:
            raise DumpError(f"it has {now[0]} bytes")
        return await result_in_thread(dump.read_bytes, limit)

    try:
        return await until(is_whole, limit)
    except TimedOutError:
        raise DumpError(f"none was written within {limit:g} s") from None


def _write_byte(pipe: Path) -> None:
    """Write a byte into a pipe; without a reader this fails, and does not wait."""
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(descriptor, b"1")
    finally:
        os.close(descriptor)


def _size_and_time(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    return None
