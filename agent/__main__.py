"""The entrypoint: starts a parent process for runs, then the program of the verb.

1. A run (`python -m agent`), and any program that is PID 1, forks: the parent forwards signals,
   reaps, and starts a killed agent again (processes/parent.py); the child goes on here.
2. The child calls the program of the verb: one of PROGRAMS, or the command line (cli/).

On a Mac or Windows nothing runs: cli/other_system.py has the verbs that work there.

Each program imports only what it needs, since the CPU is busy while Ray starts.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

RUNS = {"", "run"}
"""The first argument of command lines that boot this node."""
PROGRAMS = {
    "reward-server": "bundled.reward_server:main",
    "retriever": "bundled.retriever:main",
    "rehearsal": "bundled.rehearsal:main",
    "rehearsal-engine": "bundled.rehearsal_engine:main",
    "rehearsal-async": "bundled.rehearsal_async:main",
    "fetch-model": "bundled.fetch_model:main",
    "read-ahead": "processes.page_cache:main",
    "compile-caches": "processes.cache_program:main",
    "front": "front.front_program:main",
    "ray-bridge": "bridge.child:main",
    "ray-facts": "node.python_facts:print_ray_facts",
    "framework-facts": "node.python_facts:print_framework_facts",
}
"""Verbs that are programs with arguments of their own; `cli` has all others.

Some run in Ray's Python, which may lack the agent's libraries, so they import none of them except
aiohttp, a dependency of ray[default].
"""


def _import_own_package() -> None:
    """Import the package `agent` when this file is run by its path.

    Python then puts the package's folder on the module path, where its modules look like top-level
    ones. The folder around it does not stay there: it may hold libraries of another Python.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms here
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100 - same
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(here))  # noqa: PTH120 - same
    importlib.import_module("agent")
    del sys.path[0]


def main() -> int:
    """Run the program of the verb; a run, and any program as PID 1, gets a parent process."""
    if not __package__:
        _import_own_package()
    load = importlib.import_module("agent").load
    if sys.platform != "linux":
        return int(load("cli.other_system:main")())
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    is_run = verb in RUNS

    # Does this process become the parent of the agent?
    if is_run:
        load("processes.parent:install_handlers")()
        load("processes.parent:hide_secrets")()
    if is_run or os.getpid() == 1:
        code = load("processes.parent:become_parent")(restarts_agent=is_run)
        if code is not None:
            return int(load("processes.parent:keep_exit_code")(code))

    # Imports create no garbage: searches for it would take a tenth of the start (run/main.py).
    gc.set_threshold(200_000)

    # Which program is it?
    if verb in PROGRAMS:
        return int(load(PROGRAMS[verb])(sys.argv[2:]))
    code = load("cli.command_line:main")()
    return int(load("processes.parent:keep_exit_code")(code) if is_run else code)


if __name__ == "__main__":
    sys.exit(main())
