"""The entrypoint: an init where this is the container's first process, else the agent itself."""

from __future__ import annotations

import os
import sys


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


def main() -> int:
    """Run the command line; as PID 1, through an init."""
    if not __package__:
        _keep_own_folder_off_the_path()
    if os.getpid() == 1:
        from agent.runtime.pid1 import run_under_init  # noqa: PLC0415 - init stays tiny

        return run_under_init()
    from agent.cli import main as run  # noqa: PLC0415 - init stays tiny

    return run()


if __name__ == "__main__":
    sys.exit(main())
