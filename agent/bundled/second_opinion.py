"""Ask math-verify, if installed, about answers that our own comparison finds unequal.

It runs in separate processes: sympy can take minutes on a generated line, and only a process can be
ended reliably. Each pair has a limit of CPU time, so that the verdict does not depend on the load;
a pair above it is undecided. If the load or a crash prevents a verdict, `NoVerdictError` is raised
and nothing is cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import signal
import sys
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Pair = tuple[str, str]

_PROCESSES = 2
_IMPORT_CPU_SECONDS = 120.0
_MOST_REMEMBERED = 50_000
_MEMORY = 2 << 30
_LOOK_EVERY = 0.5
_LAST_PAIRS_SECONDS = 1.0
_SCRIPT = str(Path(__file__).resolve())
_CRASHES = {signal.SIGSEGV, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE}
"""Signals that a broken installation raises; other signals come from outside."""


class Opinion(Enum):
    """math-verify's result for an answer and its gold; undecided if it used too much CPU time."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    UNDECIDED = "undecided"


class NoVerdictError(Exception):
    """No verdict due to load or crashed processes: ask again later."""


class _DeadError(Exception):
    """The process exited, or is blocked."""


class _OverLimitError(Exception):
    """The pair used up its CPU time."""


class _BrokenError(Exception):
    """math-verify cannot be imported."""


class SecondOpinion:
    """math-verify in a few processes that all requests share."""

    def __init__(self, cpu_seconds: float = 3.0, blocked_seconds: float = 5.0) -> None:
        self.installed = importlib.util.find_spec("math_verify") is not None
        self._broken = not self.installed
        self._scorers = [_Scorer(cpu_seconds, blocked_seconds) for _ in range(_PROCESSES)]
        self._idle: asyncio.Queue[_Scorer] = asyncio.Queue()
        for scorer in self._scorers:
            self._idle.put_nowait(scorer)
        self._known: dict[Pair, Opinion] = {}
        self._running: dict[Pair, asyncio.Task[Opinion]] = {}
        self._told: set[str] = set()
        self._closing = False

    async def decide(self, pairs: Iterable[Pair], seconds: float) -> dict[Pair, Opinion]:
        """Return a verdict for each (answer, gold), or raise NoVerdictError at the deadline.

        What was decided until then is remembered, so that another try has less to do.
        """
        wanted = dict.fromkeys(pairs)
        found = {pair: self._known[pair] for pair in wanted if pair in self._known}
        rest = iter([pair for pair in wanted if pair not in found])

        async def work() -> None:
            # one at a time, so that requests take turns: the queue of idle processes is fair
            for pair in rest:
                found[pair] = await self._decide(pair)

        tasks = [asyncio.create_task(work()) for _ in self._scorers]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        if len(found) < len(wanted):
            raise NoVerdictError(f"{len(found)} of {len(wanted)} done within {seconds:.0f} s")
        return found

    async def close(self) -> None:
        """Wait briefly for the current pairs, then end the processes."""
        self._closing = True
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=_LAST_PAIRS_SECONDS)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for scorer in self._scorers:
            await scorer.close()

    async def _decide(self, pair: Pair) -> Opinion:
        if pair not in self._running:
            scorer = await self._idle.get()
            if pair in self._running:  # another request was quicker
                self._idle.put_nowait(scorer)
            else:
                # It ends on its own: a request that gives up leaves its verdict for the next try.
                task = asyncio.create_task(self._use(scorer, pair))
                self._running[pair] = task
                task.add_done_callback(partial(self._done, pair))
        return await asyncio.shield(self._running[pair])

    def _done(self, pair: Pair, task: asyncio.Task[Opinion]) -> None:
        del self._running[pair]
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it

    async def _use(self, scorer: _Scorer, pair: Pair) -> Opinion:
        try:
            if self._closing:
                raise NoVerdictError("the server is stopping")
            if pair not in self._known and not self._broken:
                verdict = await self._ask(scorer, pair)
                if not self._broken:
                    if len(self._known) >= _MOST_REMEMBERED:
                        del self._known[next(iter(self._known))]
                    self._known[pair] = verdict
            return self._known.get(pair, Opinion.UNEQUAL)
        finally:
            self._idle.put_nowait(scorer)

    async def _ask(self, scorer: _Scorer, pair: Pair) -> Opinion:
        try:
            try:
                return await scorer.verdict(pair)
            except _DeadError:  # one that somebody killed says nothing of the pair
                return await scorer.verdict(pair)
        except _OverLimitError as over:
            self._say_once(f"{over}: such a pair earns 0 and is counted as undecided")
            return Opinion.UNDECIDED
        except _BrokenError as broken:
            self._broken = True
            self._say_once(f"math-verify gives no opinion, we go on without it: {broken}")
            return Opinion.UNEQUAL
        except _DeadError as dead:
            self._say_once(f"math-verify gave no verdict, clients are told to retry: {dead}")
            raise NoVerdictError(f"math-verify's process is no help, {dead}") from None

    def _say_once(self, note: str) -> None:
        kind = note.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            print(f"reward server: {note}"[:500], file=sys.stderr, flush=True)


class _Scorer:
    """One process with math-verify, started on demand and restarted after a crash."""

    def __init__(self, cpu_seconds: float, blocked_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._blocked_seconds = blocked_seconds
        self._child: asyncio.subprocess.Process | None = None
        self._ever_ready = False

    async def verdict(self, pair: Pair) -> Opinion:
        """Request one verdict; an interruption ends the process too."""
        try:
            reply = await self._exchange(pair)
        except BaseException as problem:
            await self.close()  # a late reply would be taken for the next one's
            if isinstance(problem, (OSError, ValueError)):
                raise _DeadError(str(problem)) from None
            raise
        return Opinion.EQUAL if reply.get("equal") is True else Opinion.UNEQUAL

    async def _exchange(self, pair: Pair) -> dict[str, object]:
        child = self._child or await self._start()
        if child.stdin is None:
            raise _DeadError("no pipe leads to it")
        child.stdin.write(json.dumps(pair).encode() + b"\n")
        await child.stdin.drain()
        reply = await self._line(child, self._blocked_seconds)
        if reply is not None:
            return reply
        code = await _end_of(child)
        if code == -signal.SIGPROF:
            limit = f"{self._cpu_seconds:g} s of CPU"
            raise _OverLimitError(f"math-verify used {limit} on one pair")
        raise _DeadError(f"it ended ({code})")

    async def close(self) -> None:
        """End the process and wait for its exit."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        child = self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            _SCRIPT,
            str(self._cpu_seconds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # sympy's order of steps, and with it what a step limit meets, follows the hashes
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        # imports may come from a slow volume
        reply = await self._line(child, 6 * self._blocked_seconds)
        if reply is None:
            code = await _end_of(child)
            if not self._ever_ready and (code >= 0 or -code in {*_CRASHES, signal.SIGPROF}):
                raise _BrokenError(f"its import ended the process ({code})")
            raise _DeadError(f"it ended ({code}) before it was ready")
        if "error" in reply:
            raise _BrokenError(reply["error"])
        self._ever_ready = True
        return child

    async def _line(
        self, child: asyncio.subprocess.Process, blocked_seconds: float
    ) -> dict[str, object] | None:
        """Read a reply while the process runs or waits for a CPU; None at its exit."""
        if child.stdout is None:
            raise _DeadError("no pipe comes from it")
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(child.stdout.readline())
        try:
            spent, since = -1, loop.time()
            while not (await asyncio.wait({reading}, timeout=_LOOK_EVERY))[0]:
                runs, now = _spent(child.pid)
                if runs or now != spent:
                    spent, since = now, loop.time()
                elif loop.time() - since > blocked_seconds:
                    raise _DeadError(f"it was blocked for {blocked_seconds:g} s")
            line = reading.result()
        finally:
            reading.cancel()
        if not line:
            return None
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise _DeadError("it answered with something else")
        return reply


async def _end_of(child: asyncio.subprocess.Process) -> int:
    """Return the exit code of a process that has closed its stdout."""
    try:
        return await asyncio.wait_for(child.wait(), 5)
    except asyncio.TimeoutError:  # another class until Python 3.11
        raise _DeadError("it speaks no more") from None


def _spent(pid: int) -> tuple[bool, int]:
    """Return whether a process runs or is runnable, and its CPU ticks."""
    try:
        # its name, in brackets, may hold anything
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it just exited: the pipe shows its end
        return False, -1
    return fields[0] == "R", int(fields[11]) + int(fields[12])


def _serve(cpu_seconds: float) -> None:
    """Compare pairs line by line until stdin ends; only this runs in the child."""
    # Our own modules beside this file must not shadow what sympy imports.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # antlr prints version warnings to stdout
    # SIGPROF ends the process wherever it is, in C too: no `except` of a library can hold it.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # math-verify's own limits (0.3 to 0.9) are of wall time, and it takes a timeout for unequal.
    signal.alarm = _no_alarm
    signal.setitimer(signal.ITIMER_PROF, _IMPORT_CPU_SECONDS)
    try:
        from math_verify import parse, verify  # noqa: PLC0415 # seconds of import, in the child only
    except BaseException as problem:  # noqa: BLE001 # whatever a broken installation raises
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"[:500]}), file=replies)
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    _bound_memory()
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        equal = False
        # whatever sympy and antlr raise about a malformed pair: it is not equal
        with contextlib.suppress(Exception):
            answer, gold = json.loads(line)
            equal = bool(verify(parse(_boxed(gold)), parse(_boxed(answer))))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": equal}), file=replies)


def _no_alarm(_seconds: int) -> int:
    """Replace signal.alarm."""
    return 0


def _bound_memory() -> None:
    """Limit memory: a tower of powers raises MemoryError instead of filling it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + _MEMORY
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
