"""The lab by hand: `scripts/lab run`, `shell` and `clean`."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tools.lab.errors import LabError
from tools.lab.lab import Lab
from tools.lab.leftovers import clean
from tools.lab.rights import missing
from tools.lab.stream import Follower, prefix, wants_color
from tools.lab.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from tools.lab.container import Container
    from tools.lab.pod import Pod

CANNOT = 77
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
EPILOG = """\
exit codes: run: the first pod's; 77 if no lab can be made (needs root, iproute2, dnsmasq)

examples:
  scripts/lab run --pods 2 -- sh -c 'hostname; ip -brief address'
  scripts/lab run --pods 3 --runpod --env AGENT_ON_DONE=exit -- .venv/bin/python -m agent
  scripts/lab shell --pods 2
"""


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/lab",
        description="N pods on this machine: namespaces with a network, DNS, a decoy interface "
        "that leads nowhere, a private /tmp and PID 1 semantics. Nothing is left at the end.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--pods", type=int, default=2, metavar="N", help="how many (default 2)")
    common.add_argument(
        "--names", type=lambda text: text.split(","), metavar="A,B", help="their names, instead"
    )
    common.add_argument("--interface", default="podnet1", metavar="NAME", help="default podnet1")
    common.add_argument("--shm", default="2g", metavar="SIZE", help="of /dev/shm (default 2g)")
    common.add_argument(
        "--env", action="append", default=[], type=name_and_value, metavar="K=V", help="repeatable"
    )
    common.add_argument(
        "--runpod",
        action="store_true",
        help="set RUNPOD_POD_ID, HEAD_POD_ID (the first pod) and EXPECTED_WORKERS",
    )
    run_parser = verbs.add_parser(
        "run", parents=[common], help="run a command as PID 1 of every pod, and show its output"
    )
    run_parser.add_argument("--cwd", default=os.getcwd(), help="default: the current directory")  # noqa: PTH109 - a string is wanted
    run_parser.add_argument(
        "--grace", type=float, default=30, metavar="S", help="from TERM to KILL (default 30)"
    )
    run_parser.add_argument(
        "--after-first",
        type=float,
        default=120,
        metavar="S",
        help="how long the others may run after the first pod's end (default 120)",
    )
    run_parser.add_argument(
        "--kill",
        type=lambda text: re.compile(text, re.MULTILINE),
        metavar="RE",
        help="kill the last pod when the first one prints a line with RE, and start it again",
    )
    run_parser.add_argument("command", nargs="+", metavar="CMD", help="after --")
    verbs.add_parser("shell", parents=[common], help="open a shell in the first of some idle pods")
    verbs.add_parser("clean", help="remove the leftovers of killed labs")
    return parser


def name_and_value(text: str) -> tuple[str, str]:
    """Split K=V."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def environment(
    pod: str, names: Sequence[str], given: Sequence[tuple[str, str]], *, runpod: bool
) -> dict[str, str]:
    """Return the variables of a pod's command, except for PATH, HOME and LANG."""
    identity = {
        "RUNPOD_POD_ID": pod,
        "HEAD_POD_ID": names[0],
        "EXPECTED_WORKERS": str(len(names) - 1),
    }
    return {**(identity if runpod else {}), **dict(given)}


def make_lab(args: argparse.Namespace) -> Lab:
    """Make the lab that the options describe."""
    return Lab(pods=args.pods, names=args.names, interface=args.interface, shm=args.shm)


class Show:
    """Runs a command in every pod, on one terminal, until the last one has ended."""

    def __init__(self, args: argparse.Namespace, lab: Lab, stack: ExitStack) -> None:
        self.args = args
        self.asked = 0  # number of stop signals received
        self.names = [pod.name for pod in lab.pods]
        self.width = max(len("lab"), *map(len, self.names))
        self.followers: list[Follower] = []
        self._pods = lab.pods
        self._stack = stack
        self._killed: Container | None = None
        self.containers = [self._start(pod, stack) for pod in lab.pods]
        self._told: set[Container] = set()
        self._done = 0
        self._kill_at = math.inf

    def _start(self, pod: Pod, stack: ExitStack) -> Container:
        env = environment(pod.name, self.names, self.args.env, runpod=self.args.runpod)
        container = pod.start(self.args.command, env=env, cwd=self.args.cwd)
        index = self.names.index(pod.name)
        for path, sink in zip(container.log_paths, (sys.stdout, sys.stderr), strict=True):
            before = prefix(pod.name, self.width, index, color=wants_color(sink))
            follower = Follower(path, before, sink)
            stack.callback(follower.close)
            self.followers.append(follower)
        return container

    def say(self, text: str) -> None:
        """Print a message of the lab on stderr."""
        print(f"{'lab':<{self.width}} | {text}", file=sys.stderr, flush=True)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Record a signal; step() handles it."""
        self.asked += 1

    def step(self) -> bool:
        """Print new output, run due actions; return true when all have ended."""
        for follower in self.followers:
            follower.step()
        self._kill_last_if_due()
        running = [container for container in self.containers if container.running]
        self._tell_ends()
        self._stop_if_due(running)
        return not running

    def _kill_last_if_due(self) -> None:
        """Kill the last pod once, and start it again when it has ended."""
        if self.args.kill is None or self.asked:
            return
        first, last = self.containers[0], self.containers[-1]
        printed = (path.read_text(errors="replace") for path in first.log_paths)
        if self._killed is None and any(map(self.args.kill.search, printed)):
            self.say(f"{self.names[-1]} is killed, as if its machine were gone")
            self._killed = last
            last.signal(signal.SIGKILL)
        elif self._killed is last and not last.running and first.running:
            self._tell_ends()
            self.say(f"{self.names[-1]} is started again")
            self.containers[-1] = self._start(self._pods[-1], self._stack)

    def _tell_ends(self) -> None:
        for name, container in zip(self.names, self.containers, strict=True):
            if container.ended_at is not None and container not in self._told:
                self._told.add(container)
                took = container.ended_at - container.started_at
                self.say(f"{name} ended with {container.wait(1)} after {took:.1f} s")
                if container is self.containers[0] and not self.asked:
                    self._kill_at = time.monotonic() + self.args.after_first

    def _stop_if_due(self, running: list[Container]) -> None:
        if self.asked > self._done:
            self._done = self.asked
            if self._done == 1:
                self.say(f"TERM to all, KILL after {self.args.grace:g} s or on a second signal")
                self._kill_at = time.monotonic() + self.args.grace
                for container in running:
                    container.signal(signal.SIGTERM)
            else:
                self._kill_at = 0
        if time.monotonic() >= self._kill_at and running:
            self.say(f"timeout: KILL to {len(running)} pod(s)")
            self._kill_at = math.inf
            for container in running:
                container.signal(signal.SIGKILL)


def run(args: argparse.Namespace) -> int:
    """Run the command in every pod; return the first pod's exit code."""
    with make_lab(args) as lab, ExitStack() as stack:
        show = Show(args, lab, stack)
        for number in STOPS:
            signal.signal(number, show.ask)
        until(show.step, math.inf, "the end of all pods")
        return show.containers[0].wait(1)


def enter_script(container: Container) -> str:
    """Write the sh script that opens a shell in a container, from the host.

    On a terminal it allocates a new one (script) and makes it the controlling terminal (setsid),
    since job control needs a session inside; Ctrl-C then reaches only the shell's processes.
    """
    variables = [f"{name}={value}" for name, value in container.spec["env"].items()]
    into = shlex.join(["nsenter", "--target", str(container.pid), *NAMESPACES, "--"])
    shell = "cd; command -v bash >/dev/null && exec bash; exec sh"
    opened = f"env -i {shlex.join(variables)} TERM=${{TERM:-dumb}} sh -c {shlex.quote(shell)}"
    on_terminal = f"{into} setsid --ctty --wait {opened}"
    return (
        "#!/bin/sh\n"
        f"[ -t 0 ] && exec script --quiet --return --command {shlex.quote(on_terminal)} /dev/null\n"
        f"exec {into} {opened}\n"
    )


def shell(args: argparse.Namespace) -> int:
    """Open a shell in the first pod; the others are idle."""
    with make_lab(args) as lab:
        names = [pod.name for pod in lab.pods]
        for pod in lab.pods:
            env = environment(pod.name, names, args.env, runpod=args.runpod)
            door = lab.folder / f"enter-{pod.name}"
            door.write_text(enter_script(pod.start(["sleep", "infinity"], env=env)))
            door.chmod(0o700)
            print(
                f"{pod.name}: {pod.ip}, {pod.name}.{lab.domain}; enter by {door}", file=sys.stderr
            )
        print(f"this is {names[0]}; exit ends the lab with all pods", file=sys.stderr, flush=True)
        return subprocess.run([lab.folder / f"enter-{names[0]}"], check=False).returncode


def sweep() -> int:
    """Remove leftovers, and list them."""
    removed = clean()
    print("\n".join(f"removed {lab_id}" for lab_id in removed) or "nothing was left over")
    return 0


def end_by_signal(number: int, _frame: FrameType | None) -> None:
    """Exit through all with blocks, with the code of a process ended by the signal."""
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = make_parser().parse_args(argv)
    reason = missing()
    if reason is not None:
        print(f"lab: {reason}", file=sys.stderr)
        return CANNOT
    for number in STOPS:
        signal.signal(number, end_by_signal)
    try:
        if args.verb == "clean":
            return sweep()
        return shell(args) if args.verb == "shell" else run(args)
    except (LabError, TimeoutError) as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1
