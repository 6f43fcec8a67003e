"""Ask math-verify, where it is installed, about answers that our own comparison finds unequal.

It runs in a process of its own: sympy can work for minutes on a line that a policy made up, its
timeouts need a main thread, and only a process can be ended for certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path

_START_SECONDS = 30.0
_MOST_REMEMBERED = 10_000
_SCRIPT = str(Path(__file__).resolve())


class SecondOpinion:
    """math-verify's verdicts; `False` for whatever it cannot say in time, never an exception."""

    def __init__(self, pair_seconds: float = 5.0) -> None:
        self._pair_seconds = pair_seconds
        self.available = importlib.util.find_spec("math_verify") is not None
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._known: dict[tuple[str, str], bool] = {}
        self._complained = False

    async def agrees(self, answer: str, gold: str) -> bool:
        """Tell whether math-verify holds the two for equal."""
        async with self._turn:
            pair = (answer, gold)
            if self.available and pair not in self._known:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[pair] = await self._ask(pair)
            return self._known.get(pair, False)

    async def close(self) -> None:
        """End the child and wait for its end."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _ask(self, pair: tuple[str, str]) -> bool:
        try:
            if self._child is None:
                await asyncio.wait_for(self._start(), _START_SECONDS)
            reply = await asyncio.wait_for(self._exchange(pair), self._pair_seconds)
        except (OSError, ValueError, asyncio.TimeoutError) as problem:
            # A child that never started would cost its deadline again and again.
            self.available = self._child is not None
            await self.close()
            self._complain(str(problem) or f"no verdict within {self._pair_seconds:g} s")
            return False
        except asyncio.CancelledError:
            await self.close()  # its late reply would be taken for the next one's
            raise
        if "error" in reply:
            self._complain(str(reply["error"]))
        return reply.get("equal") is True

    async def _start(self) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            _SCRIPT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            _refuse((await _line(child)).get("error"))
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()  # its transport must be closed before the loop is
            raise
        self._child = child

    async def _exchange(self, pair: tuple[str, str]) -> dict[str, object]:
        if self._child is None or self._child.stdin is None:
            raise ValueError("its process is gone")
        self._child.stdin.write(json.dumps(pair).encode() + b"\n")
        await self._child.stdin.drain()
        return await _line(self._child)

    def _complain(self, problem: str) -> None:
        if not self._complained:
            self._complained = True
            note = f"reward server: math-verify gave no opinion, we go on without it: {problem}"
            print(note[:500], file=sys.stderr, flush=True)


async def _line(child: asyncio.subprocess.Process) -> dict[str, object]:
    line = await child.stdout.readline() if child.stdout else b""
    if not line:
        raise ValueError("its process ended")
    reply = json.loads(line)
    return reply if isinstance(reply, dict) else {}


def _refuse(problem: object) -> None:
    if problem:
        raise ValueError(problem)


def _serve() -> None:
    """Answer pairs line by line until stdin ends; only this runs in the child."""
    # Our own modules beside this file must not shadow what sympy imports.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # antlr prints version warnings to stdout
    try:
        from math_verify import parse, verify  # noqa: PLC0415 # seconds of import, in the child only
    except Exception as problem:  # noqa: BLE001 # whatever a broken installation raises
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"}), file=replies)
        return
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        reply: dict[str, object]
        try:
            reply = {"equal": bool(verify(parse(_boxed(gold)), parse(_boxed(answer))))}
        except Exception as problem:  # noqa: BLE001 # whatever sympy and antlr raise
            reply = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(reply), file=replies)


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


if __name__ == "__main__":
    _serve()
