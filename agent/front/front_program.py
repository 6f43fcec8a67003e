"""Run the front of a service: `python -m agent front`, as the agent starts it on the head."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio

from agent.base.arguments import VerbParser
from agent.base.open_files import raise_open_files
from agent.front.front_memory import FrontMemory
from agent.front.front_server import FrontServer
from agent.job.front_protocol import KEY
from agent.job.weight_dialects import DIALECTS
from agent.serving.program import SETTINGS_WRONG, listening_on
from agent.serving.replies import log_only_bugs

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Sequence

_LONGEST_LINE = 500


def say(sentence: str) -> None:
    """Write a line to the log."""
    print(f"front: {sentence}"[:_LONGEST_LINE], file=sys.stderr, flush=True)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = VerbParser(
        prog="pod-agent front",
        description="Give the members of a service stable addresses; the agent starts it.",
        epilog=f"The key of the control port is in {KEY}.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="HOST[,HOST]", help="of the slots (%(default)s)")
    add("--control-port", type=int, required=True, help="on loopback; 0 for any free one")
    dialect = "how the trainer updates the weights (%(default)s)"
    add("--dialect", choices=(*DIALECTS,), default="sglang", help=dialect)
    state = "a file with what the members have loaded, for the next front of this run"
    add("--state", default="", metavar="FILE", help=state)
    keep = (
        "remove the folders of older updates than the newest N, and have the newest one stay "
        "where the trainer removes it; 0: neither (%(default)s)"
    )
    add("--keep", type=int, default=0, metavar="N", help=keep)
    options = parser.parse_args(argv)
    if not 0 <= options.control_port < 65536:
        parser.error("--control-port: expected 0 to 65535")
    if options.keep < 0:
        parser.error("--keep: expected 0 or more")
    return options


async def _serve(options: argparse.Namespace, key: str, control: Sequence[socket.socket]) -> None:
    stop = anyio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = FrontServer(
        DIALECTS[options.dialect],
        [*dict.fromkeys(options.host.split(","))],
        key,
        FrontMemory(options.state, say),
        say,
        options.keep,
    )
    await server.serve(
        control,
        stop,
        lambda: say(f"takes orders on 127.0.0.1:{server.control_port}"),
    )


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 2 for a wrong flag, 78 without a key or a control port."""
    options = _arguments(argv)
    key = os.environ.get(KEY, "").strip()
    if not key:
        say(f"{KEY} is not set: set it to the key of the agent's orders")
        return SETTINGS_WRONG
    log_only_bugs()
    raise_open_files()
    try:
        control = [*listening_on(["127.0.0.1"], options.control_port).values()]
    except OSError as problem:
        say(f"cannot listen on 127.0.0.1, port {options.control_port}: {problem}")
        return SETTINGS_WRONG
    asyncio.run(_serve(options, key, control))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
