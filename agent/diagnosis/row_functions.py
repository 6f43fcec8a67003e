"""Rows that need more than words: functions of a parsed error, which rows.toml names.

A function returns the cause with its sentence and remedy, or None where the error is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.diagnosis.errors.parsed_error import ParsedError

    RowFunction = Callable[[ParsedError], Cause | None]

_STANDARD_LIBRARY = "/signal.py"


def signal_outside_main_thread(error: ParsedError) -> Cause | None:
    """A library installs a signal's handler in a thread: the frames show which one."""
    if error.name != "ValueError" or "signal only works in main thread" not in error.message:
        return None
    users = [frame for frame in error.frames if not frame.file.endswith(_STANDARD_LIBRARY)]
    where = f" ({users[-1].file}:{users[-1].line})" if users else ""
    return Cause(
        "signal in a thread",
        f"a handler of a signal was installed outside the main thread{where}",
        "Call it from the main thread of its process, or turn off what installs the handler: "
        "a Ray actor with max_concurrency or async methods runs its methods in other threads",
    )


FUNCTIONS: Mapping[str, RowFunction] = {
    function.__name__: function for function in (signal_outside_main_thread,)
}
"""The functions by name, as rows.toml has them."""
