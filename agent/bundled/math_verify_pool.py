"""Run math-verify in processes that can be killed.

sympy can take minutes on a generated line, and only a process can be ended reliably. Each pair has
a limit of CPU time, so that its verdict does not depend on the load; a pair above the limit is
undecided. If the load or a crash prevents a verdict, `NoVerdictError` is raised and nothing is
remembered.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    Pair = tuple[str, str]

_PROCESSES = 2
_CPU_SECONDS = 3.0  # CPU time for one pair
_REPLY_SECONDS = 12.0  # for one reply, then the process is replaced: four times its CPU time
_START_SECONDS = 60.0  # time for the imports, which may come from a slow volume
_IMPORT_CPU_SECONDS = 120.0
_MOST_REMEMBERED = 50_000
_MEMORY = 2 << 30
_LAST_PAIRS_SECONDS = 1.0
_PROGRAM = str(Path(__file__).resolve())
_CRASHES = {signal.SIGSEGV, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE}
"""Signals that a broken installation raises; other signals are sent by other processes."""


class Verdict(Enum):
    """math-verify's result for an answer and its gold; undecided if it used too much CPU time."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    UNDECIDED = "undecided"


class NoVerdictError(Exception):
    """No verdict because of load, or a crashed or blocked process: the client retries."""


class _ProcessLostError(Exception):
    """The process exited."""


class _UnusableError(Exception):
    """math-verify cannot be imported."""


def is_installed() -> bool:
    """Return whether math-verify is installed."""
    return importlib.util.find_spec("math_verify") is not None


class MathVerifyPool:
    """A few processes with math-verify, shared by all requests."""

    def __init__(self) -> None:
        self.installed = is_installed()
        self._usable = self.installed
        self._processes = [_MathVerifyProcess() for _ in range(_PROCESSES)]
        self._idle: asyncio.Queue[_MathVerifyProcess] = asyncio.Queue()
        for process in self._processes:
            self._idle.put_nowait(process)
        self._verdicts: dict[Pair, asyncio.Task[Verdict]] = {}  # oldest first, finished ones too
        self._logged: set[str] = set()
        self._closing = False

    async def decide(self, pairs: Iterable[Pair], seconds: float) -> dict[Pair, Verdict]:
        """Return a verdict for each (answer, gold), or raise NoVerdictError at the deadline.

        Verdicts up to then are remembered, so that a retry has less to do.
        """
        wanted = dict.fromkeys(pairs)
        found: dict[Pair, Verdict] = {}
        rest = iter(wanted)

        async def work() -> None:
            # one at a time, so that requests take turns: the queue of idle processes is fair
            for pair in rest:
                # shielded: a request that times out leaves its verdict for the retry
                found[pair] = await asyncio.shield(self._task(pair))

        workers = [asyncio.create_task(work()) for _ in self._processes]
        try:
            await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in workers:
                worker.cancel()
            ends = await asyncio.gather(*workers, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        if len(found) < len(wanted):
            raise NoVerdictError(f"{len(found)} of {len(wanted)} done within {seconds:.0f} s")
        return found

    async def close(self) -> None:
        """Wait briefly for the running pairs, then end the processes."""
        self._closing = True
        running = [task for task in self._verdicts.values() if not task.done()]
        if running:
            await asyncio.wait(running, timeout=_LAST_PAIRS_SECONDS)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for process in self._processes:
            await process.close()

    def _task(self, pair: Pair) -> asyncio.Task[Verdict]:
        """Return the task of a pair, which all requests with this pair share."""

        def forget_failure(task: asyncio.Task[Verdict]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._verdicts.pop(pair, None)

        if pair not in self._verdicts:
            if len(self._verdicts) >= _MOST_REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[pair] = asyncio.create_task(self._verdict(pair))
            self._verdicts[pair].add_done_callback(forget_failure)
        return self._verdicts[pair]

    async def _verdict(self, pair: Pair) -> Verdict:
        process = await self._idle.get()
        try:
            if self._closing:
                raise NoVerdictError("the server is stopping")
            if not self._usable:
                return Verdict.UNEQUAL
            try:
                verdict = await process.verdict(pair)
            except _ProcessLostError:  # it may have been killed for reasons outside the pair
                verdict = await process.verdict(pair)
        except _UnusableError as error:
            self._usable = False
            self._log_once(f"math-verify cannot be used, expressions are compared as text: {error}")
            return Verdict.UNEQUAL
        except _ProcessLostError as error:
            self._log_once(f"math-verify returned no verdict, clients retry: {error}")
            raise NoVerdictError(f"math-verify's process is lost: {error}") from None
        else:
            if verdict is Verdict.UNDECIDED:
                used = f"math-verify used {_CPU_SECONDS:g} s of CPU on one pair"
                self._log_once(f"{used}: such a pair scores 0 and is marked as undecided")
            return verdict
        finally:
            self._idle.put_nowait(process)

    def _log_once(self, line: str) -> None:
        kind = line.partition(":")[0]
        if kind not in self._logged:
            self._logged.add(kind)
            print(f"reward server: {line}"[:500], file=sys.stderr, flush=True)


class _MathVerifyProcess:
    """One process with math-verify, started on demand and restarted after a crash."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._was_ready = False

    async def verdict(self, pair: Pair) -> Verdict:
        """Request one verdict; an interruption ends the process too."""
        try:
            child = self._child or await self._start()
            assert child.stdin is not None  # noqa: S101 - a pipe
            child.stdin.write(json.dumps(pair).encode() + b"\n")
            await child.stdin.drain()
            reply = await _reply_or_code(child, _REPLY_SECONDS)
        except BaseException as problem:
            await self.close()  # a late reply would be taken for the next pair's
            if isinstance(problem, (OSError, ValueError)):
                raise _ProcessLostError(str(problem)) from None
            raise
        if not isinstance(reply, int):
            return Verdict.EQUAL if reply.get("equal") is True else Verdict.UNEQUAL
        await self.close()
        if reply == -signal.SIGPROF:
            return Verdict.UNDECIDED
        raise _ProcessLostError(f"it exited ({reply})")

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
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # sympy's order of steps depends on hashes, and with it which pairs reach the CPU limit
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        reply = await _reply_or_code(child, _START_SECONDS)
        if isinstance(reply, int):
            if not self._was_ready and (reply >= 0 or -reply in {*_CRASHES, signal.SIGPROF}):
                raise _UnusableError(f"its import ended the process ({reply})")
            raise _ProcessLostError(f"it exited ({reply}) before it was ready")
        if "error" in reply:
            raise _UnusableError(reply["error"])
        self._was_ready = True
        return child


async def _reply_or_code(
    child: asyncio.subprocess.Process, seconds: float
) -> dict[str, object] | int:
    """Return a reply of the process, or its exit code once it has closed its stdout."""
    assert child.stdout is not None  # noqa: S101 - a pipe
    try:
        line = await asyncio.wait_for(child.stdout.readline(), seconds)
    except asyncio.TimeoutError:  # another class until Python 3.11
        raise NoVerdictError(f"math-verify sent nothing for {seconds:g} s") from None
    if line:
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise _ProcessLostError("its reply is malformed")
        return reply
    try:
        return await asyncio.wait_for(child.wait(), 5)
    except asyncio.TimeoutError:  # as above
        raise _ProcessLostError("it closed its output and does not exit") from None


def _serve() -> None:
    """Compare pairs line by line until stdin ends; only this runs in the child."""
    # Our own modules beside this file must not shadow what sympy imports.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # antlr prints version warnings to stdout
    # SIGPROF ends the process wherever it is, in C too: no `except` of a library can catch it.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # math-verify's own limits (0.3 to 0.9) are of wall time, and a timeout counts as unequal there.
    signal.alarm = lambda _seconds: 0
    signal.setitimer(signal.ITIMER_PROF, _IMPORT_CPU_SECONDS)
    try:
        from math_verify import parse, verify  # noqa: PLC0415 # seconds of import, in the child only
    except BaseException as problem:  # noqa: BLE001 # whatever a broken installation raises
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"[:500]}), file=replies)
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    with contextlib.suppress(ImportError, AttributeError):  # another math-verify: slower
        _predict_by_sll()
    # A tower of powers raises MemoryError instead of filling the memory.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + _MEMORY
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        equal = False
        # whatever sympy and antlr raise about a malformed pair: it is not equal
        with contextlib.suppress(Exception):
            answer, gold = (parse(f"\\boxed{{{text}}}") for text in json.loads(line))
            equal = bool(verify(gold, answer))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": equal}), file=replies)


def _predict_by_sll() -> None:
    """Let antlr parse by its SLL prediction, and by the slower LL only where SLL fails.

    A parse that SLL completes is the one that LL makes, as antlr documents. In Python LL takes 25
    to 60 ms of CPU for each set of four elements, SLL 2 to 4 ms.
    """
    from antlr4 import PredictionMode  # noqa: PLC0415 # as above
    from latex2sympy2_extended.antlr_parser import PSParser  # noqa: PLC0415 # as above

    parse = PSParser.math

    def math(parser: Any) -> object:  # noqa: ANN401 # antlr has no types
        prediction = parser._interp  # noqa: SLF001 # antlr's setting has no other name in Python
        prediction.predictionMode = PredictionMode.SLL
        try:
            return parse(parser)
        except Exception:  # noqa: BLE001 # math-verify's listener raises plain exceptions
            parser.reset()
            prediction.predictionMode = PredictionMode.LL
            return parse(parser)

    PSParser.math = math


if __name__ == "__main__":
    _serve()
