"""The entrypoint: starts a parent process for runs, then the program of the verb.

Each program imports only what it needs, since the CPU is busy while Ray starts.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = {"", "run", "--"}
"""The first argument of command lines that boot this node."""


def _import_own_package() -> None:
    """Import the package `agent` when this file is run by its path.

    Python then puts the package's folder on the module path, where its modules look like top-level
    ones. The folder around it is not added: it may hold libraries of another Python than Ray's.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms here
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100 - same
        del sys.path[0]
    import importlib.util  # noqa: PLC0415 - needed only here

    init = os.path.join(here, "__init__.py")  # noqa: PTH118 - same
    spec = importlib.util.spec_from_file_location("agent", init, submodule_search_locations=[here])
    assert spec is not None  # noqa: S101 - a .py file always has a loader
    assert spec.loader is not None  # noqa: S101 - same
    package = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = package
    spec.loader.exec_module(package)


def _program(name: str) -> Callable[[], int]:
    """Import the program of a verb; the agent's child processes are verbs, too.

    Those run in Ray's Python, which may lack the agent's libraries, so they import none of them
    except aiohttp, a dependency of ray[default].
    """
    if name == "reward-server":
        from agent.bundled.reward_server import main as program  # noqa: PLC0415 - one of eight
    elif name == "rehearsal":
        from agent.bundled.rehearsal import main as program  # noqa: PLC0415 - one of eight
    elif name == "fetch-model":
        from agent.bundled.fetch_model import main as program  # noqa: PLC0415 - one of eight
    elif name == "ray-bridge":
        from agent.bridge.child import main as program  # noqa: PLC0415 - one of eight
    elif name == "ray-facts":
        from agent.node.pythons import print_ray as program  # noqa: PLC0415 - one of eight
    elif name == "framework-facts":
        from agent.node.pythons import print_framework as program  # noqa: PLC0415 - one of eight
    else:
        from agent.cli import main as cli  # noqa: PLC0415 - one of eight

        return cli
    return lambda: program(sys.argv[2:])


def main() -> int:
    """Run the program of the verb; a run, and any program as PID 1, gets a parent process."""
    if not __package__:
        _import_own_package()
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in RUNS:
        from agent.runtime.first_signals import install_handlers  # noqa: PLC0415 - for a run only

        install_handlers()
    if verb in RUNS or os.getpid() == 1:
        from agent.runtime.parent import become_parent  # noqa: PLC0415 - not for other verbs

        code = become_parent(of_a_run=verb in RUNS)
        if code is not None:
            return code
    # Imports create no garbage, but collecting after every 700 objects takes a tenth of the start.
    gc.set_threshold(50_000)
    return _program(verb)()


if __name__ == "__main__":
    sys.exit(main())
