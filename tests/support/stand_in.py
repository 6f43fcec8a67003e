"""Stand-ins for the programs that an example calls: most calls are only recorded.

    stand_in.py PROGRAM ARG…

Each call is recorded with its arguments and environment in the folder STAND_IN_NOTES. `srun` runs
its command once for each node of STAND_IN_NODES. `docker` and `podman` run the image's entrypoint
with the variables of `--env` only. `apptainer` runs its command, `ssh` runs its command in a new
shell, in a folder of that machine. `pod-agent` exits with STAND_IN_CODE; if STAND_IN_STAY is set,
only after a `docker stop`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

OURS = "STAND_IN_"
ONLY_RECORDED = {"kubectl", "sky", "dstack"}
BARE = {"--rm"}
"""Flags of docker that take no value."""


def main(program: str, arguments: list[str]) -> int:
    """Record the call, then do the program's part."""
    if program == "pod-agent" and os.environ.get("STAND_IN_STAY"):
        os.mkfifo(stop_fifo())
    note(program, arguments)
    if program == "srun":
        return srun(arguments)
    if program in {"docker", "podman"}:
        return container(arguments)
    if program == "apptainer":
        return apptainer(arguments)
    if program == "ssh":
        return ssh(arguments)
    if program in ONLY_RECORDED:
        return 0
    if os.environ.get("STAND_IN_STAY"):
        stop_fifo().read_text()  # the FIFO returns when `docker stop` has opened and closed it
    return int(os.environ.get("STAND_IN_CODE", "0"))


def note(program: str, arguments: list[str]) -> None:
    """Write a file about this call."""
    folder = os.environ["STAND_IN_NOTES"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
    place = os.environ.get("STAND_IN_PLACE", "")
    noted = {
        "program": program,
        "argv": arguments,
        "environ": environ,
        "place": place,
        "at": time.monotonic_ns(),
    }
    path = Path(folder, f"{os.getpid()}-{time.monotonic_ns()}.part")
    path.write_text(json.dumps(noted))
    path.rename(path.with_suffix(".json"))


def stop_fifo() -> Path:
    """Return the FIFO through which a staying agent is stopped."""
    return Path(os.environ["STAND_IN_NOTES"], f"{os.environ['STAND_IN_PLACE']}.stop")


def kept() -> dict[str, str]:
    """Return the variables that stand-ins need to find each other."""
    found = {name: text for name, text in os.environ.items() if name.startswith(OURS)}
    return {**found, "PATH": os.environ["PATH"]}


def run(argv: list[str], environ: dict[str, str]) -> int:
    """Run a command; return its exit code. Most calls run none: `subprocess` takes long to load."""
    pid = os.posix_spawnp(argv[0], argv, environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def srun(arguments: list[str]) -> int:
    """Run the command on every node; return the highest exit code. A step beside is recorded."""
    if "--overlap" in arguments:
        return 0
    at = next(n for n, word in enumerate(arguments) if not word.startswith("--"))
    codes = []
    for place, node in enumerate(json.loads(os.environ["STAND_IN_NODES"])):
        environ = {**os.environ, **node, "STAND_IN_PLACE": str(place)}
        codes.append(run(arguments[at:], environ))
    return max(codes)


def container(arguments: list[str]) -> int:
    """Run the image's entrypoint, the agent, with only the given variables."""
    if arguments[0] in {"image", "load"}:
        return 0
    if arguments[0] == "stop":
        with stop_fifo().open("w"):  # as soon as that agent listens
            return 0
    environ, rest = kept(), arguments[1:]
    while rest[0].startswith("--"):
        flag = rest.pop(0)
        if flag in BARE:
            continue
        value = rest.pop(0)
        if flag == "--env":
            name, given, text = value.partition("=")
            if given:
                environ[name] = text
            elif name in os.environ:
                environ[name] = os.environ[name]
    words = rest[1:]
    if words[:1] == ["-c"]:  # the words after the shell's own name are the agent's
        words = words[3:]
    return run(["pod-agent", *words], environ)


def apptainer(arguments: list[str]) -> int:
    """Run the command with the caller's environment and folders."""
    assert arguments[:2] == ["exec", "--nv"]
    rest = arguments[2:]
    while rest[0].startswith("--"):
        rest = rest[2:]
    return run(rest[1:], dict(os.environ))


def ssh(arguments: list[str]) -> int:
    """Run the command in a shell without the caller's environment."""
    while arguments[0] == "-o":
        arguments = arguments[2:]
    host, *command = arguments
    environ = {**kept(), "STAND_IN_PLACE": host}
    machine = Path(os.environ["STAND_IN_NOTES"]).parent / "machines" / host
    machine.mkdir(parents=True, exist_ok=True)
    os.chdir(machine)
    return run(["bash", "-c", " ".join(command)], environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
