"""Stands in for the programs that an example calls: what they would do is only noted.

    stand_in.py PROGRAM ARG…

Each call is noted with its arguments and environment in the folder STAND_IN_NOTES. `srun` runs its
command once for each node of STAND_IN_NODES, `docker` and `podman` run the image's entrypoint with
nothing but what `--env` gives, `apptainer` its command, `ssh` runs its command in a new shell,
`pod-agent` ends with the code STAND_IN_CODE, where STAND_IN_STAY is set not before a `docker stop`
in its place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = "STAND_IN_"
ONLY_NOTED = {"scontrol", "git", "pip", "curl", "sha256sum"}
BARE = {"--rm"}
"""Flags of docker's that take no value."""


def main(program: str, arguments: list[str]) -> int:
    """Note the call, then do what there is of it."""
    if program == "pod-agent" and os.environ.get("STAND_IN_STAY"):
        os.mkfifo(stopper())
    note(program, arguments)
    if program == "srun":
        return srun(arguments)
    if program in {"docker", "podman"}:
        return container(arguments)
    if program == "apptainer":
        return apptainer(arguments)
    if program == "ssh":
        return ssh(arguments)
    if program in ONLY_NOTED:
        return 0
    if os.environ.get("STAND_IN_STAY"):
        stopper().read_text()  # ends when `docker stop` has opened and closed it
    return int(os.environ.get("STAND_IN_CODE", "0"))


def note(program: str, arguments: list[str]) -> None:
    """Leave a file about this call."""
    folder = os.environ["STAND_IN_NOTES"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
    place = os.environ.get("STAND_IN_PLACE", "")
    noted = {"program": program, "argv": arguments, "environ": environ, "place": place}
    handle, path = tempfile.mkstemp(dir=folder, suffix=".part")
    with os.fdopen(handle, "w") as file:
        json.dump(noted, file)
    Path(path).rename(f"{path}.json")


def stopper() -> Path:
    """Return the pipe through which an agent that stays is stopped."""
    return Path(os.environ["STAND_IN_NOTES"], f"{os.environ['STAND_IN_PLACE']}.stop")


def kept() -> dict[str, str]:
    """Return what stand-ins need to find each other, wherever they run."""
    found = {name: text for name, text in os.environ.items() if name.startswith(OURS)}
    return {**found, "PATH": os.environ["PATH"]}


def srun(arguments: list[str]) -> int:
    """Run the command on every node; return the highest code."""
    at = next(n for n, word in enumerate(arguments) if not word.startswith("--"))
    codes = []
    for place, node in enumerate(json.loads(os.environ["STAND_IN_NODES"])):
        environ = {**os.environ, **node, "STAND_IN_PLACE": str(place)}
        codes.append(subprocess.run(arguments[at:], env=environ, check=False).returncode)
    return max(codes)


def container(arguments: list[str]) -> int:
    """Run the image's entrypoint, which is the agent, with the variables that were given."""
    if arguments[0] == "stop":
        with stopper().open("w"):  # as soon as the agent there listens
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
    return subprocess.run(["pod-agent", *rest[1:]], env=environ, check=False).returncode


def apptainer(arguments: list[str]) -> int:
    """Run the command, which keeps the environment and the folders."""
    assert arguments[:2] == ["exec", "--nv"]
    rest = arguments[2:]
    while rest[0].startswith("--"):
        rest = rest[2:]
    return subprocess.run(rest[1:], env=dict(os.environ), check=False).returncode


def ssh(arguments: list[str]) -> int:
    """Run the command in a shell that knows nothing of the caller's environment."""
    while arguments[0] == "-o":
        arguments = arguments[2:]
    host, *command = arguments
    environ = {**kept(), "STAND_IN_PLACE": host}
    return subprocess.run(["bash", "-c", " ".join(command)], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
