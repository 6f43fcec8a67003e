"""`Log`: the end of a log in which the cause of a failure is searched."""

from __future__ import annotations

from agent.base.value import Value


class Log(Value):
    """The end of one log of a node."""

    node: str  # '' for this node
    name: str
    text: str
    of_ray: bool = False  # whether Ray itself wrote it, not the job
    program: str = ""  # the service or prepare step that wrote it; '' for the job and Ray
    clock_ahead: float = 0.0  # seconds that its node's clock is ahead of this one's
    at: float | None = None  # when its first error arrived, in seconds since 1970, on one clock
    first_line: int | None = None  # the number of the text's first line in the file, from 1 on
