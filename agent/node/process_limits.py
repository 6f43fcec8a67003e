"""No room for another process or thread: said with the limit that is reached, never as a bug."""

from __future__ import annotations

import errno
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.node import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_THREAD = "can't start new thread"
"""Python's own words, in a RuntimeError without a number."""


class NoRoomError(UnavailableError):
    """The kernel refused another process or thread, or the memory for one."""


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Turn the kernel's refusal to start something into an error that names limit and remedy."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        told = no_room(what, error)
        if told is None:
            raise
        raise told from None


def no_room(what: str, error: BaseException) -> NoRoomError | None:
    """Return the error to tell instead, where this one means that a limit is reached."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EAGAIN or _NO_THREAD in str(error):
        why = f"no room for another process or thread ({_limits() or 'a limit of the system'})"
        remedy = (
            "Raise the limit (`--pids-limit`, pids.max, `ulimit -u`), or end what fills it; fewer "
            "CPUs (AGENT_NUM_CPUS) start fewer of Ray's processes"
        )
    elif number == errno.ENOMEM or isinstance(error, MemoryError):
        why = "no memory for another process"
        remedy = "Give the container more memory, or end what fills it"
    else:
        return None
    return NoRoomError(f"{what} could not be started", why=why, remedy=remedy, culprit=what)


def _limits() -> str:
    """Say which limits there are, and how far they are used where that can be told."""
    found = []
    for now, most in cgroups.pids():
        found.append(f"pids.max is {most}, {now} in use")
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(f"`ulimit -u` is {soft}")
    return "; ".join(found)
