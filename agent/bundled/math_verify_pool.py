"""Run math-verify in processes that can be killed.

sympy can take minutes on a generated line, and only a process can be ended reliably. Each pair has
a limit of CPU time, so that its verdict does not depend on the load; a pair above the limit counts
as unequal. If the load or a crash prevents a verdict, `NoVerdictError` is raised and nothing is
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
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.bundled.turns import QueuedRequest, Turns

    Pair = tuple[str | None, str | None]

_PROCESSES = 2
_CPU_SECONDS = 3.0  # CPU time for one pair
_REPLY_SECONDS = 12.0  # for one reply, then the process is replaced: four times its CPU time
_START_SECONDS = 60.0  # time for the imports, which may come from a slow volume
_MOST_REMEMBERED = 50_000
_MEMORY = 2 << 30
_PROGRAM = str(Path(__file__).resolve())


class NoVerdictError(Exception):
    """No verdict because of load, or a crashed or blocked process: the client retries."""


class _ProcessLostError(NoVerdictError):
    """The process exited."""

    def __init__(self, code: int) -> None:
        super().__init__(f"math-verify's process is lost: it exited ({code})")
        self.code = code


class _UnusableError(Exception):
    """math-verify cannot be imported."""


def is_installed() -> bool:
    """Return whether math-verify is installed."""
    return importlib.util.find_spec("math_verify") is not None


class MathVerifyPool:
    """A few processes with math-verify, shared by all requests, which take turns."""

    def __init__(self, turns: Turns) -> None:
        self._usable = is_installed()
        self._processes = [_MathVerifyProcess() for _ in range(_PROCESSES)]
        self._idle = [*self._processes]
        self._turns = turns
        self._granted: dict[int, asyncio.Future[_MathVerifyProcess]] = {}
        self._verdicts: dict[Pair, bool] = {}  # oldest first
        self._steps: set[asyncio.Task[bool]] = set()
        self._closing = False

    async def decide(self, pairs: Iterable[Pair], client: str = "") -> dict[Pair, bool]:
        """Return for each (answer, gold) whether they are equal, or raise NoVerdictError.

        Verdicts up to then are remembered, so that a retry has less to do. Clients and requests
        take turns by the time that they have used.
        """
        verdicts: dict[Pair, bool] = {}
        rest = iter(dict.fromkeys(pairs))
        request = self._turns.enter(client)

        async def work() -> None:
            for pair in rest:
                verdicts[pair] = await self._verdict(pair, request)

        workers = [asyncio.create_task(work()) for _ in self._processes]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._turns.leave(request)
        return verdicts

    async def close(self) -> None:
        """End the processes."""
        self._closing = True
        for process in self._processes:
            await process.close()

    async def _verdict(self, pair: Pair, request: QueuedRequest) -> bool:
        if pair in self._verdicts:
            return self._verdicts[pair]
        process = await self._wait_for_turn(request)

        # A step goes on without its request, which may be canceled: a new process costs seconds
        # of imports, and the retry finds the verdict.
        step = asyncio.create_task(self._step(process, pair, request))
        self._steps.add(step)
        step.add_done_callback(self._end_step)
        return await asyncio.shield(step)

    async def _step(self, process: _MathVerifyProcess, pair: Pair, request: QueuedRequest) -> bool:
        """Return one verdict; then the process is the next request's."""
        assumed = self._turns.begin(request)
        began = time.monotonic()
        try:
            # it may have been killed for reasons outside the pair
            with contextlib.suppress(_ProcessLostError):
                return await self._verdict_of(process, pair)
            return await self._verdict_of(process, pair)
        finally:
            self._turns.end(request, assumed, time.monotonic() - began)
            self._pass_on(process)

    def _end_step(self, step: asyncio.Task[bool]) -> None:
        self._steps.discard(step)
        if not step.cancelled():
            step.exception()  # its request may be gone: asyncio logs an error that nobody read

    async def _wait_for_turn(self, request: QueuedRequest) -> _MathVerifyProcess:
        """Return an idle process once it is this request's turn."""
        if self._idle:
            return self._idle.pop()
        number = self._turns.wait(request)
        turn: asyncio.Future[_MathVerifyProcess] = asyncio.get_running_loop().create_future()
        self._granted[number] = turn
        try:
            return await turn
        except asyncio.CancelledError:
            self._turns.cancel(number)
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            raise
        finally:
            del self._granted[number]

    def _pass_on(self, process: _MathVerifyProcess) -> None:
        """Give an idle process to the next request, if one waits."""
        number = self._turns.next()
        while number is not None and self._granted[number].done():  # canceled just now
            number = self._turns.next()
        if number is None:
            self._idle.append(process)
        else:
            self._granted[number].set_result(process)

    async def _verdict_of(self, process: _MathVerifyProcess, pair: Pair) -> bool:
        if self._closing:
            raise NoVerdictError("the server is stopping")
        if not self._usable:
            return False
        try:
            is_equal = await process.verdict(pair)
        except _UnusableError as error:
            self._usable = False
            say(f"math-verify cannot be used, expressions are compared as text: {error}")
            return False
        if len(self._verdicts) >= _MOST_REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[pair] = is_equal
        return is_equal


def say(line: str) -> None:
    """Write a line to the server's log."""
    print(f"reward server: {line}"[:500], file=sys.stderr, flush=True)


class _MathVerifyProcess:
    """One process with math-verify, started on demand and restarted after a crash."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._was_ready = False

    async def verdict(self, pair: Pair) -> bool:
        """Request one verdict; an interruption ends the process too."""
        try:
            child = self._child or await self._start()
            assert child.stdin is not None  # noqa: S101 - a pipe
            child.stdin.write(json.dumps(pair).encode() + b"\n")
            return (await _reply(child, _REPLY_SECONDS))["equal"] is True
        except BaseException as problem:
            await self.close()  # a late reply would be taken for the next pair's
            if not isinstance(problem, _ProcessLostError) or problem.code != -signal.SIGPROF:
                raise
            say(f"math-verify used {_CPU_SECONDS:g} s of CPU on a pair, which scores 0: {pair}")
            return False

    async def close(self) -> None:
        """End the process and wait for its exit."""
        child = self._child
        self._child = None
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
        try:
            reply = await _reply(child, _START_SECONDS)
        except _ProcessLostError as lost:
            # SIGKILL is sent by other processes, such as the kernel's OOM killer
            if self._was_ready or lost.code == -signal.SIGKILL:
                raise
            raise _UnusableError(f"its import ended the process ({lost.code})") from None
        if "error" in reply:
            raise _UnusableError(reply["error"])
        self._was_ready = True
        return child


async def _reply(child: asyncio.subprocess.Process, seconds: float) -> dict[str, object]:
    """Return a reply of the process; raise _ProcessLostError if it closed its stdout."""
    assert child.stdout is not None  # noqa: S101 - a pipe
    try:
        line = await asyncio.wait_for(child.stdout.readline(), seconds)
        if line:
            reply: dict[str, object] = json.loads(line)
            return reply
        raise _ProcessLostError(await asyncio.wait_for(child.wait(), seconds))
    except asyncio.TimeoutError:  # another class until Python 3.11
        raise NoVerdictError(f"math-verify sent nothing for {seconds:g} s") from None


def _serve() -> None:
    """Compare pairs line by line until stdin ends; only this runs in the child."""
    # Our own modules beside this file must not shadow what sympy imports.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # antlr prints version warnings to stdout

    # SIGPROF ends the process wherever it is, in C too: no `except` of a library can catch it.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # math-verify's own limits (0.3 to 0.9) are of wall time, and a timeout counts as unequal there.
    signal.alarm = lambda _seconds: 0
    try:
        from math_verify import parse, verify  # noqa: PLC0415 # seconds of import, in the child only
    except BaseException as problem:  # noqa: BLE001 # whatever a broken installation raises
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"[:500]}), file=replies)
        return

    # A tower of powers raises MemoryError instead of filling the memory.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + _MEMORY
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))

    # Whatever sympy and antlr raise about a malformed pair: it is not equal.
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        equal = False
        with contextlib.suppress(Exception):
            answer, gold = (parse(f"\\boxed{{{text}}}") for text in json.loads(line))
            equal = bool(verify(gold, answer))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": equal}), file=replies)


if __name__ == "__main__":
    _serve()
