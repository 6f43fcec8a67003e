"""The entrypoint: an init where this is the container's first process, then one of our programs.

Each program imports only what it needs: a pod's cores are busiest while Ray boots.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from agent.runtime.importing import collecting_no_garbage

if TYPE_CHECKING:
    from collections.abc import Callable


def _keep_own_folder_off_the_path() -> None:
    """Undo what running this file by its name did to the module path.

    The first entry is then this package's own folder, whose modules would pass for top-level
    ones. The package itself must still be found, and found here.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms here
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100 - same
        del sys.path[0]
    import importlib.util  # noqa: PLC0415 - needed on this way only

    found = importlib.util.find_spec("agent")
    if found is None or found.origin != os.path.join(here, "__init__.py"):  # noqa: PTH118 - same
        sys.path.insert(0, os.path.dirname(here))  # noqa: PTH120 - same


def _program(name: str) -> Callable[[], int]:
    """Import the program that a verb stands for; our own child processes are verbs too."""
    if name == "reward-server":
        from agent.workloads.reward_server import main as program  # noqa: PLC0415 - one of four
    elif name == "rehearsal":
        from agent.workloads.rehearsal import main as program  # noqa: PLC0415 - one of four
    elif name == "ray-bridge":
        from agent.bridge.child import main as program  # noqa: PLC0415 - one of four
    else:
        from agent.cli import main as cli  # noqa: PLC0415 - one of four

        return cli
    return lambda: program(sys.argv[2:])


def main() -> int:
    """Run the program that is asked for; as PID 1, under an init."""
    if not __package__:
        _keep_own_folder_off_the_path()
    if os.getpid() == 1:
        from agent.runtime.pid1 import become_init  # noqa: PLC0415 - for the first process only

        code = become_init()
        if code is not None:
            return code
    with collecting_no_garbage():
        program = _program(sys.argv[1] if len(sys.argv) > 1 else "")
    return program()


if __name__ == "__main__":
    sys.exit(main())
