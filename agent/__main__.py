"""The entrypoint: a small parent over every run, then one of our programs.

Each program imports only what it needs: a pod's cores are busiest while Ray boots.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = {"", "run", "--"}
"""How a command line begins that boots this node."""


def _find_ourselves_here() -> None:
    """Undo what running this file by its name did to the module path, and find the package here.

    The path's first entry is then this package's own folder, whose modules would pass for
    top-level ones. The folder around it does not come on the path in its stead: it may hold the
    libraries of another Python's environment, while this one is Ray's.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms here
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100 - same
        del sys.path[0]
    import importlib.util  # noqa: PLC0415 - needed on this way only

    init = os.path.join(here, "__init__.py")  # noqa: PTH118 - same
    spec = importlib.util.spec_from_file_location("agent", init, submodule_search_locations=[here])
    assert spec is not None  # noqa: S101 - a .py file always has a loader
    assert spec.loader is not None  # noqa: S101 - same
    package = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = package
    spec.loader.exec_module(package)


def _program(name: str) -> Callable[[], int]:
    """Import the program that a verb stands for; our own child processes are verbs too.

    Those run in Ray's Python, which may lack every library of the agent's own: they import none
    of these, but for aiohttp, which ray[default] brings.
    """
    if name == "reward-server":
        from agent.bundled.reward_server import main as program  # noqa: PLC0415 - one of eight
    elif name == "retriever":
        from agent.bundled.retriever import main as program  # noqa: PLC0415 - same
    elif name == "rehearsal":
        from agent.bundled.rehearsal import main as program  # noqa: PLC0415 - one of eight
    elif name == "fetch-model":
        from agent.bundled.fetch_model import main as program  # noqa: PLC0415 - one of eight
    elif name == "ray-bridge":
        from agent.bridge.child import main as program  # noqa: PLC0415 - one of eight
    elif name == "ray-facts":
        from agent.node.ray_python import tell as program  # noqa: PLC0415 - one of eight
    elif name == "framework-facts":
        from agent.node.framework import tell as program  # noqa: PLC0415 - one of eight
    else:
        from agent.cli import main as cli  # noqa: PLC0415 - one of eight

        return cli
    return lambda: program(sys.argv[2:])


def main() -> int:
    """Run the program that is asked for; a run, and whatever is PID 1, under a parent."""
    if not __package__:
        _find_ourselves_here()
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in RUNS:
        from agent.runtime.first_signals import listen  # noqa: PLC0415 - for a run only

        listen()
    if verb in RUNS or os.getpid() == 1:
        from agent.runtime.parent import become_parent  # noqa: PLC0415 - not for a mere question

        code = become_parent(of_a_run=verb in RUNS)
        if code is not None:
            return code
    # What imports make is no garbage, and to look for it after every 700 objects takes a tenth of
    # the start. Later the collector runs as before, only more rarely.
    gc.set_threshold(50_000)
    return _program(verb)()


if __name__ == "__main__":
    sys.exit(main())
