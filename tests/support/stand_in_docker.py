"""A docker on a machine of the lab: `run` starts a container in the machine's own root.

    stand_in_docker.py run FLAG… IMAGE WORD…

The container has PID 1, its volumes, and the variables of `--env` over those of the image, which
the file /tmp/docker.json has. A flag that is not known here is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

IMAGE_ENV = Path("/tmp/docker.json")
MOUNT = """
while [ "$1" != -- ]; do mkdir -p "$2" && mount --bind "$1" "$2" && shift 2; done
shift
exec "$@"
"""


def main(words: list[str]) -> None:
    """Become the container's command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run"])
    parser.add_argument("--rm", action="store_true", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--network", choices=["host"], required=True)
    parser.add_argument("--shm-size")
    parser.add_argument("--ulimit")
    parser.add_argument("--gpus", choices=["all"])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("--entrypoint", required=True)
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)

    environ = dict(json.loads(IMAGE_ENV.read_text(encoding="utf-8")))
    for given in asked.env:
        name, has_value, value = given.partition("=")
        if has_value:
            environ[name] = value
        elif name in os.environ:
            environ[name] = os.environ[name]

    mounts = [part for volume in asked.volume for part in volume.split(":")]
    command = ["sh", "-ec", MOUNT, "sh", *mounts, "--", asked.entrypoint, *asked.words]
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvpe(apart[0], [*apart, *command], environ)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
