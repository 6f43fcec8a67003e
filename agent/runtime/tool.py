"""A tool of the machine, asked for what it prints, within a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.node.process_limits import NoRoomError
from agent.runtime.process import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_MOST = 1 << 20


async def output_of(
    argv: Sequence[str], env: Mapping[str, str], log: Callable[[], Path], limit: float
) -> tuple[str, str]:
    """Return what a tool prints, and why that is nothing of use, '' where it is of use.

    What it prints to its stderr goes to a log.
    """
    try:
        child = await Child.start_piped(argv[0].rpartition("/")[2], argv, env, log)
    except OSError as error:
        return "", f"{argv[0]}: {error.strerror}"
    except NoRoomError as error:
        return "", error.reason
    assert child.process.stdout is not None  # noqa: S101 - started with pipes
    text, code = b"", None
    with anyio.move_on_after(limit):
        try:
            while len(text) < _MOST:
                text += await child.process.stdout.receive()
        except anyio.EndOfStream:
            code = await child.wait()
    with anyio.CancelScope(shield=True):
        await child.stop(0.0)
    if code is None:
        return "", f"{child.name} did not end within {limit:g} s"
    said = text.decode(errors="replace")
    return said, "" if code == 0 else await child.end_sentence(code)
